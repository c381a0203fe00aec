"""How long a new request surely waits, as far as that can be told."""

import time
from collections import deque
from collections.abc import Sequence

# Seconds between two readings at least: a rate over less is chance.
READING_SECONDS = 1.0
# Readings that are kept: the fastest of them counts.
NUM_READINGS = 120
# A queue may move faster than it ever did, since prompts may be cached and requests may be aborted.
MARGIN = 2.0


class Pace:
    """The rate at which prompts leave the queue, from the engine's counter of their tokens."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._rates: deque[float] = deque(maxlen=NUM_READINGS)

    def read(self, prompt_tokens: int, now: float | None = None) -> None:
        """Reads the counter, unless the last reading is very recent."""
        now = time.monotonic() if now is None else now
        if self._last is None:
            self._last = now, prompt_tokens
            return
        passed = now - self._last[0]
        if passed >= READING_SECONDS:
            if prompt_tokens > self._last[1]:
                self._rates.append((prompt_tokens - self._last[1]) / passed)
            self._last = now, prompt_tokens

    def least_wait(self, lengths: Sequence[int]) -> float:
        """Seconds that prompts of these lengths take at least, at twice the fastest rate; 0 while none is known."""
        return sum(lengths) / (MARGIN * max(self._rates)) if self._rates else 0.0
