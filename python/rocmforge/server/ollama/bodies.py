"""The bodies of Ollama's requests, and what becomes of their options."""

import math
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import Field, field_validator, model_validator
from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from rocmforge._rocmforge import SamplingParams
from rocmforge.arguments import meanings
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.errors import ApiError
from rocmforge.server.models import Models
from rocmforge.server.replies import FunctionTool, function_tool
from rocmforge.server.requests import GenerationBody
from rocmforge.server.rules import ReplyRules
from rocmforge.server.service import Service
from rocmforge.server.structured import made

# Ollama's sampling where neither the request nor the model's file says otherwise.
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}

# Names of Ollama's options by those of `SamplingParams`, where they differ.
_THEIRS = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}

_MEANINGS = meanings(SamplingParams)
# Clients send an empty value of these for none.
_EMPTY_IS_NONE = frozenset({"context", "format", "images", "suffix", "template", "tool_calls", "tools"})
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER, _UNIT = r"\d+(?:\.\d*)?|\.\d+", "ns|us|µs|ms|s|m|h"
_PART = rf"(?P<number>{_NUMBER})(?P<unit>{_UNIT})"
_DURATION = re.compile(rf"[+-]?((?:{_NUMBER})(?:{_UNIT}))+|0")


def _seconds(duration: str) -> float:
    """The seconds of a text such as `1h30m`; not a number where it is none."""
    if not _DURATION.fullmatch(duration):
        return math.nan
    seconds = sum(float(part["number"]) * _SECONDS[part["unit"]] for part in re.finditer(_PART, duration))
    return -seconds if duration.startswith("-") else seconds


class AnyJsonRoute(APIRoute):
    """Takes a body as JSON whatever it is called, as Ollama does: `curl -d` calls it a form.

    Not so for a browser's page, which always sends its origin: a page of another site could send a form unasked.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Makes the function that answers a request."""
        answer = super().get_route_handler()

        async def as_json(request: Request) -> Response:
            if "origin" not in request.headers:
                MutableHeaders(scope=request.scope)["content-type"] = "application/json"
            # A request keeps the headers that it was first asked for.
            return await answer(Request(request.scope, request.receive))

        return as_json


class _OllamaBody(Body):
    @model_validator(mode="before")
    @classmethod
    def _without_empty_values(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item not in ("", []) or key not in _EMPTY_IS_NONE}


class _OllamaContext(Body):
    num_ctx: int | None = Field(default=None, ge=1, description="The context that is needed; at most `max_model_len`.")

    def check(self, service: Service) -> None:
        """Refuses a context that the engine does not have.

        Raises:
            ApiError: It is longer.
        """
        longest = service.engine.max_model_len
        if self.num_ctx is not None and self.num_ctx > longest:
            raise ApiError(
                400, f"options.num_ctx: got {self.num_ctx}, expected at most {longest}, the server's max_model_len"
            )


class OllamaEmbedOptions(_OllamaContext):
    """The options of a request for vectors."""


class OllamaOptions(_OllamaContext):
    """The options of a request that the engine has."""

    num_predict: int = Field(
        default=-1, ge=-2, description="Most tokens to generate; -1 and -2 go on while there is room."
    )
    temperature: float | None = Field(
        default=None, description="0 takes the most likely token, always; by default 0.8."
    )
    top_k: int | None = Field(default=None, description="By default 40.")
    top_p: float | None = Field(default=None, description="By default 0.9.")
    min_p: float | None = Field(default=None, description=_MEANINGS["min_p"])
    seed: int | None = Field(default=None, description=_MEANINGS["seed"])
    stop: str | list[str] | None = Field(default=None, description=_MEANINGS["stop"])
    repeat_penalty: float | None = Field(
        default=None, description="Above 1 makes tokens of prompt and output less likely."
    )
    repeat_last_n: Literal[-1] | None = Field(
        default=None, description="Tokens that `repeat_penalty` looks back at: -1, all of them."
    )
    presence_penalty: float | None = Field(default=None, description=_MEANINGS["presence_penalty"])
    frequency_penalty: float | None = Field(default=None, description=_MEANINGS["frequency_penalty"])

    @field_validator("num_predict")
    @classmethod
    def _some_tokens(cls, value: int) -> int:
        if value == 0:
            raise ValueError("at least 1, or -1 for as many as there is room for")
        return value

    def sampling(self, service: Service, **others: Any) -> SamplingParams:
        """The engine's parameters.

        Raises:
            ApiError: An option is out of its range, or beyond what the server allows.
        """
        self.check(service)
        given = self.model_dump(exclude_none=True, exclude={"num_predict", "num_ctx", "repeat_last_n"})
        if "repeat_penalty" in given:
            given["repetition_penalty"] = given.pop("repeat_penalty")
        recommended = service.engine.recommended_sampling()
        defaults = {name: value for name, value in DEFAULTS.items() if name not in recommended}
        max_tokens = self.num_predict if self.num_predict > 0 else None
        try:
            return GenerationBody(**(defaults | given)).sampling(service, max_tokens=max_tokens, **others)
        except ApiError as error:
            name, colon, fault = str(error.detail).partition(":")
            raise ApiError(error.status_code, f"options.{_THEIRS.get(name, name)}{colon}{fault}") from error


