"""Vectors of prompts: the requests for them, and what becomes of their ends."""

import contextlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import PoolingParams, RequestUpdate
from rocmforge.display.progress import bar
from rocmforge.errors import EngineDeadError, RocmForgeError
from rocmforge.isolation import AnyEngine
from rocmforge.prompts import AnyPrompt, prompt_list
from rocmforge.requests.batch import Wanted, feed
from rocmforge.requests.options import RequestOptions, options_list

PoolingName: TypeAlias = Literal["auto", "last", "mean", "cls", "rank"]


def embeddings_wanted(
    prompts: AnyPrompt | Sequence[AnyPrompt],
    params: PoolingParams,
    priority: int | Sequence[int],
    options: RequestOptions,
) -> list[Wanted[PoolingParams]]:
    """The requests for the prompts' vectors."""
    items = prompt_list(prompts)
    of_each = options_list(options, priority, len(items))
    return [Wanted(index, item.without_images(), None, params, of_each[index]) for index, item in enumerate(items)]


def prepare_all(engine: AnyEngine, wanted: Sequence[Wanted[PoolingParams]]) -> list[list[int]]:
    """Token ids of all prompts, each of which can be served."""
    return [one.prepare(engine, alone=len(wanted) == 1) for one in wanted]


def embed(engine: AnyEngine, wanted: Sequence[Wanted[PoolingParams]], *, progress: bool) -> NDArray[np.float32]:
    """The prompts' vectors, in their order."""
    updates: dict[int, RequestUpdate | None] = {}
    with bar("Embedding", unit="prompts", enabled=progress) as draw:
        all_news = feed(engine, wanted, final_only=True, tell=lambda _: draw(len(updates), len(wanted), ""))
        with contextlib.closing(all_news):
            for news in all_news:
                updates[news.wanted.index] = news.update
    return np.stack([vector(updates[one.index]) for one in wanted])


def vector(update: RequestUpdate | None) -> NDArray[np.float32]:
    """The vector of a request that has ended, or an error in its place; `None` for one that has not run."""
    if update is not None and update.embedding is not None:
        return update.embedding
    end = None if update is None else update.completions[0]
    if end is not None and end.finish_reason == "timeout":
        raise TimeoutError("the request's time was over before its vector was there")
    if end is not None and end.error is not None:
        raise RocmForgeError(end.error)
    raise EngineDeadError("the engine is dead: it was closed while requests were running")
