"""`rocmforge chat`."""

import contextlib
import re
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rocmforge import LLM, Image, InvalidRequestError, RequestOutput, SamplingParams
from rocmforge.cli.common import (
    BatchInvariantOption,
    ChatTemplateOption,
    DeviceOption,
    MaxModelLenOption,
    MaxTokensOption,
    MmprojOption,
    ModelOption,
    ThreadsOption,
    check_template,
    model_path,
    print_speed,
    say_if_empty,
    template_text,
    user_message,
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
from rocmforge.display.progress import is_terminal
from rocmforge.display.terminal import printable_lines
from rocmforge.images import as_image
from rocmforge.prompts import Message

HELP = """/image FILE           add an image to the next message
/clear, /reset        forget the conversation
/stats                tokens of the conversation, and its share of context and cache
/help                 this list
/bye, /exit, /quit    leave (Ctrl-D too)
\"\"\"                   begins and ends a message of several lines
Ctrl-C stops an answer. A message that begins with / is sent when a space precedes it."""
HINT = "/help lists the commands; Ctrl-C stops an answer."
# A single word: text that begins with a path (/etc/fstab) is a message.
COMMAND = re.compile(r"/[A-Za-z?]*(\s|$)")


def chat(
    model_argument: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False)
    ] = None,
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
    mmproj: MmprojOption = None,
) -> None:
    """Chat with a model. Each turn reuses the KV cache of earlier turns. Sampling defaults are those of `generate`."""
    sampling = Sampling(temperature, top_p, top_k, min_p, repetition_penalty, seed)
    params = SamplingParams(max_tokens=max_tokens, output_kind="delta", **sampling.given())
    template = template_text(chat_template)
    if model_argument is not None and model is not None:
        raise typer.BadParameter("give the model as an argument or with --model, not both", param_hint="MODEL")
    path = model_path(model_argument or model)
    llm = LLM(
        path,
        device=device,
        num_threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=1,
        batch_invariant=batch_invariant,
        mmproj=mmproj,
    )
    with llm:
        check_template(llm, path, template, "`rocmforge generate`")
        if is_terminal():
            typer.echo(f"{llm.describe()}\n{HINT}", err=True)
        params = params.replace(**sampling.resolve(llm))
        # Otherwise every turn would draw the same numbers.
        params = params if seed is not None else params.replace(seed=None)
        start: list[Message] = [{"role": "system", "content": utf8(system, "system")}] if system is not None else []
        with LineReader() as reader:
            refused = Conversation(llm, params, start, template).run(reader)
    if refused:
        raise typer.Exit(1)


class Conversation:
    """The messages so far, and the options for the next answer."""

    def __init__(self, llm: LLM, params: SamplingParams, start: list[Message], template: str | None) -> None:
        self.llm = llm
        self.params = params
        self.start = start
        self.template = template
        self.messages = list(start)
        self.last: RequestOutput | None = None
        self.images: list[Image] = []
        """The images of the next message."""

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
        """Runs a command; true if the chat continues."""
        match command:
            case "/bye" | "/exit" | "/quit":
                return False
            case "/clear" | "/reset":
                self.messages, self.last, self.images = list(self.start), None, []
            case "/stats":
                typer.echo(self._stats(), err=True)
            case _ if command.split(maxsplit=1)[0] == "/image":
                self._attach(command.removeprefix("/image").strip())
            case "/help" | "/?":
                typer.echo(HELP, err=True)
            case _:
                typer.echo(f"error: {command}: no such command; there are:\n{HELP}", err=True)
        return True

    def _attach(self, file: str) -> None:
        """Reads an image for the next message."""
        try:
            # A file that is dropped on a terminal comes with quotes or backslashes.
            words = shlex.split(file)
            path = Path(words[0] if len(words) == 1 else file).expanduser()
            image = as_image(path)
            tokens = self.llm.image_tokens(image)
        except OSError as error:
            typer.echo(f"error: /image {printable_lines(file)}: {error.strerror}; give the path of an image", err=True)
            return
        except ValueError as error:
            typer.echo(f"error: {printable_lines(str(error))}", err=True)
            return
        self.images.append(image)
        size = f"{image.width} x {image.height} pixels, {tokens} tokens"
        typer.echo(f"{printable_lines(path.name)} ({size}) goes with the next message", err=True)

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
        """True if the model answered. A refusal ends only this turn; the program and the conversation continue."""
        self.messages.append(user_message(line, self.images))
        try:
            answer = self._answer()
        except InvalidRequestError as error:
            self.messages.pop()
            advice = "; /clear forgets the conversation" if len(self.messages) > len(self.start) else ""
            typer.echo(f"error: {printable_lines(str(error))}{advice}", err=True)
            return False
        self.images = []
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
