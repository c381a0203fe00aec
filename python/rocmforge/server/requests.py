"""Parameters that all endpoints for generation share, and their translation for the engine."""

import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from fastapi import Depends, Request
from pydantic import BeforeValidator, Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from rocmforge._rocmforge import SamplingParams
from rocmforge.errors import InvalidRequestError
from rocmforge.requests.arguments import meanings
from rocmforge.server.answers.generation import Call, Client
from rocmforge.server.bodies import Body
from rocmforge.server.chat.structured import StructuredOutputs
from rocmforge.server.errors import ApiError, short
from rocmforge.server.http.access import check_operator
from rocmforge.server.ignored import CACHED, PADDING, PLACE, RECORDS
from rocmforge.server.models.registry import Models, RequestModels
from rocmforge.server.service import Service

if TYPE_CHECKING:
    from rocmforge.server.config import ServerConfig

TIMEOUT_HEADER = "X-Request-Timeout"


class QueueBody(Body):
    """The parameters of the engine's queue, by vLLM's names."""

    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Lower runs earlier.")
    timeout: float | None = Field(None, gt=0, description="Seconds from now; then the answer ends as it is.")
    cache_salt: str | None = Field(
        None, min_length=1, description="Cached prefixes are shared only with requests of the same salt."
    )

    def call(self, request: Request, id_: str) -> Call:
        """Returns the options of the request to the engine."""
        check_priority(request, self.priority)
        timeout = shortest_timeout(request, self.timeout)
        return Call(request.state.client, id_, self.priority, timeout, self.cache_salt)


def check_priority(request: Request, given: int) -> None:
    """Refuses a priority that is more urgent than a client may set.

    Raises:
        ApiError: The priority is too urgent.
    """
    config: ServerConfig = request.app.state.config
    client: Client = request.state.client
    least = config.min_priority
    if least is None and client.salt is not None:
        least = 0
    if least is not None and given < least and not (client.is_operator and client.salt is not None):
        raise ApiError(
            400,
            f"priority: got {given}, expected at least {least}, the most urgent that a client may have (the server's "
            "min_priority)",
            param="priority",
        )


def shortest_timeout(request: Request, given: float | None) -> float | None:
    """Returns the timeout of a request in seconds: the smaller of its body's and of the header `X-Request-Timeout`.

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
    """Returns the field of a parameter for which the model file may recommend a value."""
    return Field(None, description=MEANINGS[name])


_TOKEN_ID = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)


def _token_ids(bias: Any) -> Any:
    if not isinstance(bias, dict):
        return bias
    for token in bias:
        # With two spellings of one number, one of the two values would be lost.
        if not _TOKEN_ID.fullmatch(token):
            raise ValueError(f"token ids like 42 as keys, not {short(token)}")
    return {int(token): value for token, value in bias.items()}


# Read with the body, since tens of thousands of keys would take the event loop's time.
TokenBias: TypeAlias = Annotated[dict[int, float], BeforeValidator(_token_ids)]


class GenerationBody(QueueBody):
    """The parameters of `SamplingParams` and of the engine's queue, by vLLM's names."""

    # llama.cpp's clients send the last two.
    ignored: ClassVar[Mapping[str, str]] = {"user": RECORDS, "cache_prompt": CACHED, "id_slot": PLACE}

    n: int = Field(1, ge=1, description=MEANINGS["n"])
    temperature: float | None = recommended("temperature")
    top_p: float | None = recommended("top_p")
    top_k: int | None = recommended("top_k")
    min_p: float | None = recommended("min_p")
    repetition_penalty: float | None = recommended("repetition_penalty")
    presence_penalty: float | None = recommended("presence_penalty")
    frequency_penalty: float | None = recommended("frequency_penalty")
    logit_bias: TokenBias | None = recommended("logit_bias")
    seed: int | None = recommended("seed")
    stop: str | list[str] | None = recommended("stop")
    stop_token_ids: list[int] | None = recommended("stop_token_ids")
    min_tokens: int | None = recommended("min_tokens")
    ignore_eos: bool = Field(default=False, description=MEANINGS["ignore_eos"])
    skip_special_tokens: bool = Field(default=True, description=MEANINGS["skip_special_tokens"])
    include_stop_str_in_output: bool = Field(default=False, description=MEANINGS["include_stop_str_in_output"])
    structured_outputs: StructuredOutputs | None = Field(None, description="A constraint on the text.")

    def sampling(self, service: Service, *, max_tokens: int | None, **others: Any) -> SamplingParams:
        """Returns the engine's parameters: the given ones, with the recommendations of the model file as defaults.

        Raises:
            ApiError: A parameter is out of its range, or above the server's limit.
        """
        check_limit("n", self.n, service.config.max_n, "max_n")
        given: dict[str, Any] = {name: getattr(self, name) for name in _SAMPLING}
        if self.structured_outputs is not None:
            given["structured_outputs"] = self.structured_outputs.params()
        return sampling_params(service, max_tokens, **given, **others)


def sampling_params(
    service: Service, max_tokens: int | None, *, stop_name: str = "stop", **given: Any
) -> SamplingParams:
    """Returns the engine's parameters: the given ones, with the recommendations of the model file as defaults.

    Args:
        service: The service of the model.
        max_tokens: Maximum number of tokens; `None` means as many as fit.
        stop_name: The API's name of the stop strings.
        given: Further arguments of `SamplingParams`; `None` means not given.

    Raises:
        ApiError: A parameter is out of its range, or above the server's limit.
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
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


