"""`rocmforge chat`."""

import contextlib
import sys
from typing import Annotated

import typer

from rocmforge import LLM, InvalidRequestError, RequestOutput, SamplingParams
from rocmforge.cli.common import (
    DeviceOption,
    MaxModelLenOption,
    MaxTokensOption,
    MinPOption,
    ModelOption,
    RepetitionPenaltyOption,
    SeedOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    fail,
    model_path,
    utf8,
    write,
)
from rocmforge.llm import stream
from rocmforge.progress import is_terminal, load_bar

HELP = "/reset forgets the conversation, /exit leaves; Ctrl-C stops an answer."


def chat(
    model: ModelOption = None,
    *,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    max_tokens: MaxTokensOption = 1024,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    top_k: TopKOption = 0,
    min_p: MinPOption = 0.0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    max_model_len: MaxModelLenOption = None,
) -> None:
    """Talk with a model. Every turn finds the turns before it in the KV cache."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        output_kind="delta",
    )
    path = model_path(model)
    with load_bar():
        llm = LLM(path, device=device, num_threads=threads, max_model_len=max_model_len, max_num_seqs=1)
    with llm:
        if is_terminal():
            typer.echo(f"{llm.describe()}\n{HELP}", err=True)
        _converse(llm, params, system)


def _converse(llm: LLM, params: SamplingParams, system: str | None) -> None:
    start = [{"role": "system", "content": utf8(system, "system")}] if system is not None else []
    messages = list(start)
    refused = False
    while (line := _read_line()) is not None:
        match line.strip():
            case "":
                continue
            case "/exit":
                break
            case "/reset":
                messages = list(start)
                continue
            case "/help":
                typer.echo(HELP, err=True)
                continue
        messages.append({"role": "user", "content": line})
        try:
            messages.append({"role": "assistant", "content": _answer(llm, messages, params)})
        except InvalidRequestError as error:
            # Most of all a conversation that has grown too long: the program and what was said so far stay.
            messages.pop()
            refused = True
            typer.echo(f"error: {error}; /reset forgets the conversation", err=True)
    if refused:
        raise typer.Exit(1)


def _read_line() -> str | None:
    """`None` at the end of the input."""
    if not sys.stdin.isatty():
        # Bytes: what Python makes of those that are no text depends on the locale and on PYTHONIOENCODING.
        line = sys.stdin.buffer.readline()
        return utf8(line, "stdin").removesuffix("\n").removesuffix("\r") if line else None
    try:
        return utf8(input("> "), "stdin")
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        fail(f"stdin: {error}; give it in UTF-8")


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Streams an answer and returns its text; what was said before Ctrl-C stays in the conversation."""
    text, ids = llm.tokenizer.encode_chat(messages)
    pieces: list[str] = []
    last: RequestOutput | None = None
    num_tokens = 0
    with contextlib.suppress(KeyboardInterrupt):
        for output in stream(llm._engine, ids, params, text=text):  # noqa: SLF001 - one package
            last = output
            pieces.append(output.outputs[0].text)
            num_tokens += len(output.outputs[0].token_ids)
            write(pieces[-1])
    typer.echo()
    if is_terminal() and last is not None and last.metrics.total_time:
        speed = num_tokens / last.metrics.total_time
        cached = f"{last.metrics.num_cached_tokens} of {len(ids)} prompt tokens from the cache"
        typer.secho(f"{num_tokens} tokens, {speed:.1f} tok/s; {cached}", err=True, dim=True)
    return "".join(pieces)
