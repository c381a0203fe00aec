"""Parameters that all ways to ask for a generation share, and what becomes of them."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Self, TypeAlias

from fastapi import Depends, Request
from pydantic import Field, model_validator

from rocmforge._rocmforge import SamplingParams
from rocmforge.arguments import meanings
from rocmforge.errors import InvalidRequestError
from rocmforge.server.bodies import Body
from rocmforge.server.errors import ApiError
from rocmforge.server.generation import Call
from rocmforge.server.models import Models, RequestModels
from rocmforge.server.service import Service
from rocmforge.server.structured import StructuredOutputs

TIMEOUT_HEADER = "X-Request-Timeout"


class QueueBody(Body):
    """The parameters of the engine's queue, by vLLM's names."""

    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Lower runs earlier.")
    timeout: float | None = Field(None, gt=0, description="Seconds from now; then the answer ends as it is.")
    cache_salt: str | None = Field(
        None, min_length=1, description="Cached prefixes are shared only with requests of the same salt."
    )

    def call(self, request: Request, id_: str) -> Call:
        """Says whom the request to the engine is made for, and how urgently."""
        timeout = shortest_timeout(request, self.timeout)
        return Call(request.state.client, id_, self.priority, timeout, self.cache_salt)


def shortest_timeout(request: Request, given: float | None) -> float | None:
    """The seconds that a request has, by its body and by the header `X-Request-Timeout`: the fewer of both.

    Raises:
        ApiError: The header is not a positive number.
    """
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return given
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ApiError(400, f"{TIMEOUT_HEADER}: got {text!r}, expected seconds above 0", param=TIMEOUT_HEADER)
    return seconds if given is None else min(seconds, given)


MEANINGS = meanings(SamplingParams)


def recommended(name: str) -> Any:
    """A parameter that the model's file may recommend a value of."""
    return Field(None, description=MEANINGS[name])


class GenerationBody(QueueBody):
    """The parameters of `SamplingParams` and of the engine's queue, by vLLM's names."""

    n: int = Field(1, ge=1, description=MEANINGS["n"])
    temperature: float | None = recommended("temperature")
    top_p: float | None = recommended("top_p")
    top_k: int | None = recommended("top_k")
    min_p: float | None = recommended("min_p")
    repetition_penalty: float | None = recommended("repetition_penalty")
    presence_penalty: float | None = recommended("presence_penalty")
    frequency_penalty: float | None = recommended("frequency_penalty")
    logit_bias: dict[str, float] | None = recommended("logit_bias")
    seed: int | None = recommended("seed")
    stop: str | list[str] | None = recommended("stop")
    stop_token_ids: list[int] | None = recommended("stop_token_ids")
    min_tokens: int | None = recommended("min_tokens")
    ignore_eos: bool = Field(default=False, description=MEANINGS["ignore_eos"])
    skip_special_tokens: bool = Field(default=True, description=MEANINGS["skip_special_tokens"])
    include_stop_str_in_output: bool = Field(default=False, description=MEANINGS["include_stop_str_in_output"])
    structured_outputs: StructuredOutputs | None = Field(None, description="The form that the text is to have.")
    user: str | None = Field(None, description="For the client's own records; it has no effect.")

    def sampling(self, service: Service, *, max_tokens: int | None, **others: Any) -> SamplingParams:
        """The engine's parameters: those that were given, on top of what the model's file recommends.

        Raises:
            ApiError: One is out of its range, or beyond what the server allows.
        """
        check_limit("n", self.n, service.config.max_n, "max_n")
        given: dict[str, Any] = {name: getattr(self, name) for name in _SAMPLING}
        if self.logit_bias is not None:
            given["logit_bias"] = _token_ids(self.logit_bias)
        if self.structured_outputs is not None:
            given["structured_outputs"] = self.structured_outputs.params()
        return sampling_params(service, max_tokens, **given, **others)


def sampling_params(
    service: Service, max_tokens: int | None, *, stop_name: str = "stop", **given: Any
) -> SamplingParams:
    """The engine's parameters: those that are given and not `None`, on top of what the model's file recommends.

    Args:
        service: What is asked.
        max_tokens: Most tokens; `None` for what has room.
        stop_name: What the API calls the stop strings.
        given: Further arguments of `SamplingParams`.

    Raises:
        ApiError: One is out of its range, or beyond what the server allows.
    """
    stop = given.get("stop")
    check_limit(stop_name, len(stop) if isinstance(stop, list) else 0, service.config.max_stop, "max_stop")
    values: dict[str, Any] = service.engine.recommended_sampling()
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return SamplingParams(max_tokens=max_tokens, **values)
    except InvalidRequestError as error:
        name, colon, rest = str(error).partition(":")
        param = name if name in (*given, "max_tokens") else None
        if param == "stop":
            param = name = stop_name
        raise ApiError(400, name + colon + rest, param=param) from error


_SAMPLING = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


def _token_ids(bias: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError as error:
        raise ApiError(400, f"logit_bias: {error}, expected token ids as keys", param="logit_bias") from error


def check_limit(param: str, got: int, limit: int, setting: str) -> None:
    """Refuses what is more than the server's operator allows.

    Raises:
        ApiError: `got` is above `limit`.
    """
    if got > limit:
        raise ApiError(400, f"{param}: got {got}, expected at most {limit} (the server's {setting})", param=param)


# A prompt of thousands of token ids is not a list of texts, which the first of them tells: errors of the others take
# milliseconds.
_FIRST_ERROR = Field(fail_fast=True)
Prompts: TypeAlias = (
    str
    | Annotated[list[str], _FIRST_ERROR]
    | Annotated[list[int], _FIRST_ERROR]
    | Annotated[list[list[int]], _FIRST_ERROR]
)


def prompt_list(param: str, prompts: Prompts, service: Service) -> Sequence[str | list[int]]:
    """Every prompt of a request.

    Raises:
        ApiError: There is none, or there are more than the server's operator allows.
    """
    given: Any = prompts
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    if not given:
        raise ApiError(400, f"{param}: got an empty list, expected at least one prompt or token id", param=param)
    check_limit(param, len(given), service.config.max_prompts, "max_prompts")
    return given  # type: ignore[no-any-return]


MODEL_MEANING = "A name of `/v1/models`; may be left out where there is one model."
STREAM_MEANING = "Whether the answer comes as server-sent events."
STREAM_OPTIONS_MEANING = "`include_usage`: a last event tells the tokens; `continuous_usage_stats`: every event does."


class StreamOptions(Body):
    """Choices of what a stream tells besides the text."""

    include_usage: bool = Field(default=False, description="A last event tells the number of tokens.")
    continuous_usage_stats: bool = Field(default=False, description="Every event does.")

    @model_validator(mode="after")
    def _continuous_needs_usage(self) -> Self:
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("continuous_usage_stats needs include_usage")
        return self


def _models(request: Request) -> Models:
    models: Models = request.app.state.models
    return models


AllModels = Annotated[Models, Depends(_models)]
"""The models of the application that a route belongs to."""


async def _request_models(request: Request, models: AllModels) -> AsyncGenerator[RequestModels, None]:
    # FastAPI goes on here when the answer has been sent.
    with ExitStack() as stack:
        yield RequestModels(models, request, stack)


Served = Annotated[RequestModels, Depends(_request_models)]
"""A request uses the models through this."""
