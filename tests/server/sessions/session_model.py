"""A model that answers as it is told: each of its tokens has one or a few that may follow it, whatever came before.

Its answers are made of long tokens, into which no tokenizer would cut their text again.
"""

import itertools
import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from conftest import DATA

from gguf import GGUFWriter, TokenType

HEAD = 64
# Logits of the tokens that may follow lie so far above those of the others.
SURE = 4.0
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
# Between reasoning and answer; any answer may follow it.
BETWEEN = "\n\n"


def _spelled() -> dict[int, str]:
    """The character by which a byte-level vocabulary writes each byte."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + place) for place, byte in enumerate(others)}


_SPELLED = _spelled()


def _token(text: str) -> str:
    return "".join(_SPELLED[byte] for byte in text.encode())


def scripted_model(path: Path, answers: Sequence[Sequence[str]], context: int, template: str) -> Path:
    """Writes the model.

    Args:
        path: The file.
        answers: What it may answer, in pieces; each is of one answer alone, but for markers and `BETWEEN`.
        context: The longest context.
        template: The file of its chat template.
    """
    pieces = [piece for answer in answers for piece in answer if piece not in (*MARKERS, BETWEEN)]
    assert len({*pieces}) == len(pieces)
    long = [_token(piece) for piece in (*pieces, BETWEEN)]
    texts = [*(_SPELLED[byte] for byte in range(256)), *long, "ab", *MARKERS, *CONTROL]
    size = -(-len(texts) // HEAD) * HEAD
    texts += [f"<unused{place}>" for place in range(size - len(texts))]
    ids = {text: place for place, text in enumerate(texts)}
    kinds = [TokenType.NORMAL] * size
    for text, place in ids.items():
        if text in MARKERS:
            kinds[place] = TokenType.USER_DEFINED
        elif text in CONTROL or text.startswith("<unused"):
            kinds[place] = TokenType.CONTROL
    follows = np.zeros((size, size), np.float32)
    for answer in answers:
        tokens = [_token("\n"), *(piece if piece in MARKERS else _token(piece) for piece in answer), "<|im_end|>"]
        for before, after in itertools.pairwise(tokens):
            follows[ids[after], ids[before]] = SURE
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(size)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HEAD)
    writer.add_head_count(size // HEAD)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(lzma.decompress((DATA / "templates" / f"{template}.jinja.xz").read_bytes()).decode())
    one = np.ones(size, np.float32)
    writer.add_tensor("token_embd.weight", np.eye(size, dtype=np.float32))
    writer.add_tensor("output.weight", follows)
    writer.add_tensor("output_norm.weight", one)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", one)
    shapes = {"attn_q": (size, size), "attn_k": (HEAD, size), "attn_v": (HEAD, size), "attn_output": (size, size)}
    shapes |= {"ffn_gate": (HEAD, size), "ffn_up": (HEAD, size), "ffn_down": (size, HEAD)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