def check_limit(param: str, got: int, limit: int, setting: str) -> None:
    """Refuses a value above the limit that the server's operator has set.

    Raises:
        ApiError: `got` is above `limit`.
    """
    if got > limit:
        raise ApiError(400, f"{param}: got {got}, expected at most {limit} (the server's {setting})", param=param)


# The first element decides that thousands of token ids are not a list of texts; an error for each would take
# milliseconds.
_FIRST_ERROR = Field(fail_fast=True)
# Token ids that are checked at a time, between which other threads get the GIL.
IDS_AT_ONCE = 1 << 14


def _ids_in_pieces(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, list) and len(value) > IDS_AT_ONCE:
        pieces = (value[at : at + IDS_AT_ONCE] for at in range(0, len(value), IDS_AT_ONCE))
        if all(set(map(type, piece)) == {int} for piece in pieces):
            return value
    return validate(value)


Prompts: TypeAlias = Annotated[
    str
    | Annotated[list[str], _FIRST_ERROR]
    | Annotated[list[int], _FIRST_ERROR]
    | Annotated[list[list[int]], _FIRST_ERROR],
    WrapValidator(_ids_in_pieces),
]


def prompt_list(param: str, prompts: Prompts, service: Service) -> Sequence[str | list[int]]:
    """Returns all prompts of a request.

    Raises:
        ApiError: There is no prompt, or there are more than the server's limit.
    """
    given: Any = prompts
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    if not given:
        raise ApiError(400, f"{param}: got an empty list, expected at least one prompt or token id", param=param)
    check_limit(param, len(given), service.config.max_prompts, "max_prompts")
    return given  # type: ignore[no-any-return]


MODEL_MEANING = "A name of `/v1/models`; may be left out where there is one model."


class ModelBody(Body):
    """The name of a model, and names of others that may answer in its place."""

    model: str | None = Field(None, description=MODEL_MEANING)
    models: list[str] | None = Field(
        None, description="Other names: the first that is served answers if `model` is left out or not served."
    )

    def model_name(self, models: Models) -> str | None:
        """Returns the name of the model that answers; `None` for a server's only model.

        Raises:
            ApiError: Only other names are given, and none of them is served.
        """
        if not self.models or self.model in models.names:
            return self.model
        found = next((name for name in self.models if name in models.names), self.model)
        if found is None:
            given, served = ", ".join(map(short, self.models[:SHOWN_NAMES])), ", ".join(models.names)
            raise ApiError(
                404,
                f"models: got {given}, expected one of those that are served: {served}",
                param="models",
                code="model_not_found",
            )
        return found


# Names of a list that an error repeats.
SHOWN_NAMES = 8
STREAM_MEANING = "If true, streams the answer as server-sent events."
STREAM_OPTIONS_MEANING = "`include_usage`: a last event tells the tokens; `continuous_usage_stats`: every event does."


class StreamOptions(Body):
    """Options for the content of a stream besides the text."""

    ignored: ClassVar[Mapping[str, str]] = {"include_obfuscation": PADDING}

    include_usage: bool = Field(default=False, description="A last event tells the number of tokens.")
    continuous_usage_stats: bool = Field(default=False, description="Every event does.")

    @model_validator(mode="after")
    def _continuous_needs_usage(self) -> Self:
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("continuous_usage_stats needs include_usage")
        return self


class CacheOptions(Body):
    """Options of the prefix cache."""

    ignored: ClassVar[Mapping[str, str]] = {
        "comparison_response_id": RECORDS,
        "mode": CACHED,
        "ttl": CACHED,
    }

    # Such a request wants no answer; the first one with the same prompt fills the cache as well.
    prewarm: Literal[False] = False


CACHE_OPTIONS_MEANING = "No option has an effect; `prewarm` is an error."


def _models(request: Request) -> Models:
    models: Models = request.app.state.models
    return models


def _operator(request: Request) -> None:
    check_operator(request.state.client)


OPERATOR = Depends(_operator)
"""With keys, a route with this dependency needs an admin key."""


AllModels = Annotated[Models, Depends(_models)]
"""The models of the application that a route belongs to."""


async def _request_models(request: Request, models: AllModels) -> AsyncGenerator[RequestModels, None]:
    # FastAPI continues here when the answer has been sent.
    with ExitStack() as stack:
        yield RequestModels(models, request, stack)


Served = Annotated[RequestModels, Depends(_request_models)]
"""A request uses the models through this."""
