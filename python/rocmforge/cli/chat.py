"""`rocmforge chat`."""

import contextlib
import re
import time
from typing import Annotated, Any

import typer

from rocmforge import LLM, InvalidRequestError, RequestOutput, SamplingParams
from rocmforge.cli.common import (
    BatchInvariantOption,
    ChatTemplateOption,
    DeviceOption,
    MaxModelLenOption,
    MaxTokensOption,
    ModelOption,
    ThreadsOption,
    fail,
    model_path,
    print_speed,
    say_if_empty,
    template_text,
    utf8,
    write,
)
from rocmforge.cli.lines import LineReader
from rocmforge.cli.sampling import (
    MinPOption,
    RepetitionPenaltyOption,
    Sampling,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
)
from rocmforge.progress import is_terminal

HELP = """/clear, /reset        forget the conversation
/stats                what it takes of the model's context and of the cache
/help                 this list
/bye, /exit, /quit    leave (Ctrl-D too)
\"\"\"                   begins and ends a message of several lines
Ctrl-C stops an answer. A message that begins with / is sent when a space precedes it."""
HINT = "/help lists the commands; Ctrl-C stops an answer."
# A word: what begins with a path (/etc/fstab) is a message.
COMMAND = re.compile(r"/[A-Za-z?]*(\s|$)")


def chat(
    model: ModelOption = None,
    *,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    chat_template: ChatTemplateOption = None,
    max_tokens: MaxTokensOption = 1024,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    repetition_penalty: RepetitionPenaltyOption = None,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    max_model_len: MaxModelLenOption = None,
    batch_invariant: BatchInvariantOption = None,
) -> None:
    """Talk with a model. Every turn finds the turns before it in the KV cache. Sampled as generate does."""
    sampling = Sampling(temperature, top_p, top_k, min_p, repetition_penalty, seed)
    params = SamplingParams(max_tokens=max_tokens, output_kind="delta", **sampling.given())
    template = template_text(chat_template)
    path = model_path(model)
    llm = LLM(
        path,
        device=device,
        num_threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=1,
        batch_invariant=batch_invariant,
    )
    with llm:
        if template is None and not llm.tokenizer.has_chat_template:
            fail(
                f"{path}: the model has no chat template, so it was probably not made for conversations: complete text "
                "with `rocmforge generate`, or give a template with --chat-template FILE"
            )
        if is_terminal():
            typer.echo(f"{llm.describe()}\n{HINT}", err=True)
        params = params.replace(**sampling.resolve(llm))
        # Else every turn would draw the same numbers.
        params = params if seed is not None else params.replace(seed=None)
        start = [{"role": "system", "content": utf8(system, "system")}] if system is not None else []
        with LineReader() as reader:
            refused = Conversation(llm, params, start, template).run(reader)
    if refused:
        raise typer.Exit(1)


class Conversation:
    """The messages so far, and how to go on."""

    def __init__(self, llm: LLM, params: SamplingParams, start: list[dict[str, str]], template: str | None) -> None:
        self.llm = llm
        self.params = params
        self.start = start
        self.template = template
        self.messages = list(start)
        self.last: RequestOutput | None = None

    def run(self, reader: LineReader) -> bool:
        """Serves turns until the input ends; returns whether a turn was refused."""
        refused = interrupted = False
        while True:
            try:
                line = reader.read()
                interrupted = False
                if line is None:
                    return refused
                if COMMAND.match(line):
                    if not self._command(line.strip()):
                        return refused
                elif line.strip():
                    refused |= not self._turn(line)
            except KeyboardInterrupt:
                # A Ctrl-C that came a moment after an answer must not cost the conversation.
                if interrupted:
                    raise
                interrupted = True
                typer.echo("\n(Ctrl-C once more, Ctrl-D or /bye leaves)", err=True)

    def _command(self, command: str) -> bool:
        """Carries out a command; returns whether to go on."""
        match command:
            case "/bye" | "/exit" | "/quit":
                return False
            case "/clear" | "/reset":
                self.messages, self.last = list(self.start), None
            case "/stats":
                typer.echo(self._stats(), err=True)
            case "/help" | "/?":
                typer.echo(HELP, err=True)
            case _:
                typer.echo(f"error: {command}: no such command; there are:\n{HELP}", err=True)
        return True

    def _stats(self) -> str:
        if self.last is None:
            return "nothing was said yet"
        stats, longest = self.llm.stats(), self.llm.config()["max_model_len"]
        used = len(self.last.prompt_token_ids)
        return (
            f"turns: {sum(message['role'] == 'user' for message in self.messages)}; the last one began with {used} of "
            f"{longest} tokens of context, {self.last.metrics.num_cached_tokens} of them from the cache\n"
            f"since the start: {stats.prompt_tokens} prompt tokens, {stats.prefix_cache_hits} of them from the cache; "
            f"{stats.generated_tokens} tokens generated"
        )

    def _turn(self, line: str) -> bool:
        """Whether it was answered. A refusal costs this turn alone: the program and what was said before stay."""
        self.messages.append({"role": "user", "content": line})
        try:
            answer = self._answer()
        except InvalidRequestError as error:
            self.messages.pop()
            advice = "; /clear forgets the conversation" if len(self.messages) > len(self.start) else ""
            typer.echo(f"error: {error}{advice}", err=True)
            return False
        self.messages.append({"role": "assistant", "content": answer})
        return True

    def _answer(self) -> str:
        """Streams an answer and returns its text; what was said before Ctrl-C stays in the conversation."""
        pieces: list[str] = []
        num_tokens, started = 0, time.monotonic()
        last: RequestOutput | None = None
        options: dict[str, Any] = {} if self.template is None else {"chat_template": self.template}
        with (
            contextlib.suppress(KeyboardInterrupt),
            contextlib.closing(self.llm.stream_chat(self.messages, self.params, **options)) as outputs,
        ):
            for output in outputs:
                self.last = last = output
                pieces.append(output.outputs[0].text)
                num_tokens += len(output.outputs[0].token_ids)
                write(pieces[-1])
        typer.echo()
        if last is not None:
            say_if_empty(last.outputs[0], len("".join(pieces)))
        if self.last is not None and num_tokens:
            cached = f"{self.last.metrics.num_cached_tokens} of {len(self.last.prompt_token_ids)}"
            print_speed(num_tokens, time.monotonic() - started, f"; {cached} prompt tokens from the cache")
        return "".join(pieces)
