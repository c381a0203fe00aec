"""Models that are made up: shapes and tensor types of real ones, weights from a seed. Nothing but numpy is needed."""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 32
# Codes of GGUF: kinds of values, and types of tensors.
U32, F32, TEXT = 4, 6, 8
TYPE_F32, TYPE_Q4_K, TYPE_Q6_K = 0, 12, 14
BLOCK_ELEMENTS = 256
# Size of a block's parts, in order: a number of random bytes, or an f16 scale for weights of about 1.
BLOCKS: dict[int, tuple[int | float, ...]] = {
    TYPE_Q4_K: (1 / 258, 7.5 / 258, 12, 128),
    TYPE_Q6_K: (128, 64, 16, 1 / (18 * 73)),
}
# Blocks that are made; tensors are drawn from them, so that they are quick to make and as hard to cache as real ones.
POOL = 1 << 14


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a decoder; multiples of 256 all but the heads and the layers."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int = 4096

    def tensors(self) -> Iterator[tuple[str, int, int, int]]:
        """Name, rows (1 for a vector), columns and type."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "token_embd", self.vocab, self.hidden, TYPE_Q6_K
        for i in range(self.layers):
            yield f"blk.{i}.attn_norm", 1, self.hidden, TYPE_F32
            yield f"blk.{i}.attn_q", q, self.hidden, TYPE_Q4_K
            yield f"blk.{i}.attn_k", kv, self.hidden, TYPE_Q4_K
            yield f"blk.{i}.attn_v", kv, self.hidden, TYPE_Q6_K if i % 2 else TYPE_Q4_K
            yield f"blk.{i}.attn_output", self.hidden, q, TYPE_Q4_K
            yield f"blk.{i}.ffn_norm", 1, self.hidden, TYPE_F32
            yield f"blk.{i}.ffn_gate", self.ffn, self.hidden, TYPE_Q4_K
            yield f"blk.{i}.ffn_up", self.ffn, self.hidden, TYPE_Q4_K
            yield f"blk.{i}.ffn_down", self.hidden, self.ffn, TYPE_Q6_K if i % 2 else TYPE_Q4_K
        yield "output_norm", 1, self.hidden, TYPE_F32

    def metadata(self) -> list[tuple[str, int, int | float | str]]:
        """Keys with the kinds of their values."""
        return [
            ("general.architecture", TEXT, "llama"),
            ("general.name", TEXT, "made up"),
            ("tokenizer.ggml.model", TEXT, "none"),
            ("llama.vocab_size", U32, self.vocab),
            ("llama.context_length", U32, self.context),
            ("llama.block_count", U32, self.layers),
            ("llama.embedding_length", U32, self.hidden),
            ("llama.feed_forward_length", U32, self.ffn),
            ("llama.attention.head_count", U32, self.heads),
            ("llama.attention.head_count_kv", U32, self.kv_heads),
            ("llama.attention.key_length", U32, self.head_dim),
            ("llama.attention.value_length", U32, self.head_dim),
            ("llama.rope.dimension_count", U32, self.head_dim),
            ("llama.rope.freq_base", F32, 5e5),
            ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ]


def write(shape: Shape, path: Path, seed: int = 0) -> Path:
    """Writes a model whose layers change all that goes through them: what follows depends on the whole prompt."""
    random = np.random.default_rng(seed)
    tensors = [
        (f"{name}.weight", (cols,) if rows == 1 else (cols, rows), kind, _num_bytes(rows, cols, kind))
        for name, rows, cols, kind in shape.tensors()
    ]
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(shape.metadata())))
    for key, kind, value in shape.metadata():
        head += _text(key) + struct.pack("<I", kind)
        head += _text(value) if isinstance(value, str) else struct.pack("<f" if kind == F32 else "<I", value)
    offset = 0
    for name, dimensions, kind, num_bytes in tensors:
        head += _text(name) + struct.pack("<I", len(dimensions))
        head += struct.pack(f"<{len(dimensions)}QIQ", *dimensions, kind, offset)
        offset += _padded(num_bytes)
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for name, rows, cols, kind in shape.tensors():
            # Products keep the magnitude of their inputs; embeddings are small compared with the layers' outputs.
            data = _tensor(random, rows, cols, kind, 0.02 if name == "token_embd" else 1 / math.sqrt(cols))
            file.write(data)
            file.write(bytes(_padded(len(data)) - len(data)))
    return path


def num_bytes(shape: Shape) -> int:
    """Bytes of all tensors."""
    return sum(_padded(_num_bytes(rows, cols, kind)) for _, rows, cols, kind in shape.tensors())


def _tensor(random: np.random.Generator, rows: int, cols: int, kind: int, size: float) -> bytes:
    if kind == TYPE_F32:
        return random.uniform(0.9, 1.1, rows * cols).astype("<f4").tobytes()
    count = rows * cols // BLOCK_ELEMENTS
    pool = _blocks(random, kind, min(count, POOL), size)
    blocks = pool if count == len(pool) else pool[random.integers(0, len(pool), count)]
    return blocks.tobytes()


def _blocks(random: np.random.Generator, kind: int, count: int, size: float) -> NDArray[np.uint8]:
    """Quantised blocks, no two alike, `[count, bytes]`."""
    parts = []
    for part in BLOCKS[kind]:
        if isinstance(part, int):
            parts.append(random.integers(0, 256, (count, part), dtype=np.uint8))
        else:
            scale = (part * size * random.uniform(0.7, 1.3, count)).astype("<f2")
            parts.append(scale.view(np.uint8).reshape(count, 2))
    return np.hstack(parts)


def _num_bytes(rows: int, cols: int, kind: int) -> int:
    if kind == TYPE_F32:
        return 4 * rows * cols
    per_block = sum(part if isinstance(part, int) else 2 for part in BLOCKS[kind])
    return rows * cols // BLOCK_ELEMENTS * per_block


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
