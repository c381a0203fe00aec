"""The compiled half of rocmforge. `rocmforge` is the public face; `Engine`, `Inbox` and the like are for it alone."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, Unpack, final

import numpy as np
from numpy.typing import NDArray

from rocmforge._devices import (
    device_bandwidth,
    device_cases,
    device_launches,
    device_matrix_library,
    device_repeats,
    doctor,
    embedded_targets,
)
from rocmforge._params import PoolingParams, SamplingParams, StructuredOutputsParams
from rocmforge._updates import CompletionUpdate, RequestUpdate, UpdateMetrics
from rocmforge.prompts import ChatOptions, TokenIds
from rocmforge.reports import FileReport, StageReport, SupportReport
from rocmforge.settings import EngineSettings
from rocmforge.stats import BlockColumns, MemoryUsage, RequestRecord, ResolvedConfig, Stats

__version__: str

__all__ = [
    "Accepted",
    "ChatPrompt",
    "CompletionUpdate",
    "Engine",
    "Inbox",
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
    "device_repeats",
    "device_support",
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
        """Whether the file has a chat template."""

    @property
    def chat_template(self) -> str | None:
        """The text of the file's chat template, even of one that is not understood."""

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: Any text.
            add_special: Whether to add the tokens that the file wants at the beginning and the end.
            parse_special: Whether text that spells a control token becomes it; never do so with what users write.
        """

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Token ids of a pair of texts, as models that rank were trained with it; no text becomes a control token.

        The token of the beginning, the first text, the token of the end, the second text, the token of the end:
        `[CLS] first [SEP] second [SEP]`. Between the texts, vocabularies of XLM-RoBERTa have it twice:
        `<s> first </s></s> second </s>`.

        Raises:
            InvalidRequestError: The tokenizer lacks one of these tokens.
        """

    def decode(self, ids: TokenIds, *, skip_special: bool = False) -> str:
        """The text of token ids; what is no UTF-8 becomes U+FFFD."""

    def decode_bytes(self, ids: TokenIds, *, skip_special: bool = False) -> bytes:
        """The bytes of token ids."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> str:
        """The text of a conversation by the file's chat template, or by the one given; see `LLM.chat`.

        Raises:
            InvalidRequestError: The file has no template, or the template refuses the conversation.
            ModelFileError: The file's template is not understood.
        """

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> ChatPrompt:
        """A conversation as a prompt; see `LLM.chat`.

        A control token is made only where the template itself wrote all of its text, or of a well-known role.
        """

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]: ...
    def is_special(self, token_id: int) -> bool:
        """Whether a token is a control token."""

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
        """Whether `close` was called: not so for an engine that died."""

    def inbox(
        self, event_loop: asyncio.AbstractEventLoop | None = None, callback: Callable[[], object] | None = None
    ) -> Inbox:
        """Returns a queue on which outputs arrive, without arguments for one blocking call.

        With an event loop, `callback` is called there when requests have news.
        """

    def ring_inbox(self, memory: int, written: int, read: int) -> RingInbox:
        """Makes what hands the requests of a parent process to the engine, and writes their outputs into a ring.

        Args:
            memory: Descriptor of the shared memory.
            written: Descriptor of the eventfd that is rung after a write.
            read: Descriptor of the one that the reader rings.
        """

    def prepare(self, prompt: str | TokenIds, params: SamplingParams | PoolingParams) -> list[int]:
        """Token ids of a prompt that can be served with these parameters.

        Raises:
            InvalidRequestError: It cannot; nothing is queued.
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
class Accepted:
    """A request that the engine has taken."""

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
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        client: str | None = None,
        final_only: bool = False,
    ) -> Accepted:
        """Hands a request to the engine; `final_only` keeps everything for one delivery at the end."""

    def ready(self) -> list[int]:
        """Ids of requests with news."""

    def wait(self, timeout: float) -> list[int]:
        """Returns what `ready` does, after waiting for news for at most `timeout` seconds."""

    def take(self, key: int, *, raise_errors: bool = True) -> RequestUpdate | None:
        """Takes the news of a request.

        Raises:
            RocmForgeError: The request ended with an error: that one. Without `raise_errors` only `EngineDeadError`;
                any other is told of the sequences that it ended.
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
    ) -> tuple[str, list[int]]:
        """Hands over a request that the parent calls `key`; its name here and its prompt."""

    def forget(self, key: int) -> None:
        """Aborts a request, unless it has finished."""

@final
class RemoteOutputs:
    """The outputs of engines in child processes, one after the other."""

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
        """Reads a ring on a thread of its own.

        Args:
            memory: As for `Engine.ring_inbox`.
            written: As there.
            read: As there.
            gone: Called on the thread with requests that nobody waits for any more.
            broken: Called with what is wrong, if the ring makes no sense; nothing more is read.
        """

    def fail(self, reason: str) -> None:
        """Ends every request that has not ended with `EngineDeadError`."""

@final
class RingReader:
    """A thread that reads a ring."""

    def finish(self) -> None:
        """Waits until all that was written is read, and ends the thread."""

@final
class RemoteInbox:
    """Outputs of a child process, merged per request until they are taken."""

    @property
    def num_tokens(self) -> int:
        """Generated tokens of the requests that are still here. Methods without a text do what those of `Inbox` do."""

    def expect(self, params: SamplingParams | PoolingParams, *, final_only: bool = False) -> int:
        """Makes the entry of a request that is about to be submitted; the key is its name in the child."""

    def ready(self) -> list[int]: ...
    def wait(self, timeout: float) -> list[int]: ...
    def take(self, key: int, *, raise_errors: bool = True) -> RequestUpdate | None: ...
    def forget(self, key: int) -> bool:
        """Drops a request; whether it was still running."""

    def close(self) -> list[int]:
        """Drops all requests; those that were still running."""

def inspect_gguf(model: str | os.PathLike[str]) -> FileReport:
    """Version, tasks, metadata and tensors of a file."""

def device_support(model: str | os.PathLike[str]) -> SupportReport:
    """The devices that a file runs on, found without one."""

def check_gguf(
    model: str | os.PathLike[str], progress: Callable[[int, int], object] | None = None
) -> list[StageReport]:
    """Reads and checks a whole file; `progress` is called with the bytes that are done, and all."""

def default_settings() -> EngineSettings:
    """Every setting of an engine with its default."""

def uses_gpu(**settings: Unpack[EngineSettings]) -> bool:
    """Whether an engine with these settings would use a GPU. Opens the driver.

    Raises:
        DeviceError: A GPU is asked for that is not usable.
    """

def grammar_in_lark(grammar: str) -> str:
    """Returns a grammar in the syntax of Lark as it is, and one in the syntax of GBNF in that of Lark.

    Raises:
        InvalidRequestError: A grammar in the syntax of GBNF that is wrong.
    """

def run_helper() -> None:
    """Does the job on the standard input and ends the process: for an interpreter that was started for it alone."""

def set_log_level(level: str) -> None:
    """Shows messages from this level on: `debug`, `info`, `warning`, `error`, or `off`.

    They go to stderr, unless the logger `rocmforge` has handlers. What `ROCMFORGE_LOG` says no longer counts.
    """

def log_level() -> str | None:
    """The level that `ROCMFORGE_LOG` asks for; `None` where it is not set."""

def chosen_device(device: str) -> str:
    """The name of the device that is asked for, be there one or not: `device`, or for `auto` what the environment says.

    Raises:
        InvalidRequestError: It is none; the message lists the names.
    """
