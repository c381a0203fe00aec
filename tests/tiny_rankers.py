"""The golden encoders with heads that rank, whose weights a formula makes."""

import json
import lzma
from pathlib import Path

import numpy as np
from rust_source import ROOT
from tiny_models import rewritten

DATA = ROOT / "tests" / "data"
HIDDEN = 64
# Each with the model of its golden data, and the golden logits of pairs.
RANKERS = {
    "bert": ("bert", "logits"),
    "bert_without_dense": ("bert", "logits_without_dense"),
    "xlm_roberta": ("xlm_roberta", "logits"),
    "modern_bert_cls": ("modern_bert", "logits_cls"),
    "modern_bert_mean": ("modern_bert", "logits_mean"),
}


def golden(name: str) -> dict:
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


def scores(name: str) -> np.ndarray:
    """The scores that transformers gives the pairs."""
    model, logits = RANKERS[name]
    return 1 / (1 + np.exp(-np.float64(golden("embedding/rankers")["models"][model][logits])))


def weights(rows: int, cols: int, offset: int, scale: float) -> np.ndarray:
    r, c = np.arange(rows)[:, None], np.arange(cols)[None]
    return (((r * 37 + c * 101 + r * c * 7 + offset) % 127 - 63) / scale).astype(np.float32)


def head(name: str) -> dict[str, np.ndarray]:
    """The tensors of a model's head; BERT's has three labels."""
    labels = 3 if name.startswith("bert") else 1
    tensors = {"cls.output.weight": weights(labels, HIDDEN, 3, 128), "cls.output.bias": weights(1, labels, 90, 256)[0]}
    if name != "bert_without_dense":
        tensors["cls.weight"] = weights(HIDDEN, HIDDEN, 5, 512)
    if name in ("bert", "xlm_roberta"):
        tensors["cls.bias"] = weights(1, HIDDEN, 11, 256)[0]
    if name.startswith("modern"):
        tensors["cls.norm.weight"] = 1 + weights(1, HIDDEN, 40, 512)[0]
    return tensors


def ranker(source: Path, target: Path, name: str, **tensors: np.ndarray | None) -> Path:
    """A file of one of `RANKERS` from the golden encoder; `tensors`: others of its head, or `None` for one that it
    lacks, with `_` for each dot of their names."""
    architecture = "modern-bert" if name.startswith("modern") else "bert"
    found = head(name)
    for key, data in tensors.items():
        full = key.replace("_", ".")
        found.pop(full, None)
        if data is not None:
            found[full] = data
    # llama.cpp's converter writes no key of the pooling.
    drop, replace, extra, reshape = [f"{architecture}.pooling_type"], {}, {}, {}
    if name == "bert":
        drop, replace = [], {"bert.pooling_type": 4}
    if name == "modern_bert_mean":
        drop.append("modern-bert.classifier.pooling_type")
    if name == "xlm_roberta":
        unigram = golden("tokenizers/unigram")
        drop += ["tokenizer.ggml.mask_token_id", "tokenizer.ggml.normalizer.lowercase"]
        ids = {"bos": 0, "padding": 1, "eos": 2, "seperator": 2, "unknown": 3}
        replace = {f"tokenizer.ggml.{key}_token_id": value for key, value in ids.items()} | {
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.token_type_count": 1,
            "tokenizer.ggml.tokens": unigram["tokens"],
            "tokenizer.ggml.token_type": unigram["types"],
        }
        extra = {
            "tokenizer.ggml.scores": unigram["scores"],
            "tokenizer.ggml.precompiled_charsmap": bytes(unigram["charsmap"]),
            "tokenizer.ggml.add_space_prefix": True,
            "tokenizer.ggml.remove_extra_whitespaces": True,
            "tokenizer.ggml.add_sep_token": True,
        }
        reshape = {"token_types.weight": (1, HIDDEN)}
    return rewritten(source, target, drop=drop, replace=replace, extra=extra, reshape=reshape, tensors=found)
