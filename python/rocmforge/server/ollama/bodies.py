"""The bodies of Ollama's requests, and what becomes of their options."""

import math
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Literal

from fastapi import Request
from pydantic import Field, field_validator, model_validator
from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from rocmforge._rocmforge import SamplingParams
from rocmforge.requests.arguments import meanings
from rocmforge.server.answers.replies import FunctionTool, function_tool
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.chat.rules import ReplyRules
from rocmforge.server.chat.structured import made
from rocmforge.server.chat.turns import CallArguments
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.images.sent import SentImage
from rocmforge.server.models.registry import Models
from rocmforge.server.requests import GenerationBody
from rocmforge.server.service import Service

# Ollama's sampling where neither the request nor the model's file says otherwise.
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}

# Names of Ollama's options by those of `SamplingParams`, where they differ.
_THEIRS = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}

# The values at which penalties have no effect.
_NO_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

_MEANINGS = meanings(SamplingParams)
# Clients send an empty value of these for none.
_EMPTY_IS_NONE = frozenset({"context", "format", "images", "suffix", "template", "tool_calls", "tools"})
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER, _UNIT = r"\d+(?:\.\d*)?|\.\d+", "ns|us|µs|ms|s|m|h"
_PART = rf"(?P<number>{_NUMBER})(?P<unit>{_UNIT})"
_DURATION = re.compile(rf"[+-]?((?:{_NUMBER})(?:{_UNIT}))+|0")


def _seconds(duration: str) -> float:
    """Returns the seconds of a text such as `1h30m`; NaN for other texts."""
    if not _DURATION.fullmatch(duration):
        return math.nan
    seconds = sum(float(part["number"]) * _SECONDS[part["unit"]] for part in re.finditer(_PART, duration))
    return -seconds if duration.startswith("-") else seconds


