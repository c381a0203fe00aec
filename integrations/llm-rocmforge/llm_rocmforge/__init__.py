"""A plugin of `llm` that runs GGUF models in process, with rocmforge.

`llm rocmforge add FILE --name NAME` registers a model, and `llm -m rocmforge/NAME` runs it. The first prompt loads it;
the engine then stays in the process.
"""

import asyncio
import contextlib
import functools
import inspect
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import llm
from llm.parts import StreamEvent
from pydantic import BaseModel
from rocmforge import LLM, AsyncLLM, RocmForgeError

from llm_rocmforge.answer import Answer, Chat, SamplingOptions

HUB_NAMES = ("hf:", "ollama:")
Kind = TypeVar("Kind", LLM, AsyncLLM)


class Entry(BaseModel):
    """A registered model."""

    model: str
    """The path of a GGUF file, or a name that rocmforge understands."""
    chat_template: str | None = None
    """The path of a template that replaces the one in the file."""
    options: dict[str, Any] = {}
    """Arguments of `rocmforge.LLM`."""


def entries_file() -> Path:
    """Returns the place of the registered models."""
    folder: Path = llm.user_dir()  # type: ignore[no-untyped-call]
    return folder / "rocmforge.json"


def read_entries() -> dict[str, Entry]:
    """Returns the registered models, by name."""
    file = entries_file()
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: Entry.model_validate(entry) for name, entry in found.items()}


def write_entries(entries: dict[str, Entry]) -> None:
    """Replaces the registered models."""
    made = {name: entry.model_dump(exclude_defaults=True) for name, entry in sorted(entries.items())}
    entries_file().write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


class Loader(Generic[Kind]):
    """Loads a registered model when it is first used.

    Args:
        kind: `LLM` or `AsyncLLM`.
        entry: The model.
    """

    def __init__(self, kind: type[Kind], entry: Entry) -> None:
        self._kind: Callable[..., Kind] = kind
        self._entry = entry
        self._lock = threading.Lock()
        self._loaded: tuple[Kind, Chat] | None = None

    def get(self) -> tuple[Kind, Chat]:
        """Returns the engine and the way to chat with it."""
        with self._lock:
            if self._loaded is None:
                path = self._entry.chat_template
                template = None if path is None else Path(path).read_text(encoding="utf-8")
                engine = self._kind(self._entry.model, **self._entry.options)
                self._loaded = engine, Chat(engine, template)
            return self._loaded


class Registered(Generic[Kind]):
    """The common part of the two models of an entry.

    Args:
        name: The registered name.
        entry: The model.
    """

    can_stream = True
    supports_schema = True
    supports_tools = True
    Options = SamplingOptions
    kind: type[Kind]

    def __init__(self, name: str, entry: Entry) -> None:
        self.model_id = f"rocmforge/{name}"
        self._loader = Loader(self.kind, entry)


class RocmForge(Registered[LLM], llm.Model):
    """A registered model."""

    kind = LLM

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002 - `llm` gathers the events of a prompt that is not streamed
        response: llm.Response,
        conversation: llm.Conversation | None,  # noqa: ARG002 - `prompt.messages` has its turns
    ) -> Iterator[str | StreamEvent]:
        """Yields the events of an answer."""
        try:
            engine, chat = self._loader.get()
            answer = Answer(chat, prompt)
            for output in engine.stream_chat(answer.messages, answer.params, **answer.options):
                yield from answer.read(output, response)
        except RocmForgeError as error:
            raise llm.ModelError(str(error)) from error


class AsyncRocmForge(Registered[AsyncLLM], llm.AsyncModel):
    """A registered model for asyncio. Concurrent prompts are batched."""

    kind = AsyncLLM

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None,  # noqa: ARG002
    ) -> AsyncGenerator[str | StreamEvent, None]:
        """Yields the events of an answer."""
        try:
            engine, chat = await asyncio.to_thread(self._loader.get)
            answer = Answer(chat, prompt)
            async with contextlib.aclosing(engine.chat(answer.messages, answer.params, **answer.options)) as outputs:
                async for output in outputs:
                    for event in answer.read(output, response):
                        yield event
        except RocmForgeError as error:
            raise llm.ModelError(str(error)) from error


@functools.cache
def models(name: str, entry: str) -> tuple[RocmForge, AsyncRocmForge]:
    """Returns the models of an entry. All look-ups by `llm` get the same ones, and with them the same engine."""
    made = Entry.model_validate_json(entry)
    return RocmForge(name, made), AsyncRocmForge(name, made)


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Registers the models with `llm`."""
    for name, entry in read_entries().items():
        register(*models(name, entry.model_dump_json()))


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """Adds `llm rocmforge`."""
    cli.add_command(commands)


@click.group(name="rocmforge")
def commands() -> None:
    """Models that rocmforge runs in process."""


@commands.command()
@click.argument("model")
@click.option("--name", help="The model is rocmforge/NAME; by default the name of the file.")
@click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A file with a chat template that replaces the one in the model file.",
)
@click.option(
    "options", "-o", "--option", nargs=2, multiple=True, metavar="KEY VALUE", help="An argument of rocmforge.LLM."
)
def add(model: str, name: str | None, chat_template: str | None, options: tuple[tuple[str, str], ...]) -> None:
    """Register MODEL: the path of a GGUF file, hf:OWNER/REPO[:QUANT] or ollama:NAME[:TAG]."""
    if model.startswith(HUB_NAMES):
        name = name or model.partition(":")[2].rpartition("/")[2]
    else:
        path = Path(model).expanduser().resolve()
        if not path.is_file():
            raise click.ClickException(f"{path}: got no file, expected a GGUF file, hf:OWNER/REPO or ollama:NAME")
        model, name = str(path), name or path.stem
    known = inspect.signature(LLM).parameters.keys() - {"model"}
    if unknown := [key for key, _ in options if key not in known]:
        expected = ", ".join(sorted(known))
        raise click.ClickException(f"-o {unknown[0]}: expected an argument of rocmforge.LLM: {expected}")
    values = {key: option_value(text) for key, text in options}
    write_entries(read_entries() | {name: Entry(model=model, chat_template=chat_template, options=values)})
    click.echo(f"rocmforge/{name}")


def option_value(text: str) -> Any:
    """Returns the JSON value of a text; a text that is not JSON is the value itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@commands.command(name="list")
def list_entries() -> None:
    """List the registered models."""
    for name, entry in read_entries().items():
        click.echo(f"rocmforge/{name}\t{entry.model}")


@commands.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a model from the list; its file stays."""
    entries = read_entries()
    if entries.pop(name.removeprefix("rocmforge/"), None) is None:
        raise click.ClickException(f"{name}: got no registered model; `llm rocmforge list` shows them")
    write_entries(entries)
