"""`rocmforge generate`."""

import dataclasses
import sys
from typing import Annotated, Any

import typer

from rocmforge import LLM, RequestOutput, SamplingParams
from rocmforge.cli.common import (
    DeviceOption,
    JsonOption,
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
    model_path,
    print_json,
    utf8,
    write,
)
from rocmforge.llm import stream
from rocmforge.progress import is_terminal, load_bar


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Read from stdin if absent.", show_default=False)] = None,
    model: ModelOption = None,
    *,
    chat: Annotated[bool, typer.Option("--chat", help="Ask through the model's chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="A system message; implies --chat.")] = None,
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    top_k: TopKOption = 0,
    min_p: MinPOption = 0.0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    seed: SeedOption = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the generation; may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    max_model_len: MaxModelLenOption = None,
    json_output: JsonOption = False,
) -> None:
    """Complete a prompt (or answer it, with --chat), streaming the text."""
    if prompt is None:
        if sys.stdin.isatty():
            raise typer.BadParameter("give a prompt, or pipe one in", param_hint="PROMPT")
        # Without the line break that `echo` and editors put at the end: it would change the completion.
        prompt = utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    else:
        prompt = utf8(prompt, "prompt")
    system = None if system is None else utf8(system, "system")
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=[utf8(text, "stop") for text in stop or ()],
        ignore_eos=ignore_eos,
        output_kind="cumulative" if json_output else "delta",
    )
    path = model_path(model)
    with load_bar():
        llm = LLM(path, device=device, num_threads=threads, max_model_len=max_model_len, max_num_seqs=1)
    with llm:
        if is_terminal():
            typer.echo(llm.describe(), err=True)
        ids: str | list[int] = prompt
        if chat or system is not None:
            messages = [{"role": "system", "content": system}] if system is not None else []
            messages.append({"role": "user", "content": prompt})
            prompt, ids = llm.tokenizer.encode_chat(messages)
        for output in stream(llm._engine, ids, params, text=prompt):  # noqa: SLF001 - one package
            if not json_output:
                write(output.outputs[0].text)
            elif output.finished:
                print_json({"model": str(path)} | as_dict(output))
        if not json_output:
            typer.echo()


def as_dict(output: RequestOutput) -> dict[str, Any]:
    """One finished request for `--json`."""
    completion = output.outputs[0]
    return {
        "prompt": output.prompt,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": len(completion.token_ids),
        "metrics": dataclasses.asdict(output.metrics),
    }
