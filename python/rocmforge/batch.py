"""The prompts of one call of `LLM`, on their way through the engine together."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge._rocmforge import SamplingParams
from rocmforge.errors import EngineDeadError, InvalidRequestError, QueueFullError
from rocmforge.isolation import AnyEngine, AnyInbox
from rocmforge.outputs import CompletionOutput, Request, RequestMetrics, RequestOutput
from rocmforge.progress import bar
from rocmforge.prompts import Prompt

# Time between two looks at the progress, and at whether a full queue has room again.
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """One of the prompts of a call, with all that is wanted of it."""

    index: int
    prompt: Prompt
    text: str | None
    """The prompt's text, where that is known."""
    params: SamplingParams
    priority: int
    cache_salt: str | None
    client: str | None

    def prepare(self, engine: AnyEngine, *, alone: bool) -> list[int]:
        """Returns the prompt's token ids; an error says which of several prompts it is about."""
        try:
            return engine.prepare(self.prompt, self.params)
        except (InvalidRequestError, TypeError) as error:
            if alone:
                raise
            raise type(error)(f"prompt {self.index}: {error}") from error

    def submit(self, inbox: AnyInbox, prompt_token_ids: list[int], *, final_only: bool) -> Request:
        """Hands the request to the engine."""
        accepted = inbox.submit(
            prompt_token_ids,
            self.params,
            priority=self.priority,
            cache_salt=self.cache_salt,
            client=self.client,
            final_only=final_only,
        )
        return Request(accepted, self.text, self.params, self.index)

    def aborted(self, prompt_token_ids: list[int]) -> RequestOutput:
        """The output of a request whose engine is closed before it runs."""
        logprobs: list[Any] | None = None if self.params.logprobs is None else []
        outputs = [CompletionOutput(i, "", [], "abort", None, logprobs, None) for i in range(self.params.n)]
        metrics = RequestMetrics(time.time(), None, None, None, 0, 0)
        name = f"prompt-{self.index}"
        return RequestOutput(name, self.text, prompt_token_ids, outputs, True, None, metrics, self.index)


def generate(engine: AnyEngine, wanted: Sequence[Wanted], *, progress: bool) -> list[RequestOutput]:
    """The finished requests, in the order of the prompts."""
    results: dict[int, RequestOutput] = {}
    num_tokens, started = 0, time.monotonic()
    with bar("Generating", unit="requests", enabled=progress) as draw:

        def tell(inbox: AnyInbox) -> None:
            speed = (num_tokens + inbox.num_tokens) / (time.monotonic() - started)
            draw(len(results), len(wanted), f"{speed:.0f} tok/s")

        with contextlib.closing(serve(engine, wanted, final_only=True, tell=tell)) as outputs:
            for output in outputs:
                results[output.index] = output
                num_tokens += sum(len(sequence.token_ids) for sequence in output.outputs)
    return [results[one.index] for one in wanted]


def serve(
    engine: AnyEngine,
    wanted: Sequence[Wanted],
    *,
    final_only: bool = False,
    tell: Callable[[AnyInbox], None] = lambda _: None,
) -> Generator[RequestOutput, None, None]:
    """Feeds the engine as its queue has room, and yields what comes; closing it aborts what has not finished.

    With `final_only` each prompt has one output. The error of a request is raised where it is streamed alone, else its
    output tells of it. `tell` is called after each look at what has come.
    """
    alone = len(wanted) == 1
    waiting = deque((one, one.prepare(engine, alone=alone)) for one in wanted)
    inbox = engine.inbox()
    running: dict[int, Request] = {}
    try:
        while waiting or running:
            while waiting:
                one, prompt_token_ids = waiting[0]
                try:
                    request = one.submit(inbox, prompt_token_ids, final_only=final_only)
                except QueueFullError:
                    break
                except EngineDeadError:
                    # Closed in the middle, the rest ends as those do that run.
                    if len(waiting) == len(wanted) or not engine.was_closed:
                        raise
                    waiting.popleft()
                    yield one.aborted(prompt_token_ids)
                else:
                    waiting.popleft()
                    running[request.id] = request
            for key in inbox.wait(POLL_SECONDS):
                update = inbox.take(key, raise_errors=alone and not final_only)
                if update is not None:
                    request = running.pop(key) if update.finished else running[key]
                    yield request.output(update)
            tell(inbox)
    finally:
        inbox.close()
