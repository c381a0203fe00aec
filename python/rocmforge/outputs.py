"""Results of a request."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rocmforge._rocmforge import (
    Accepted,
    CompletionUpdate,
    RequestUpdate,
    SamplingParams,
    UpdateMetrics,
)
from rocmforge.display.notebook import table

if TYPE_CHECKING:
    from rocmforge.parsing import Message
    from rocmforge.replies import ReplyReader


FinishReason: TypeAlias = Literal["stop", "length", "abort", "timeout", "error"]
"""Why a sequence ended: an end token or a stop string, a token limit, a cancellation, a deadline, or an error."""


class RequestOutputKind(StrEnum):
    """The content of each output of a stream. The plain strings are accepted as well."""

    CUMULATIVE = "cumulative"
    """All tokens and text so far."""
    DELTA = "delta"
    """Tokens and text since the last output."""
    FINAL_ONLY = "final_only"
    """Everything in one output, at the end."""


class Logprob(NamedTuple):
    """A token's log-probability at one position."""

    logprob: float
    rank: int
    """1 is the most likely token."""
    decoded_token: str | None
    """`None` for a model without a tokenizer."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of a request, in seconds since its arrival; `None` for events that have not happened yet."""

    arrival_time: float
    """Seconds since the Unix epoch."""
    time_in_queue: float | None
    time_to_first_token: float | None
    total_time: float | None
    num_cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    prefix_miss: str | None
    """Why the cached prefix was not longer; `None` until the first token.

    - `last_block`: all full blocks before the last token were cached. The last token is always computed.
    - `new`: the next block was not in the cache since the cache was last empty.
    - `evicted`: the next block was in the cache. It, or a block or state that it needs, was evicted.
    - `forgotten`: the next block is not in the cache. Too many blocks were evicted to know if it ever was.
    - `no_snapshot`: the next block is in the cache, but no snapshot of the recurrent states after it.
    - `host_memory`: the next block or snapshot is in host memory. It was evicted again before the request started.
    - `files`: the next block or snapshot is in a file, and host memory had no room for it.
    - `unreadable`: the file of the next block or snapshot had vanished or was damaged.
    - `all_positions`: there was no lookup, because the request needs results for every position.
    - `disabled`: there was no lookup, because the prefix cache is off."""
    num_preemptions: int


class _Readable:
    """A slot for the parser of the text; it is not a field of the output."""

    __slots__ = ("_reader",)
    _reader: "ReplyReader | Message | None"


@dataclass(slots=True)
class CompletionOutput(_Readable):
    """One generated sequence; with `output_kind="delta"`, its new part."""

    index: int
    """The number of the sequence among the `n` of its request, from 0."""
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    """Why the sequence ended; `None` while it runs."""
    stop_reason: int | str | None
    """The stop token or stop string that ended it; `None` for the model's own end token."""
    logprobs: list[dict[int, Logprob]] | None
    """One entry per token: the chosen token first, then the most likely ones."""
    cumulative_logprob: float | None
    error: str | None = None
    """The error of a sequence with finish reason `error`."""

    def finished(self) -> bool:
        """True if the sequence has ended."""
        return self.finish_reason is not None

    @property
    def message(self) -> "Message":
        """The text as a message: `content`, `reasoning_content` and `tool_calls`; parsed at each access.

        The chat template of the call determines the parts. The output of a plain prompt is all content. With
        `output_kind="delta"`, the message covers only this piece; use `rocmforge.parsing.OutputParser` for streams.
        """
        from rocmforge.parsing import Message  # noqa: PLC0415 - programs that only complete text do without it

        reader = getattr(self, "_reader", None)
        if isinstance(reader, Message):
            return reader
        return Message(self.text or None, None) if reader is None else reader.read(self)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # A copy in another process has no tokenizer to parse its text.
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return None, state if getattr(self, "_reader", None) is None else state | {"_reader": self.message}

    def _repr_html_(self) -> str:
        return table(f"CompletionOutput {self.index}", [("text", self.text), ("state", _state(self))])


