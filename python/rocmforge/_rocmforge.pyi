"""The compiled module. The package `rocmforge` is the public interface; `Engine`, `Inbox` and others are internal."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack, final

import numpy as np
from numpy.typing import NDArray

from rocmforge._devices import (
    device_bandwidth,
    device_cases,
    device_launches,
    device_matrix_library,
    device_repeated_graph,
    device_repeats,
    device_tuning,
    doctor,
    embedded_targets,
)
from rocmforge._images import Image
from rocmforge._params import PoolingParams, SamplingParams, StructuredOutputsParams
from rocmforge._updates import CompletionUpdate, RequestUpdate, UpdateMetrics
from rocmforge.prompts import ChatOptions, TokenIds
from rocmforge.reports import FileReport, StageReport, SupportReport
from rocmforge.settings import EngineSettings
from rocmforge.stats import BlockColumns, MemoryUsage, RequestRecord, ResolvedConfig, Stats

_T = TypeVar("_T")

__version__: str

__all__ = [
    "Accepted",
    "CancelScope",
    "ChatPrompt",
    "CompletionUpdate",
    "Engine",
    "Image",
    "Inbox",
    "JsonBody",
    "PoolingParams",
    "RemoteInbox",
    "RemoteOutputs",
    "RequestUpdate",
    "RingInbox",
    "RingReader",
    "SamplingParams",
    "StructuredOutputsParams",
    "Tokenizer",
    "UpdateMetrics",
    "__version__",
    "check_gguf",
    "chosen_device",
    "default_settings",
    "device_bandwidth",
    "device_cases",
    "device_launches",
    "device_matrix_library",
    "device_repeated_graph",
    "device_repeats",
    "device_support",
    "device_tuning",
    "doctor",
    "embedded_targets",
    "grammar_in_lark",
    "inspect_gguf",
    "log_level",
    "run_helper",
    "set_log_level",
    "uses_gpu",
]

@final
class ChatPrompt:
    """A conversation as a prompt. Immutable."""

    def __new__(cls, text: str, token_ids: Sequence[int]) -> Self: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs__(self) -> tuple[str, list[int]]: ...
    __hash__: None  # type: ignore[assignment]

@final
class Tokenizer:
    """The tokenizer and chat template of a model file, without its weights. Safe to use from many threads."""

    def __new__(cls, model: str | os.PathLike[str]) -> Self: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> list[int]:
        """All tokens that end a generation, sorted."""

    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def has_chat_template(self) -> bool:
        """True if the file has a chat template."""

    @property
    def chat_template(self) -> str | None:
        """The text of the file's chat template, even if the engine cannot run it."""

    @property
    def tool_use_template(self) -> str | None:
        """The text of the template for conversations with tools: the file's `tool_use` template, or its only one."""

    def max_text_bytes(self, num_tokens: int) -> int | None:
        """Returns the maximum length in bytes of the text of this many tokens.

        `None` for vocabularies in which white space and unknown characters take no tokens of their own (WordPiece,
        Unigram). There, a text of any length may be few tokens.
        """

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Returns the token ids of a text.

        Args:
            text: Any text.
            add_special: True to add the tokens that the file requires at the beginning and the end.
            parse_special: True if text that spells a control token becomes that token. Never use it for the text of
                users.
        """

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Returns the token ids of a pair of texts, in the format of ranking models. No text becomes a control token.

        The format is `[CLS] first [SEP] second [SEP]`, with the vocabulary's beginning and end tokens. Vocabularies of
        XLM-RoBERTa have the end token twice between the texts: `<s> first </s></s> second </s>`.

        Raises:
            InvalidRequestError: The tokenizer lacks one of these tokens.
        """

    def decode(self, ids: TokenIds, *, skip_special: bool = False) -> str:
        """Returns the text of token ids; invalid UTF-8 becomes U+FFFD."""

    def decode_bytes(self, ids: TokenIds, *, skip_special: bool = False) -> bytes:
        """Returns the bytes of token ids."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> str:
        """Renders a conversation with the file's chat template or with the given one; see `LLM.chat`.

        Raises:
            InvalidRequestError: The file has no template, or the template refuses the conversation.
            ModelFileError: The file's template uses something that is not supported.
        """

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> ChatPrompt:
        """Returns a conversation as a prompt; see `LLM.chat`.

        A text becomes a control token only if the template itself wrote all of it, or for a well-known role. A part
        `{"type": "image"}` becomes the placeholder of an image.
        """

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]: ...
    def is_special(self, token_id: int) -> bool:
        """True if a token is a control token."""

@final
class Engine:
    """One loaded model."""

    def __new__(
        cls,
        model: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], object] | None = None,
        **settings: Unpack[EngineSettings],
    ) -> Self: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def was_closed(self) -> bool:
        """True if `close` was called; false for an engine that died."""

    def inbox(
        self, event_loop: asyncio.AbstractEventLoop | None = None, callback: Callable[[], object] | None = None
    ) -> Inbox:
        """Returns a queue on which outputs arrive. Without arguments, it serves one blocking call.

        With an event loop, `callback` is called there when requests have new outputs.
        """

    def ring_inbox(self, memory: int, written: int, read: int) -> RingInbox:
        """Returns an inbox for the requests of a parent process; their outputs go into a ring in shared memory.

        Args:
            memory: File descriptor of the shared memory.
            written: File descriptor of the eventfd that signals a write.
            read: File descriptor of the eventfd that signals a read.
        """

    @property
    def mmproj(self) -> str | None:
        """The path of the image encoder in use; `None` for a model that accepts only text."""

    def image_tokens(self, image: Image) -> int:
        """Returns the number of tokens that an image takes in a prompt, without control tokens around it.

        Raises:
            InvalidRequestError: There is no image encoder, or the model refuses the shape of the image.
        """

    def prepare(
        self, prompt: str | TokenIds, params: SamplingParams | PoolingParams, images: Sequence[Image] = ()
    ) -> list[int]:
        """Returns the token ids of a prompt, after a check that it can be served with these parameters.

        A prompt has one placeholder for each image, in order. In the result, the tokens of the image replace it.

        Raises:
            InvalidRequestError: It cannot be served; nothing is queued.
        """

    def abort(self, request_id: str) -> bool: ...
    def config(self) -> ResolvedConfig: ...
    def sampling_defaults(self) -> dict[str, float]: ...
    def stats(self) -> Stats: ...
    def record(self, request_id: str) -> RequestRecord | None: ...
    def memory(self) -> MemoryUsage: ...
    def block_map(self) -> BlockColumns: ...
    def state_map(self) -> BlockColumns: ...
    def reset_prefix_cache(self) -> bool: ...
    def record_kv_events(self, max_events: int) -> None: ...
    def stop_kv_events(self) -> None: ...
    def take_kv_events(self) -> list[tuple[Any, ...] | None]:
        """Returns a tuple for each event, or `None`; see `LoadedModel.take_kv_events`."""

    def prompt_logits(self, prompt_token_ids: TokenIds) -> NDArray[np.float32]: ...
    def check_integrity(self) -> None: ...
    def waiting(self) -> list[tuple[str, str]]: ...
    def describe(self) -> str: ...
    def close(self) -> None: ...

@final
class JsonBody:
    """The bytes of a request's body, until they are read. Other threads run meanwhile, whatever its size."""

    def __new__(cls) -> Self: ...
    def push(self, piece: bytes) -> None:
        """Adds bytes at the end."""

    def __len__(self) -> int: ...
    def read(self, *, max_values: int, max_fields: int, max_containers: int, max_escapes: int) -> Any:
        """Returns the value of the body, and drops its bytes. Nothing is built before all limits are checked.

        Raises:
            InvalidRequestError: It is not JSON, or has more than a limit.
        """

