"""What comes back for a request."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

PositionLogprobs: TypeAlias = dict[int, tuple[float, int, str | None]]
"""As the engine delivers them: log-probability, rank and text by token id."""

SequenceUpdate: TypeAlias = tuple[
    int, str, list[int], str | None, int | str | None, list[PositionLogprobs] | None, float | None
]
"""Index, text, token ids, finish reason, stop reason, log-probabilities, cumulative log-probability."""

Metrics: TypeAlias = tuple[float, float | None, float | None, float | None, int, int]
"""The fields of `RequestMetrics`."""

Update: TypeAlias = tuple[list[SequenceUpdate], bool, list[PositionLogprobs | None] | None, Metrics]
"""Sequences, whether the request has finished, log-probabilities of the prompt (once), metrics."""


class Logprob(NamedTuple):
    """A token's log-probability at one position."""

    logprob: float
    rank: int
    """1 is the most likely token."""
    decoded_token: str | None
    """`None` for a model without a tokenizer."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of a request, in seconds since it arrived; `None` for what has not happened yet."""

    arrival_time: float
    """Seconds since the Unix epoch."""
    time_in_queue: float | None
    time_to_first_token: float | None
    total_time: float | None
    num_cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    num_preemptions: int


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence; for `output_kind="delta"`, what is new of it."""

    index: int
    """Which of the `n` sequences."""
    text: str
    token_ids: list[int]
    finish_reason: str | None
    """`stop`, `length`, `abort` or `timeout`; `None` while it runs."""
    stop_reason: int | str | None
    """The stop token or stop string that ended it; `None` for the model's own end token."""
    logprobs: list[dict[int, Logprob]] | None
    """Per token: the chosen token first, then the most likely ones."""
    cumulative_logprob: float | None


@dataclass(slots=True)
class RequestOutput:
    """A request and what it has generated so far (or since last time, for deltas)."""

    request_id: str
    prompt: str | None
    """`None` when the prompt was given as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """Per prompt token; nothing precedes the first, whose entry is `None`."""
    metrics: RequestMetrics


class Request:
    """A request under way: what every one of its outputs repeats."""

    __slots__ = ("id", "prompt", "prompt_logprobs", "prompt_token_ids", "request_id")

    def __init__(self, id_: int, request_id: str, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self.id = id_
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    def output(self, update: Update) -> RequestOutput:
        """Wraps what the engine delivered."""
        sequences, finished, prompt_logprobs, metrics = update
        if prompt_logprobs is not None:
            self.prompt_logprobs = [None if entry is None else _named(entry) for entry in prompt_logprobs]
        outputs = [
            CompletionOutput(
                index,
                text,
                token_ids,
                finish_reason,
                stop_reason,
                None if logprobs is None else [_named(entry) for entry in logprobs],
                cumulative_logprob,
            )
            for index, text, token_ids, finish_reason, stop_reason, logprobs, cumulative_logprob in sequences
        ]
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            outputs,
            finished,
            self.prompt_logprobs,
            RequestMetrics(*metrics),
        )


def _named(position: PositionLogprobs) -> dict[int, Logprob]:
    return {token_id: Logprob(*entry) for token_id, entry in position.items()}
