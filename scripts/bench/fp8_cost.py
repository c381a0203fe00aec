#!/usr/bin/env python3
"""Measures how products of 8-bit floats (compute_dtype="fp8") change results, on the GPU of this machine.

    scripts/bench/fp8_cost.py [--model FILE.gguf] [--seconds 540] [--only NAME,NAME]

First a real model, where one is given, over prompts cut from the project's own documents: the mean negative
log-likelihood of their tokens, and how far the distributions of next tokens are from those of the default. Then every
golden model of tests/data/arch, which are small and have random weights: how far their logits are from those of the
CPU in float32 keys and values. KL / entropy is the share by which the likelihood of what the model itself would say
falls. Whatever is not done after --seconds is left out and said.
"""

import argparse
import io
import lzma
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rocmforge import LLM
from rocmforge.errors import RocmForgeError

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/data/arch"
TEXTS = ("docs/usage.md", "docs/architecture.md", "docs/kernels.md", "docs/server.md")
# Tokens of a prompt: of the golden models few, but more than products begin to be the library's at.
GOLDEN_TOKENS = 192
LENGTHS = (200, 400, 700, 1000, 1500)

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]


def log_softmax(logits: Logits) -> Floats:
    """Returns the logarithms of the rows' probabilities."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


def divergence(reference: Floats, other: Floats) -> Floats:
    """Returns the KL divergence of each row."""
    return np.asarray((np.exp(reference) * (reference - other)).sum(axis=1))


def load(model: Path, device: str, **settings: object) -> LLM:
    """Returns a model that serves one prompt after the other."""
    return LLM(str(model), device=device, max_num_seqs=2, enable_prefix_caching=False, **settings)


def golden_row(name: str, device: str, folder: Path) -> str:
    """Returns the row of the table for one golden model."""
    model = folder / f"{name}.gguf"
    model.write_bytes(lzma.decompress((GOLDEN / f"{name}.gguf.xz").read_bytes()))
    tokens = np.load(io.BytesIO(lzma.decompress((GOLDEN / f"{name}.npz.xz").read_bytes())))["tokens"]
    prompt = np.resize(tokens, GOLDEN_TOKENS).tolist()
    with load(model, "cpu", kv_cache_dtype="f32") as llm:
        prompt = prompt[: llm.config()["max_model_len"] - 1]
        reference = llm.prompt_logits(prompt)
    of_reference = log_softmax(reference)
    entropy = -(np.exp(of_reference) * of_reference).sum(axis=1).mean()
    cells = []
    for dtype in ("auto", "fp8"):
        try:
            with load(model, device, kv_cache_dtype="f32", compute_dtype=dtype) as llm:
                logits = llm.prompt_logits(prompt)
        except RocmForgeError as error:  # A family that is refused is a row of the table, too.
            cells += [f"{type(error).__name__}: {error}"[:90], ""]
            continue
        if not np.isfinite(logits).all():
            cells += [f"{(~np.isfinite(logits)).any(axis=1).sum()} rows of no numbers", ""]
            continue
        cosine = (logits * reference).sum() / np.sqrt((logits**2).sum() * (reference**2).sum())
        share = divergence(of_reference, log_softmax(logits)).mean() / entropy
        cells += [f"{cosine:.4f}", f"{100 * share:.3f} %"]
    return f"| {name} | {' | '.join(cells)} |"


def prompts(llm: LLM) -> Iterator[list[int]]:
    """Yields prompts of different lengths from the project's documents."""
    for text in TEXTS:
        tokens = llm.tokenizer.encode((ROOT / text).read_text())
        start = 0
        for length in LENGTHS:
            if start + length <= len(tokens):
                yield tokens[start : start + length]
            start += length


def real_rows(model: Path, device: str, ends: float) -> Iterator[str]:
    """Yields the rows of the table for a real model."""
    settings: dict[str, dict[str, object]] = {
        "auto": {},
        "auto, no library": {"vendor_blas": False},
        "auto, int8 cache": {"kv_cache_dtype": "int8"},
        "fp8": {"compute_dtype": "fp8"},
        "fp8, int8 cache": {"compute_dtype": "fp8", "kv_cache_dtype": "int8"},
    }
    reference: list[Floats] = []
    for name, chosen in settings.items():
        if time.monotonic() > ends:
            yield f"| {name} | not done |"
            continue
        losses, divergences, changed = [], [], []
        with load(model, device, max_model_len=2048, **chosen) as llm:
            for i, prompt in enumerate(prompts(llm)):
                logs = log_softmax(llm.prompt_logits(prompt))
                losses.append(-logs[np.arange(len(prompt) - 1), prompt[1:]])
                # Distributions of every eighth place: all of them would not fit.
                few = logs[7::8]
                if name == "auto":
                    reference.append(few.astype(np.float32))
                of_reference = reference[i].astype(np.float64)
                divergences.append(divergence(of_reference, few))
                changed.append(of_reference.argmax(axis=1) != few.argmax(axis=1))
        loss, kl, other = np.concatenate(losses), np.concatenate(divergences), np.concatenate(changed)
        if name == "auto":
            base = loss
        delta = loss - base
        error = delta.std() / np.sqrt(len(delta))
        share = delta.mean() / base.mean()
        yield (
            f"| {name} | {loss.mean():.4f} | {delta.mean():+.4f} ± {error:.4f} | {100 * share:+.2f} % "
            f"| {kl.mean():.5f} | {kl.max():.3f} | {100 * other.mean():.1f} % |"
        )


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a real model's file")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--only", help="names of golden models, separated by commas")
    options = parser.parse_args()
    ends = time.monotonic() + options.seconds
    if options.model:
        print("| products | NLL | more | of it | KL mean | KL most | other token |\n|---|---|---|---|---|---|---|")
        for row in real_rows(options.model, options.device, ends):
            print(row, flush=True)
    names = options.only.split(",") if options.only else [f.name[: -len(".gguf.xz")] for f in GOLDEN.glob("*.gguf.xz")]
    print("\n| model | cosine, auto | KL / entropy | cosine, fp8 | KL / entropy |\n|---|---|---|---|---|")
    left = sorted(names)
    with tempfile.TemporaryDirectory() as folder:
        while left and time.monotonic() < ends:
            print(golden_row(left.pop(0), options.device, Path(folder)), flush=True)
    if left:
        print(f"not done: {', '.join(left)}")


if __name__ == "__main__":
    main()