@final
class CancelScope:
    """Runs a function; once the scope is cancelled, the tokenization of long texts stops in it."""

    def __new__(cls) -> Self: ...
    def run(self, function: Callable[[], _T]) -> _T:
        """Returns what `function()` returns.

        Raises:
            concurrent.futures.CancelledError: The scope stopped it.
        """

    def cancel(self) -> None:
        """Stops the work. Callable from any thread; without effect on work that has ended."""

@final
class Accepted:
    """A request that the engine has accepted."""

    def __new__(cls, key: int, request_id: str, prompt_token_ids: Sequence[int]) -> Self: ...
    @property
    def key(self) -> int: ...
    @property
    def request_id(self) -> str: ...
    @property
    def prompt_token_ids(self) -> list[int]: ...

@final
class Inbox:
    """Hands requests to the engine and collects their outputs, merged per request until they are taken."""

    @property
    def num_tokens(self) -> int:
        """Generated tokens of the requests that are still here."""

    def submit(
        self,
        prompt: str | TokenIds,
        params: SamplingParams | PoolingParams,
        *,
        images: Sequence[Image] = (),
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        client: str | None = None,
        final_only: bool = False,
    ) -> Accepted:
        """Hands a request to the engine; `final_only` keeps everything for one delivery at the end.

        A prompt has one placeholder for each image, in order, which the tokens of the image replace.
        """

    def ready(self) -> list[int]:
        """Returns the keys of requests with new outputs."""

    def wait(self, timeout: float) -> list[int]:
        """Returns the same as `ready`, after waiting for new outputs for at most `timeout` seconds."""

    def take(self, key: int, *, raise_errors: bool = True) -> RequestUpdate | None:
        """Returns the new outputs of a request; `None` if there are none.

        Raises:
            RocmForgeError: The request ended with this error. Without `raise_errors`, only `EngineDeadError` is raised,
                and other errors are reported by the sequences that they ended.
        """

    def forget(self, key: int) -> None:
        """Aborts a request, unless it has finished."""

    def close(self) -> None:
        """Aborts all requests that have not finished."""

