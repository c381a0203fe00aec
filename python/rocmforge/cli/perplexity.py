"""`rocmforge perplexity`."""

import math
from pathlib import Path
from typing import Annotated

import typer

from rocmforge import LLM, RequestOutput, SamplingParams
from rocmforge.cli.common import (
    ComputeDtypeOption,
    DeviceOption,
    JsonOption,
    KvCacheDtypeOption,
    ModelOption,
    ThreadsOption,
    completed,
    fail,
    model_path,
    print_json,
)
from rocmforge.display.progress import is_terminal

DEFAULT_CONTEXT = 512


def perplexity(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A text file in UTF-8.", show_default=False)],
    model: ModelOption = None,
    *,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            "-c",
            min=2,
            help="Tokens per window; by default 512, or fewer if the model's context is shorter.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    kv_cache_dtype: KvCacheDtypeOption = "f16",
    compute_dtype: ComputeDtypeOption = "auto",
    json_output: JsonOption = False,
) -> None:
    """Compute the perplexity of a text, and its logarithm, over non-overlapping windows."""
    try:
        # With a byte order mark or without.
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        fail(f"{file}: not a text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}; convert the file")
    path = model_path(model)
    # Add one to the window for the one token that a request generates.
    length = None if context is None else context + 1
    llm = LLM(
        path,
        device=device,
        num_threads=threads,
        max_model_len=length,
        kv_cache_dtype=kv_cache_dtype,
        compute_dtype=compute_dtype,
        enable_prefix_caching=False,
    )
    with llm:
        if is_terminal():
            typer.echo(llm.describe(), err=True)
        if context is None:
            context = min(DEFAULT_CONTEXT, llm.config()["max_model_len"] - 1)
        ids = llm.tokenize(text)
        windows = [ids[start : start + context] for start in range(0, len(ids), context)]
        windows = [window for window in windows if len(window) > 1]
        if not windows:
            fail(f"{file}: {len(ids)} tokens are too few: the first one has no probability")
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        outputs = completed(llm.generate(windows, params))
    logprobs = [logprob for output in outputs for logprob in _prompt_logprobs(output)]
    nll = -math.fsum(logprobs) / len(logprobs)
    if json_output:
        print_json({"model": str(path), "context": context, "tokens": len(logprobs), "nll": nll, "ppl": math.exp(nll)})
    else:
        typer.echo(f"tokens\t{len(logprobs)}\nnll\t{nll:.5f}\nppl\t{math.exp(nll):.4f}")


def _prompt_logprobs(output: RequestOutput) -> list[float]:
    """Log-probabilities of all prompt tokens but the first."""
    entries = zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=True)
    return [entry[token_id].logprob for token_id, entry in entries if entry is not None]