class OllamaModelBody(_OllamaBody):
    """Parameters of all requests to a model."""

    model: str = Field(min_length=1, description="A name of `/api/tags`, with or without `:latest`.")
    keep_alive: float | str | None = Field(
        default=None,
        description="How long the model stays loaded after this request and later ones: seconds, or a text such as "
        "`5m`; 0 unloads it, below 0 is for ever.",
    )

    @field_validator("keep_alive")
    @classmethod
    def _in_seconds(cls, value: float | str | None) -> float | None:
        seconds = _seconds(value) if isinstance(value, str) else value
        if seconds is not None and not math.isfinite(seconds):
            raise ValueError("seconds, or a text such as 5m or 1h30m")
        return seconds


class OllamaEmbedRequest(OllamaModelBody):
    """The body of `/api/embed`."""

    input: str | list[str] = Field(description="A text, or a list of them.")
    truncate: bool = Field(default=True, description="Whether a text that is too long is cut; otherwise it is refused.")
    dimensions: int | None = Field(default=None, ge=1, description="Only so many of each vector's values.")
    options: OllamaEmbedOptions = Field(default_factory=OllamaEmbedOptions, description="`num_ctx` alone.")


class OllamaEmbeddingsRequest(OllamaModelBody):
    """The body of `/api/embeddings`."""

    prompt: str = Field(default="", description="A text; of an empty one there is no vector, but the model is loaded.")
    options: OllamaEmbedOptions = Field(default_factory=OllamaEmbedOptions, description="`num_ctx` alone.")


class _OllamaGenerationBody(OllamaModelBody):
    stream: bool = Field(default=True, description="Whether the answer comes in pieces.")
    options: OllamaOptions = Field(default_factory=OllamaOptions, description="Sampling, and the length of the answer.")
    logprobs: bool = Field(default=False, description="Whether the log-probability of each token is reported.")
    top_logprobs: int = Field(default=0, ge=0, description="Most likely tokens to report beside each token.")
    format: Literal["json"] | JsonObject | None = Field(
        default=None, description="The form of the answer: `json`, or a JSON schema."
    )
    think: bool | Literal["low", "medium", "high"] | None = Field(
        default=None, description="Whether the model thinks, or how much, where its chat template can tell it."
    )

    def rules(self, tools: Sequence[FunctionTool] = ()) -> ReplyRules:
        """The rules of the answer."""
        form = None
        if self.format is not None:
            form = made("format", **({"json_object": True} if self.format == "json" else {"json": self.format}))
        level = self.think if isinstance(self.think, str) else None
        return ReplyRules(
            tools=tools,
            form=form,
            form_param="format",
            thinking=None if isinstance(self.think, str) else self.think,
            thinking_param="think",
            effort=level,
            effort_param="think",
        )

    @model_validator(mode="after")
    def _fits_together(self) -> "_OllamaGenerationBody":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


class OllamaGenerateRequest(_OllamaGenerationBody):
    """The body of `/api/generate`."""

    prompt: str = Field(default="", description="An empty one generates nothing and tells that the model is loaded.")
    system: str | None = Field(default=None, description="What the system says, for the model's chat template.")
    raw: bool = Field(default=False, description="Whether the prompt is taken as it is, without the chat template.")

    @model_validator(mode="after")
    def _raw_is_all(self) -> "OllamaGenerateRequest":
        if self.raw and self.system:
            raise ValueError("raw takes the prompt as it is: leave system out")
        return self


class OllamaFunction(Body):
    """A function that an assistant has called."""

    index: int | None = Field(default=None, description="Its place among the calls; it has no effect.")
    name: str
    arguments: JsonObject = Field(default_factory=dict)


class OllamaCall(Body):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaMessage(_OllamaBody):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = Field(default=None, description="What an assistant thought.")
    tool_calls: list[OllamaCall] | None = Field(default=None, description="What an assistant has called.")
    tool_name: str | None = Field(default=None, description="The tool whose result this is.")
    tool_call_id: str | None = Field(default=None, description="The call whose result this is.")

    def for_template(self) -> dict[str, Any]:
        """The message as Hugging Face's templates expect it."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        others = {"reasoning_content": self.thinking, "name": self.tool_name, "tool_call_id": self.tool_call_id}
        message |= {name: value for name, value in others.items() if value is not None}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{number}",
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for number, call in enumerate(self.tool_calls)
            ]
        return message


class OllamaToolFunction(Body):
    """A function that the client runs."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JsonObject | None = None


class OllamaTool(Body):
    """A tool."""

    type: Literal["function"] = "function"
    function: OllamaToolFunction

    def described(self) -> FunctionTool:
        """Describes it to the chat template."""
        return function_tool(self.function.name, self.function.description, self.function.parameters)


class OllamaChatRequest(_OllamaGenerationBody):
    """The body of `/api/chat`."""

    messages: list[OllamaMessage] = Field(
        default_factory=list,
        description="None tells that the model is loaded; an assistant's as the last is gone on with.",
    )
    tools: list[OllamaTool] | None = Field(default=None, description="Functions that the model may call.")


class OllamaShowRequest(_OllamaBody):
    """The body of `/api/show`."""

    model: str = Field(min_length=1, description="A name of `/api/tags`, with or without `:latest`.")
    verbose: bool = Field(default=False, description="Whether lists, such as the vocabulary, are told too.")


def served_name(models: Models, name: str) -> str:
    """The served name that a client's name stands for; a name that is not served stays as it is."""
    alike = (name, name.removesuffix(":latest"), f"{name}:latest")
    return next((known for known in alike if known in models.names), name)