class AnyJsonRoute(BodyRoute):
    """Reads a body as JSON for any content type, as Ollama does, since `curl -d` sends a form's content type.

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


_LOADED = "The operator's engine settings decide how a model is loaded."
_LOADING = {
    "num_ctx": "The context is always the server's `max_model_len`.",
    **dict.fromkeys(
        (
            "numa",
            "num_batch",
            "num_gpu",
            "main_gpu",
            "low_vram",
            "f16_kv",
            "logits_all",
            "vocab_only",
            "use_mmap",
            "use_mlock",
            "embedding_only",
            "num_thread",
        ),
        _LOADED,
    ),
}


class OllamaOptions(Body):
    """The options of a request that the engine has."""

    ignored: ClassVar[Mapping[str, str]] = {
        **_LOADING,
        "num_keep": "No token of the context is ever dropped.",
        "mirostat_tau": "It belongs to `mirostat`.",
        "mirostat_eta": "It belongs to `mirostat`.",
        "penalize_newline": "Ollama itself no longer reads it.",
        "tfs_z": "Ollama itself no longer reads it.",
    }

    num_predict: int = Field(default=-1, ge=-2, description="Maximum number of tokens; -1 and -2: as many as fit.")
    temperature: float | None = Field(default=None, description="0 always takes the most likely token; by default 0.8.")
    top_k: int | None = Field(default=None, description="By default 40.")
    top_p: float | None = Field(default=None, description="By default 0.9.")
    min_p: float | None = Field(default=None, description=_MEANINGS["min_p"])
    seed: int | None = Field(default=None, description=_MEANINGS["seed"])
    stop: str | list[str] | None = Field(default=None, description=_MEANINGS["stop"])
    repeat_penalty: float | None = Field(
        default=None, description="Above 1 makes tokens of prompt and output less likely."
    )
    repeat_last_n: int | None = Field(
        default=None,
        ge=-1,
        description="Tokens that penalties consider: all (-1, or at least the context length) or none (0).",
    )
    presence_penalty: float | None = Field(default=None, description=_MEANINGS["presence_penalty"])
    frequency_penalty: float | None = Field(default=None, description=_MEANINGS["frequency_penalty"])

    mirostat: Literal[0] | None = Field(default=None, description="0: Mirostat sampling is not supported.")
    typical_p: float | None = Field(default=None, ge=1, le=1, description="1: typical sampling is not supported.")

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
        kept_back = {"num_predict", "repeat_last_n", "mirostat", "typical_p"}
        given = self.model_dump(exclude_none=True, exclude=kept_back)
        if "repeat_penalty" in given:
            given["repetition_penalty"] = given.pop("repeat_penalty")
        recommended = service.engine.recommended_sampling()
        if self.repeat_last_n == 0:
            given |= _NO_PENALTIES
        elif self.repeat_last_n is not None and 0 < self.repeat_last_n < service.engine.max_model_len:
            set_ = [name for name, none in _NO_PENALTIES.items() if (recommended | given).get(name, none) != none]
            if set_:
                raise ApiError(
                    400,
                    f"options.repeat_last_n: got {self.repeat_last_n}, expected -1 or 0: penalties "
                    f"({', '.join(_THEIRS.get(name, name) for name in set_)}) look back at all tokens, or at none",
                    param="options.repeat_last_n",
                )
        defaults = {name: value for name, value in DEFAULTS.items() if name not in recommended}
        max_tokens = self.num_predict if self.num_predict > 0 else None
        try:
            return GenerationBody(**(defaults | given)).sampling(service, max_tokens=max_tokens, **others)
        except ApiError as error:
            name, colon, fault = str(error.detail).partition(":")
            raise ApiError(error.status_code, f"options.{_THEIRS.get(name, name)}{colon}{fault}") from error


class OllamaEmbedOptions(Body):
    """The options of an embedding request."""

    ignored: ClassVar[Mapping[str, str]] = {
        name: reason for name, reason in OllamaOptions.ignored.items() if name != "num_ctx"
    } | dict.fromkeys(OllamaOptions.model_fields, "Embedding does not sample.")
    num_ctx: int | None = Field(default=None, ge=1, description="Maximum tokens of a text; longer texts are cut.")


_CUT = "Prompts that are too long are refused, and answers end at the context length; nothing is cut."


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
    truncate: bool = Field(default=True, description="If true, cuts a text that is too long; otherwise it is refused.")
    dimensions: int | None = Field(default=None, ge=1, description="Number of values to keep of each vector.")
    options: OllamaEmbedOptions = Field(
        default_factory=OllamaEmbedOptions, description="`num_ctx` alone has an effect."
    )


class OllamaEmbeddingsRequest(OllamaModelBody):
    """The body of `/api/embeddings`."""

    prompt: str = Field(default="", description="A text; of an empty one there is no vector, but the model is loaded.")
    options: OllamaEmbedOptions = Field(
        default_factory=OllamaEmbedOptions, description="`num_ctx` alone has an effect."
    )


class _OllamaGenerationBody(OllamaModelBody):
    ignored: ClassVar[Mapping[str, str]] = {"truncate": _CUT, "shift": _CUT}

    stream: bool = Field(default=True, description="If true, the answer is streamed.")
    options: OllamaOptions = Field(default_factory=OllamaOptions, description="Sampling, and the length of the answer.")
    logprobs: bool = Field(default=False, description="If true, reports the log-probability of each token.")
    top_logprobs: int = Field(default=0, ge=0, description="Number of most likely tokens to report for each token.")
    format: Literal["json"] | JsonObject | None = Field(
        default=None, description="The format of the answer: `json`, or a JSON schema."
    )
    think: bool | Literal["low", "medium", "high", "max"] | None = Field(
        default=None, description="Turns reasoning on or off, or sets its effort, if the chat template supports it."
    )

    def rules(self, tools: Sequence[FunctionTool] = ()) -> ReplyRules:
        """The rules of the answer."""
        constraint = None
        if self.format is not None:
            constraint = made("format", **({"json_object": True} if self.format == "json" else {"json": self.format}))
        level = self.think if isinstance(self.think, str) else None
        return ReplyRules(
            tools=tools,
            constraint=constraint,
            constraint_param="format",
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
    suffix: str | None = Field(
        default=None, description="The text after the answer, for models trained to fill in the middle."
    )
    raw: bool = Field(default=False, description="If true, the prompt is used as it is, without the chat template.")
    images: list[str] | None = Field(default=None, description="Files of images in base64, which precede the prompt.")

    @model_validator(mode="after")
    def _raw_is_all(self) -> "OllamaGenerateRequest":
        if self.raw and self.system:
            raise ValueError("raw takes the prompt as it is: leave system out")
        if self.suffix is not None and (self.raw or self.system or self.think or self.images):
            raise ValueError("suffix takes the text before it as it is: leave raw, system, think and images out")
        return self


class OllamaFunction(Body):
    """A function that an assistant has called."""

    index: int | None = Field(default=None, description="Its place among the calls; it has no effect.")
    name: str
    arguments: CallArguments = Field(default_factory=dict)


class OllamaCall(Body):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaMessage(_OllamaBody):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[str] | None = Field(default=None, description="Files of images in base64, which precede the text.")
    thinking: str | None = Field(default=None, description="The reasoning of an assistant.")
    tool_calls: list[OllamaCall] | None = Field(default=None, description="What an assistant has called.")
    tool_name: str | None = Field(default=None, description="The tool whose result this is.")
    name: str | None = Field(default=None, description="The older name of `tool_name`.")
    tool_call_id: str | None = Field(default=None, description="The call whose result this is.")

    def for_template(self, index: int) -> dict[str, Any]:
        """The message as Hugging Face's templates expect it."""
        made = content(self.content, self.images, f"messages.{index}.images")
        message: dict[str, Any] = {"role": self.role, "content": made}
        others = {
            "reasoning_content": self.thinking,
            "name": self.tool_name or self.name,
            "tool_call_id": self.tool_call_id,
        }
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


