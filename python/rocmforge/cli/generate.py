"""`rocmforge generate`."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rocmforge import LLM, RequestOutput, SamplingParams
from rocmforge.cli.common import (
    BatchInvariantOption,
    ChatTemplateOption,
    ComputeDtypeOption,
    DeviceOption,
    JsonOption,
    KvCacheDtypeOption,
    MaxModelLenOption,
    MaxTokensOption,
    MmprojOption,
    ModelOption,
    SpeculativeOption,
    ThreadsOption,
    check_template,
    model_path,
    piped_text,
    print_json,
    print_speed,
    say_if_empty,
    template_text,
    user_message,
    utf8,
    write,
)
from rocmforge.cli.sampling import (
    MinPOption,
    RepetitionPenaltyOption,
    Sampling,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
)
from rocmforge.display.progress import is_terminal


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt; by default it is read from stdin.", show_default=False),
    ] = None,
    model: ModelOption = None,
    *,
    prompt_option: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="The prompt, as an option instead of an argument.", show_default=False),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a chat message, with the model's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="A system message; implies --chat.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="An image for the prompt; may be repeated; implies --chat.")
    ] = None,
    mmproj: MmprojOption = None,
    chat_template: ChatTemplateOption = None,
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    repetition_penalty: RepetitionPenaltyOption = None,
    seed: SeedOption = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that stops the generation; may be repeated.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the model's end-of-sequence token.")
    ] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    max_model_len: MaxModelLenOption = None,
    batch_invariant: BatchInvariantOption = None,
    kv_cache_dtype: KvCacheDtypeOption = "f16",
    compute_dtype: ComputeDtypeOption = "auto",
    speculative_config: SpeculativeOption = None,
    json_output: JsonOption = False,
) -> None:
    """Complete a prompt or, with --chat, answer it. The text is streamed.

    Sampling defaults come from the model file (general.sampling.*). If it has none, they are temperature 0.7,
    top-p 0.95, min-p 0.05 and repetition penalty 1.1. For reproducible text, set --temperature 0 or --seed, and on a
    GPU also --batch-invariant.
    """
    prompt = _prompt(prompt, prompt_option)
    system = None if system is None else utf8(system, "system")
    template = template_text(chat_template)
    sampling = Sampling(temperature, top_p, top_k, min_p, repetition_penalty, seed)
    params = SamplingParams(
        max_tokens=max_tokens,
        stop=[utf8(text, "stop") for text in stop or ()],
        ignore_eos=ignore_eos,
        output_kind="final_only" if json_output else "delta",
        **sampling.given(),
    )
    path = model_path(model)
    llm = LLM(
        path,
        device=device,
        num_threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=1,
        mmproj=mmproj,
        batch_invariant=batch_invariant,
        kv_cache_dtype=kv_cache_dtype,
        compute_dtype=compute_dtype,
        speculative_config=speculative_config,
    )
    with llm:
        if is_terminal():
            typer.echo(llm.describe(), err=True)
        params = params.replace(**sampling.resolve(llm))
        by_template = chat or system is not None or template is not None or bool(image)
        if by_template:
            check_template(llm, path, template, "`rocmforge generate` without --chat, --system and --image")
            messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system is not None else []
            messages.append(user_message(prompt, image or ()))
            outputs = llm.stream_chat(messages, params, chat_template=template)
        else:
            outputs = llm.stream(prompt, params)
        num_tokens, length, started = 0, 0, time.monotonic()
        for output in outputs:
            completion = output.outputs[0]
            num_tokens += len(completion.token_ids)
            length += len(completion.text)
            if json_output:
                print_json({"model": str(path)} | as_dict(output, params))
            else:
                write(completion.text)
        if not json_output:
            typer.echo()
            hint = "" if by_template or not llm.tokenizer.has_chat_template else "; --chat asks it as a chat would"
            say_if_empty(completion, length, hint)
            print_speed(num_tokens, time.monotonic() - started)


def _prompt(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None:
        raise typer.BadParameter("give the prompt as an argument or with --prompt, not both", param_hint="PROMPT")
    prompt = argument if option is None else option
    if prompt is not None:
        return utf8(prompt, "prompt")
    if sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, or pipe one in", param_hint="PROMPT")
    # A byte order mark, and the line break that `echo` and editors put at the end, would change the completion.
    return piped_text(sys.stdin.buffer.read(), "stdin")


def as_dict(output: RequestOutput, params: SamplingParams) -> dict[str, Any]:
    """Returns a finished request for `--json`; with its `sampling`, the same command gives the same text again."""
    completion = output.outputs[0]
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    return {
        "prompt": output.prompt,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": len(completion.token_ids),
        "sampling": {name: getattr(params, name) for name in names},
        "metrics": dataclasses.asdict(output.metrics),
    }