@dataclass(slots=True)
class RequestOutput:
    """A request and its output so far; for deltas, its output since the last one."""

    request_id: str
    prompt: str | None
    """`None` when the prompt was given as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """One entry per prompt token; nothing precedes the first, whose entry is `None`."""
    metrics: RequestMetrics
    index: int = 0
    """The number of the prompt among those of one call, from 0."""

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return self.metrics.num_cached_tokens

    def _repr_html_(self) -> str:
        asked = f"{len(self.prompt_token_ids)} tokens, {self.num_cached_tokens} of them from the prefix cache"
        rows = [("prompt", asked if self.prompt is None else f"{self.prompt}\n({asked})")]
        rows += [(f"output {one.index}", f"{one.text}\n({_state(one)})") for one in self.outputs]
        times = {"first token": self.metrics.time_to_first_token, "total": self.metrics.total_time}
        rows.append(("seconds", ", ".join(f"{name} {time:.3g}" for name, time in times.items() if time is not None)))
        return table(f"RequestOutput {self.request_id}", rows)


# Most outputs of a call that a notebook shows.
SHOWN = 20


class RequestOutputs(list[RequestOutput]):
    """The outputs of a call, in the order of its prompts: a list with a view for notebooks."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each sequence, for `pandas.DataFrame` and `polars.DataFrame`."""
        return [
            {
                "index": output.index,
                "sequence": one.index,
                "prompt": output.prompt,
                "text": one.text,
                "finish_reason": one.finish_reason,
                "prompt_tokens": len(output.prompt_token_ids),
                "cached_tokens": output.num_cached_tokens,
                "tokens": len(one.token_ids),
                "seconds": output.metrics.total_time,
            }
            for output in self
            for one in output.outputs
        ]

    def _repr_html_(self) -> str:
        rows = []
        for output in self[:SHOWN]:
            asked = f"{len(output.prompt_token_ids)} tokens" if output.prompt is None else output.prompt
            rows.append((asked, "\n".join(f"{one.text}\n({_state(one)})" for one in output.outputs)))
        more = f", the first {SHOWN} of them" if len(self) > SHOWN else ""
        return table(f"{len(self)} requests{more}", rows)


class Request:
    """A running request: the values that all of its outputs repeat."""

    __slots__ = ("_reader", "_so_far", "id", "index", "prompt", "prompt_logprobs", "prompt_token_ids", "request_id")

    def __init__(
        self,
        accepted: Accepted,
        prompt: str | None,
        params: SamplingParams,
        index: int = 0,
        reader: "ReplyReader | None" = None,
    ) -> None:
        self._reader = reader
        self.id = accepted.key
        self.index = index
        self.request_id = accepted.request_id
        self.prompt = prompt
        self.prompt_token_ids = accepted.prompt_token_ids
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        # The engine hands over each token once; who wants all so far gets it from here, one copy of a list per output
        # and no token converted twice.
        self._so_far: list[CompletionOutput] | None = None
        if params.output_kind == "cumulative":
            self._so_far = [_nothing_yet(index, params) for index in range(params.n)]

    def output(self, update: RequestUpdate) -> RequestOutput:
        """Returns the output for an update of the engine."""
        if update.prompt_logprobs is not None:
            self.prompt_logprobs = update.prompt_logprobs
        outputs = [_completion(new) for new in update.completions]
        if self._so_far is not None:
            for new in outputs:
                extend(self._so_far[new.index], new)
            outputs = [_copy(whole) for whole in self._so_far]
        if self._reader is not None:
            for one in outputs:
                one._reader = self._reader  # type: ignore[misc]  # noqa: SLF001 - the slot is in the base class
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            outputs,
            update.finished,
            self.prompt_logprobs,
            _metrics(update.metrics),
            self.index,
        )


def _state(one: CompletionOutput) -> str:
    """Describes the sequence's length, and how it ended."""
    end = one.finish_reason or "unfinished"
    reason = "" if one.stop_reason is None else f" ({one.stop_reason!r})"
    return f"{len(one.token_ids)} tokens, {end}{reason}" + (f": {one.error}" if one.error else "")


def _nothing_yet(index: int, params: SamplingParams) -> CompletionOutput:
    return CompletionOutput(index, "", [], None, None, None if params.logprobs is None else [], None)


def extend(whole: CompletionOutput, new: CompletionOutput) -> None:
    """Appends the new part of a sequence to its earlier parts."""
    whole.text += new.text
    whole.token_ids += new.token_ids
    if whole.logprobs is not None and new.logprobs is not None:
        whole.logprobs += new.logprobs
    whole.finish_reason, whole.stop_reason, whole.error = new.finish_reason, new.stop_reason, new.error
    whole.cumulative_logprob = new.cumulative_logprob


def _copy(whole: CompletionOutput) -> CompletionOutput:
    """Returns a copy with new lists; their entries are shared by all outputs of the request."""
    return CompletionOutput(
        whole.index,
        whole.text,
        whole.token_ids.copy(),
        whole.finish_reason,
        whole.stop_reason,
        None if whole.logprobs is None else whole.logprobs.copy(),
        whole.cumulative_logprob,
        whole.error,
    )


def _completion(new: CompletionUpdate) -> CompletionOutput:
    return CompletionOutput(
        new.index,
        new.text,
        new.token_ids,
        new.finish_reason,
        new.stop_reason,
        new.logprobs,
        new.cumulative_logprob,
        new.error,
    )


def _metrics(metrics: UpdateMetrics) -> RequestMetrics:
    return RequestMetrics(
        metrics.arrival_time,
        metrics.time_in_queue,
        metrics.time_to_first_token,
        metrics.total_time,
        metrics.num_cached_tokens,
        metrics.prefix_miss,
        metrics.num_preemptions,
    )
