"""News of requests: classes of the compiled half, which `_rocmforge` has."""

from typing import final

import numpy as np
from numpy.typing import NDArray

from rocmforge.outputs import Logprob

@final
class RequestUpdate:
    """News of a request since the last update."""

    @property
    def completions(self) -> list[CompletionUpdate]:
        """One update for each sequence with news."""

    @property
    def finished(self) -> bool: ...
    @property
    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """Log-probabilities of the prompt, which come once; per position, `None` at the first."""

    @property
    def embedding(self) -> NDArray[np.float32] | None:
        """The vector of a request for one, which comes with its end."""

    @property
    def metrics(self) -> UpdateMetrics: ...

@final
class CompletionUpdate:
    """News of one of a request's sequences."""

    @property
    def index(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def stop_reason(self) -> int | str | None:
        """The stop token or the stop text."""

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """One dictionary per new token; `None` if log-probabilities are not wanted."""

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
