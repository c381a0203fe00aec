"""The prompts of one call of `LLM`, on their way through the engine together."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rocmforge._rocmforge import Accepted, Image, PoolingParams, RequestUpdate, SamplingParams
from rocmforge.display.progress import bar
from rocmforge.errors import EngineDeadError, InvalidRequestError, QueueFullError
from rocmforge.isolation import AnyEngine, AnyInbox
from rocmforge.outputs import CompletionOutput, Request, RequestMetrics, RequestOutput, RequestOutputs
from rocmforge.prompts import Prompt
from rocmforge.replies import ReplyReader
from rocmforge.requests.options import RequestOptions
from rocmforge.requests.submission import prepared

# Time between two looks at the progress, and at whether a full queue has room again.
POLL_SECONDS = 0.1


Params = TypeVar("Params", SamplingParams, PoolingParams)


@dataclass(frozen=True, slots=True)
class Wanted(Generic[Params]):
    """One prompt of a call, with its parameters."""

    index: int
    prompt: Prompt
    text: str | None
    """The prompt's text, where that is known."""
    params: Params
    options: RequestOptions
    reader: ReplyReader | None = None
    """Reads answers as messages, for a conversation."""
    images: tuple[Image, ...] = ()
    """The images for the placeholders in the prompt."""

    def prepare(self, engine: AnyEngine, *, alone: bool) -> list[int]:
        """Returns the prompt's token ids; an error says which of several prompts it is about."""
        try:
            return prepared(engine, self.prompt, self.params, self.images)
        except (InvalidRequestError, TypeError) as error:
            if alone:
                raise
            raise type(error)(f"prompt {self.index}: {error}") from error

    def submit(self, inbox: AnyInbox, prompt_token_ids: list[int], *, final_only: bool) -> Accepted:
        """Submits the request to the engine."""
        return inbox.submit(
            prompt_token_ids,
            self.params,
            images=self.images,
            final_only=final_only,
            **self.options,
        )


@dataclass(frozen=True, slots=True)
class News(Generic[Params]):
    """An update of one of the prompts of a call."""

    wanted: Wanted[Params]
    prompt_token_ids: list[int]
    accepted: Accepted | None
    update: RequestUpdate | None
    """`None`, as `accepted` is, for a prompt whose engine was closed before it ran."""


def generate(engine: AnyEngine, wanted: Sequence[Wanted[SamplingParams]], *, progress: bool) -> RequestOutputs:
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
    return RequestOutputs(results[one.index] for one in wanted)


def serve(
    engine: AnyEngine,
    wanted: Sequence[Wanted[SamplingParams]],
    *,
    final_only: bool = False,
    tell: Callable[[AnyInbox], None] = lambda _: None,
) -> Generator[RequestOutput, None, None]:
    """Yields the outputs of prompts as they come, as `feed` does; with `final_only` each prompt has one output."""
    requests: dict[int, Request] = {}
    with contextlib.closing(feed(engine, wanted, final_only=final_only, tell=tell)) as all_news:
        for news in all_news:
            one = news.wanted
            if news.accepted is None or news.update is None:
                yield _aborted(one, news.prompt_token_ids)
                continue
            if one.index not in requests:
                requests[one.index] = Request(news.accepted, one.text, one.params, one.index, one.reader)
            yield requests[one.index].output(news.update)
            if news.update.finished:
                del requests[one.index]


def _aborted(one: Wanted[SamplingParams], prompt_token_ids: list[int]) -> RequestOutput:
    """The output of a request whose engine is closed before it runs."""
    logprobs: list[Any] | None = None if one.params.logprobs is None else []
    outputs = [CompletionOutput(i, "", [], "abort", None, logprobs, None) for i in range(one.params.n)]
    metrics = RequestMetrics(time.time(), None, None, None, 0, None, 0)
    return RequestOutput(f"prompt-{one.index}", one.text, prompt_token_ids, outputs, True, None, metrics, one.index)


def feed(
    engine: AnyEngine,
    wanted: Sequence[Wanted[Params]],
    *,
    final_only: bool,
    tell: Callable[[AnyInbox], None],
) -> Generator[News[Params], None, None]:
    """Feeds the engine as its queue has room, and yields what comes; closing it aborts what has not finished.

    With `final_only` there are news of each prompt once. The error of a request is raised where it is streamed alone,
    else its news tell of it. `tell` is called after each look at what has come.
    """
    alone = len(wanted) == 1
    waiting = deque((one, one.prepare(engine, alone=alone)) for one in wanted)
    inbox = engine.inbox()
    running: dict[int, News[Params]] = {}
    try:
        while waiting or running:
            while waiting:
                one, prompt_token_ids = waiting[0]
                try:
                    accepted = one.submit(inbox, prompt_token_ids, final_only=final_only)
                except QueueFullError:
                    break
                except EngineDeadError:
                    # Closed in the middle, the rest ends as those do that run.
                    if len(waiting) == len(wanted) or not engine.was_closed:
                        raise
                    waiting.popleft()
                    yield News(one, prompt_token_ids, None, None)
                else:
                    waiting.popleft()
                    running[accepted.key] = News(one, prompt_token_ids, accepted, None)
            for key in inbox.wait(POLL_SECONDS):
                update = inbox.take(key, raise_errors=alone and not final_only)
                if update is not None:
                    news = running.pop(key) if update.finished else running[key]
                    yield replace(news, update=update)
            tell(inbox)
    finally:
        inbox.close()
