"""Options of a request, on their way from a call to the engine's queue."""

from collections.abc import Sequence
from typing import TypedDict

from rocmforge.prompts import priority_list


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of an inbox's `submit` that callers choose; `AsyncLLM.generate` describes them."""

    request_id: str | None
    priority: int
    timeout: float | None
    cache_salt: str | None
    client: str | None


def options_list(options: RequestOptions, priority: int | Sequence[int], count: int) -> list[RequestOptions]:
    """Lists the options of each of `count` prompts, which share all but their priorities."""
    return [{**options, "priority": one} for one in priority_list(priority, count)]
