"""Bodies of OpenAI's Responses API."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from rocmforge._rocmforge import SamplingParams
from rocmforge.server.bodies import Body, Text
from rocmforge.server.chat.rules import ReplyRules
from rocmforge.server.chat.structured import TextFormat
from rocmforge.server.chat.toolset import ToolSet
from rocmforge.server.ignored import CACHED, HOSTED, MODERATION, PADDING, RECORDS, TIER, VERBOSITY
from rocmforge.server.openai.responses.items import AnyItem, InputItem, ToolsItem, UpdateItem
from rocmforge.server.openai.responses.tools import AnyTools, toolset
from rocmforge.server.openai.tool_choice import ResponseToolChoice, chosen, tool_rules
from rocmforge.server.requests import (
    CACHE_OPTIONS_MEANING,
    STREAM_MEANING,
    CacheOptions,
    ModelBody,
    QueueBody,
    check_limit,
    recommended,
    sampling_params,
)
from rocmforge.server.service import Service


class TextOptions(Body):
    """The format of the answer."""

    ignored: ClassVar[Mapping[str, str]] = {"verbosity": VERBOSITY}

    format: TextFormat | None = None


class ReasoningOptions(Body):
    """The reasoning of the model."""

    ignored: ClassVar[Mapping[str, str]] = {"generate_summary": "Reasoning is returned whole."}

    effort: Text | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="Reasoning is returned whole.")
    context: Literal["auto"] | None = Field(None, description="The chat template decides which reasoning it keeps.")
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Body):
    """Options of a stream."""

    ignored: ClassVar[Mapping[str, str]] = {"include_obfuscation": PADDING}


def _as_items(value: Any) -> Any:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


Input = Annotated[list[InputItem], BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem])]
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""Parts that clients may ask for; an answer here has only log-probabilities and the encrypted reasoning."""

_CACHE = {"prompt_cache_retention": CACHED, "service_tier": TIER}
_NO_IMAGES = "Answers have no images."


class ConversationBody(QueueBody, ModelBody):
    """A conversation."""

    input: Input = Field(default_factory=list, description="A text, or items of a conversation, the oldest first.")
    instructions: Text | None = Field(None, description="The system prompt of this request alone.")
    previous_response_id: str | None = Field(None, description="A stored answer, which the conversation continues.")


class CompactRequest(ConversationBody):
    """The body of `/v1/responses/compact`."""

    ignored: ClassVar[Mapping[str, str]] = _CACHE | {
        "image": _NO_IMAGES,
        "prompt_cache_key": CACHED,
        "prompt_cache_options": CACHED,
    }


class PromptBody(ConversationBody):
    """A conversation and the rules of its answer."""

    tools: list[AnyTools] | None = Field(
        None, description="Functions, custom tools and namespaces of them; OpenAI's own tools are left out."
    )
    tool_choice: ResponseToolChoice = Field(
        "auto",
        description="`required` or a function forces a call; `allowed_tools` restricts the tools.",
    )
    parallel_tool_calls: bool = Field(default=True, description="If true, allows more than one call.")
    reasoning: ReasoningOptions | None = Field(
        None, description="`effort`: how much the model reasons, where its chat template has a variable for it."
    )
    text: TextOptions | None = Field(None, description="`format`: the format of the answer, such as a JSON schema.")
    truncation: Literal["auto", "disabled"] = Field(
        "disabled",
        description="`auto` leaves out the first turns of a conversation that is too long; `disabled` refuses it.",
    )

    def toolset(self, items: Sequence[AnyItem]) -> ToolSet:
        """Returns the tools of the request and of its items, as the model sees them."""
        added = [tool for item in items if isinstance(item, ToolsItem) for tool in item.tools]
        return toolset([*(self.tools or ()), *added])

    def rules(self, tools: ToolSet, items: Sequence[AnyItem]) -> ReplyRules:
        """Returns the rules of the answer."""
        choice, allowed = chosen(self.tool_choice, tools)
        text_format = None if self.text is None else self.text.format
        effort = None if self.reasoning is None else self.reasoning.effort
        for item in items:
            if isinstance(item, UpdateItem):
                text_format = text_format if item.text is None else item.text.format
                effort = effort if item.reasoning is None else item.reasoning.effort or effort
        return replace(
            tool_rules(choice, allowed, tools),
            parallel=self.parallel_tool_calls,
            constraint=None if text_format is None else text_format.params(),
            constraint_param="text.format",
            effort=effort,
            effort_param="reasoning.effort",
        )


class InputTokensRequest(PromptBody):
    """The body of `/v1/responses/input_tokens`."""


class ResponsesRequest(PromptBody):
    """The body of `/v1/responses`."""

    ignored: ClassVar[Mapping[str, str]] = _CACHE | {
        "access_programs": RECORDS,
        "background_options": "Answers are not made in the background.",
        "client_metadata": RECORDS,
        "context_management": "Only `/v1/responses/compact` shortens conversations.",
        "image": _NO_IMAGES,
        "max_tool_calls": HOSTED,
        "moderation": MODERATION,
        "safety_identifier": RECORDS,
    }

    input: Input = Field(min_length=1, description="A text, or items of a conversation, the oldest first.")
    store: bool = Field(default=True, description="If true, the answer is stored.")
    max_output_tokens: int | None = Field(None, ge=1, description="Maximum tokens; by default as many as fit.")
    temperature: float | None = recommended("temperature")
    top_p: float | None = recommended("top_p")
    top_logprobs: int = Field(
        0, ge=0, description="Number of most likely tokens to report for each token of the answer's text."
    )
    include: list[Includable] | None = Field(
        None,
        description="`message.output_text.logprobs`: the log-probability of each token of the answer's text. "
        "`reasoning.encrypted_content`: reasoning also as a text that a client sends back unchanged.",
    )
    prompt_cache_key: Text | None = Field(None, description="Given back with the answer; all prefixes are cached.")
    prompt_cache_options: CacheOptions | None = Field(None, description=CACHE_OPTIONS_MEANING)
    background: Literal[False] = Field(default=False, description="Answers are not made in the background.")
    stream: bool = Field(default=False, description=STREAM_MEANING)
    stream_options: ResponseStreamOptions | None = Field(None, description="No option has an effect.")
    metadata: dict[Text, Text] | None = Field(None, description="Given back with the answer.")
    user: Text | None = Field(None, description="Given back with the answer.")

    @property
    def reports_logprobs(self) -> bool:
        """True if the answer's text has log-probabilities."""
        return self.top_logprobs > 0 or "message.output_text.logprobs" in (self.include or ())

    def sampling(self, service: Service) -> SamplingParams:
        """The engine's parameters.

        Raises:
            ApiError: One is out of its range, or above the server's limit.
        """
        check_limit("top_logprobs", self.top_logprobs, service.config.max_logprobs, "max_logprobs")
        return sampling_params(
            service,
            self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            logprobs=self.top_logprobs if self.reports_logprobs else None,
            output_kind="delta" if self.stream else "final_only",
        )
