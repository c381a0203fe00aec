"""Updates of requests: classes of the compiled module `_rocmforge`."""

from typing import final

import numpy as np
from numpy.typing import NDArray

from rocmforge.outputs import FinishReason, Logprob

@final
class RequestUpdate:
    """The new output of a request since the last update."""

    @property
    def completions(self) -> list[CompletionUpdate]:
        """One update for each sequence with new output."""

    @property
    def finished(self) -> bool: ...
    @property
    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """Log-probabilities of the prompt by position, delivered once; `None` at the first position."""

    @property
    def embedding(self) -> NDArray[np.float32] | None:
        """The vector of an embedding request, delivered at its end."""

    @property
    def metrics(self) -> UpdateMetrics: ...

@final
class CompletionUpdate:
    """The new output of one sequence of a request."""

    @property
    def index(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def stop_reason(self) -> int | str | None:
        """The stop token or the stop text."""

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """One dictionary for each new token; `None` without log-probabilities."""

    @property
    def cumulative_logprob(self) -> float | None: ...
    @property
    def error(self) -> str | None: ...

@final
class UpdateMetrics:
    """The fields of `rocmforge.RequestMetrics`."""

    @property
    def arrival_time(self) -> float: ...
    @property
    def time_in_queue(self) -> float | None: ...
    @property
    def time_to_first_token(self) -> float | None: ...
    @property
    def total_time(self) -> float | None: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def prefix_miss(self) -> str | None: ...
    @property
    def num_preemptions(self) -> int: ...