@final
class RingInbox:
    """Hands the requests of a parent process to the engine of this one."""

    def submit(
        self,
        key: int,
        prompt: str | TokenIds,
        params: SamplingParams | PoolingParams,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        client: str | None = None,
        images: Sequence[Image] = (),
    ) -> tuple[str, list[int]]:
        """Hands over a request that the parent calls `key`; returns its request id and its prompt's token ids."""

    def forget(self, key: int) -> None:
        """Aborts a request, unless it has finished."""

@final
class RemoteOutputs:
    """The outputs of engines in child processes. One child follows another."""

    def __new__(cls) -> Self: ...
    def inbox(
        self,
        tokenizer: Tokenizer | None = None,
        event_loop: asyncio.AbstractEventLoop | None = None,
        callback: Callable[[], object] | None = None,
    ) -> RemoteInbox:
        """Makes an inbox, as `Engine.inbox` does."""

    def read(
        self,
        memory: int,
        written: int,
        read: int,
        gone: Callable[[list[int]], object],
        broken: Callable[[str], object],
    ) -> RingReader:
        """Reads a ring on a separate thread.

        Args:
            memory: As for `Engine.ring_inbox`.
            written: As there.
            read: As there.
            gone: Called on the thread with the keys of requests whose consumer is gone.
            broken: Called with a description if the content of the ring is invalid; nothing more is read.
        """

    def fail(self, reason: str) -> None:
        """Ends every unfinished request with `EngineDeadError`."""

@final
class RingReader:
    """A thread that reads a ring."""

    def finish(self) -> None:
        """Waits until everything written is read, then ends the thread."""

@final
class RemoteInbox:
    """Outputs of a child process, merged per request until they are taken."""

    @property
    def num_tokens(self) -> int:
        """Generated tokens of the requests that are still here. Methods without a docstring match those of `Inbox`."""

    def expect(self, params: SamplingParams | PoolingParams, *, final_only: bool = False) -> int:
        """Adds an entry for a request that is about to be submitted; returns the key that names it in the child."""

    def ready(self) -> list[int]: ...
    def wait(self, timeout: float) -> list[int]: ...
    def take(self, key: int, *, raise_errors: bool = True) -> RequestUpdate | None: ...
    def forget(self, key: int) -> bool:
        """Drops a request; returns true if it was still running."""

    def close(self) -> list[int]:
        """Drops all requests; returns the keys of those that were still running."""

def inspect_gguf(model: str | os.PathLike[str]) -> FileReport:
    """Returns the version, tasks, metadata and tensors of a file."""

def device_support(model: str | os.PathLike[str]) -> SupportReport:
    """Returns the kinds of devices that can run a file; needs no device."""

def check_gguf(
    model: str | os.PathLike[str], progress: Callable[[int, int], object] | None = None
) -> list[StageReport]:
    """Reads and checks a whole file; `progress` is called with the bytes done and the total."""

def default_settings() -> EngineSettings:
    """Returns every setting of an engine with its default."""

def uses_gpu(**settings: Unpack[EngineSettings]) -> bool:
    """True if an engine with these settings would use a GPU. Opens the driver.

    Raises:
        DeviceError: The settings require a GPU, and none is usable.
    """

def grammar_in_lark(grammar: str) -> str:
    """Returns a grammar in the syntax of Lark: Lark unchanged, GBNF translated.

    Raises:
        InvalidRequestError: A GBNF grammar is invalid.
    """

def run_helper() -> None:
    """Does the job on the standard input and ends the process, in an interpreter that was started only for it."""

def set_log_level(level: str) -> None:
    """Shows messages from this level on: `debug`, `info`, `warning`, `error`, or `off`.

    They go to stderr, unless the logger `rocmforge` has handlers. The level replaces that of `ROCMFORGE_LOG`.
    """

def log_level() -> str | None:
    """Returns the level in `ROCMFORGE_LOG`; `None` if it is not set."""

def chosen_device(device: str) -> str:
    """Returns the requested device, available or not: `device`, or for `auto` the environment variable's value.

    Raises:
        InvalidRequestError: The name is unknown; the message lists the names.
    """