def content(text: str, images: Sequence[str] | None, place: str) -> str | list[dict[str, Any]]:
    """Returns the content of a message: a text, or parts if there are images.

    Args:
        text: The text.
        images: Files in base64.
        place: The parameter that has them, for errors.
    """
    if not images:
        return text
    sent = [SentImage(f"{place}.{at}", content=image).part() for at, image in enumerate(images)]
    return [*sent, {"type": "text", "text": text}] if text else sent


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
        description="No messages: loads the model. A last message of the assistant is continued.",
    )
    tools: list[OllamaTool] | None = Field(default=None, description="Functions that the model may call.")


class _OllamaNamed(_OllamaBody):
    """A request about a model, which older clients call `name`."""

    model: str = Field(min_length=1, description="A name of `/api/tags`, with or without `:latest`; also as `name`.")

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not value.get("name"):
            return value
        others = {key: item for key, item in value.items() if key != "name"}
        return others if others.get("model") else others | {"model": value["name"]}


class OllamaShowRequest(_OllamaNamed):
    """The body of `/api/show`."""

    verbose: bool = Field(default=False, description="If true, includes lists such as the vocabulary.")


class OllamaPullRequest(_OllamaNamed):
    """The body of `/api/pull`."""

    ignored: ClassVar[Mapping[str, str]] = {
        "insecure": "The operator's hub settings decide how the hub is reached.",
        "username": "The operator's hub settings decide how the hub is reached.",
        "password": "The operator's hub settings decide how the hub is reached.",
    }
    stream: bool = Field(default=True, description="If true, progress is streamed.")


def served_name(models: Models, name: str) -> str:
    """Returns the served name for a client's name; an unknown name is returned unchanged."""
    alike = (name, name.removesuffix(":latest"), f"{name}:latest")
    return next((known for known in alike if known in models.names), name)
