"""`rocmforge chat`."""

import contextlib
import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
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
/regenerate           replace the last answer by another one
/set NAME VALUE       change a sampling parameter, such as temperature; /set lists them
/system TEXT          change the system message ("" removes it); /system shows it
/save FILE            write the conversation as JSON
/clear, /reset        forget the conversation
/stats                tokens of the conversation, and its share of context and cache
/help                 this list
/bye, /exit, /quit    leave (Ctrl-D too)
\"\"\"                   begins and ends a message of several lines
Ctrl-C stops an answer. A message that begins with / is sent when a space precedes it."""
HINT = "/help lists the commands; Ctrl-C stops an answer."
# Parameters that `/set` changes, with their types.
SETTINGS: Mapping[str, type[int | float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "seed": int,
    "max_tokens": int,
}
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
                    word, *rest = line.split(maxsplit=1)
                    argument = "".join(rest).strip()
                    if (word, argument) == ("/regenerate", ""):
                        refused |= not self._regenerate()
                    elif not self._command(word, argument):
                        return refused
                elif line.strip():
                    refused |= not self._turn(line)
            except KeyboardInterrupt:
                # A Ctrl-C that came a moment after an answer must not cost the conversation.
                if interrupted:
                    raise
                interrupted = True
                typer.echo("\n(Ctrl-C once more, Ctrl-D or /bye leaves)", err=True)

    def _command(self, word: str, argument: str) -> bool:
        """Runs a command; true if the chat continues."""
        match word, argument:
            case "/bye" | "/exit" | "/quit", "":
                return False
            case "/clear" | "/reset", "":
                self.messages, self.last, self.images = list(self.start), None, []
            case "/stats", "":
                typer.echo(self._stats(), err=True)
            case "/image", _:
                self._attach(argument)
            case "/set", _:
                self._set(argument)
            case "/system", _:
                self._system(argument)
            case "/save", _:
                self._save(argument)
            case "/help" | "/?", "":
                typer.echo(HELP, err=True)
            case _:
                command = f"{word} {argument}".strip()
                typer.echo(f"error: {printable_lines(command)}: no such command; there are:\n{HELP}", err=True)
        return True

    def _set(self, argument: str) -> None:
        """Changes a sampling parameter, or lists all."""
        name, _, value = argument.replace("=", " ").partition(" ")
        name = name.replace("-", "_")
        if not argument:
            typer.echo("\n".join(f"{name}: {getattr(self.params, name)}" for name in SETTINGS), err=True)
        elif name not in SETTINGS:
            known = ", ".join(SETTINGS)
            typer.echo(f"error: /set {printable_lines(argument)}: expected one of {known}, then a value", err=True)
        else:
            try:
                self.params = self.params.replace(**{name: SETTINGS[name](value)})
            except (ValueError, OverflowError) as error:
                typer.echo(f"error: /set {name}: {printable_lines(str(error))}", err=True)
            else:
                typer.echo(f"{name}: {getattr(self.params, name)}", err=True)

    def _system(self, text: str) -> None:
        """Shows the system message, or replaces it from the next turn on."""
        if text:
            said = self.messages[len(self.start) :]
            self.start = [] if text == '""' else [{"role": "system", "content": text}]
            self.messages = [*self.start, *said]
        shown = self.start[0]["content"] if self.start else "none"
        typer.echo(f"system message: {printable_lines(str(shown))}", err=True)

    def _save(self, file: str) -> None:
        """Writes the messages as JSON, in OpenAI's format; images are described in words."""
        saved = [{**message, "content": _text(message["content"])} for message in self.messages]
        try:
            path = _path(file)
            with path.open("x", encoding="utf-8") as out:
                json.dump(saved, out, ensure_ascii=False, indent=2)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            typer.echo(f"error: /save {printable_lines(file)}: {reason}; give the path of a new file", err=True)
        else:
            typer.echo(f"{len(saved)} messages written to {printable_lines(str(path))}", err=True)

    def _attach(self, file: str) -> None:
        """Reads an image for the next message."""
        try:
            path = _path(file)
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

    def _regenerate(self) -> bool:
        """Replaces the last answer. True if the model answered."""
        if self.messages[-1:] and self.messages[-1]["role"] == "assistant":
            old = self.messages.pop()
        else:
            typer.echo("error: /regenerate: there is no answer yet", err=True)
            return True
        try:
            self.messages.append({"role": "assistant", "content": self._answer()})
        except InvalidRequestError as error:
            self.messages.append(old)
            typer.echo(f"error: {printable_lines(str(error))}", err=True)
            return False
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


def _path(file: str) -> Path:
    """Reads a path as typed or dropped on a terminal, with quotes or backslashes.

    Raises:
        ValueError: A quote is not closed.
    """
    words = shlex.split(file)
    return Path(words[0] if len(words) == 1 else file).expanduser()


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a message's content, with a word for each image."""
    if isinstance(content, str):
        return content
    parts = [part["text"] if part["type"] == "text" else "[image]" for part in content]
    return "\n".join(parts)
