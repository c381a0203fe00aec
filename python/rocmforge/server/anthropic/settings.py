"""Settings of a request in Anthropic's format: reasoning, effort, structured output, context management."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rocmforge._rocmforge import StructuredOutputsParams
from rocmforge.server.answers.replies import ServedFormat
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.chat.structured import made
from rocmforge.server.ignored import HOSTED

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Thinking(Body):
    """Turns reasoning on or off, and limits it."""

    ignored: ClassVar[Mapping[str, str]] = {"block_binding": "Reasoning is returned to the model as it was sent."}
    type: Literal["adaptive", "between_tools", "disabled", "enabled"]
    budget_tokens: int | None = Field(None, ge=1, description="Maximum reasoning tokens, with the type `enabled`.")
    display: Literal["summarized", "omitted", "updates"] | None = Field(
        None, description="`omitted`: reasoning is not shown; its block's signature contains it."
    )

    @model_validator(mode="after")
    def _budget_when_enabled(self) -> Self:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("budget_tokens with the type enabled, and with no other")
        return self

    def told(self) -> bool | None:
        """True if reasoning is on, false if it is off, `None` if the model decides."""
        return None if self.as_it_likes else self.type == "enabled"

    @property
    def as_it_likes(self) -> bool:
        """True if the model decides when to reason. Nothing can limit its reasoning to the time between two calls."""
        return self.type in ("adaptive", "between_tools")


class OutputFormat(Body):
    """The format of the answer."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema", description="The JSON schema.")

    def params(self) -> StructuredOutputsParams:
        """Returns the format as parameters of the engine.

        Raises:
            ApiError: The schema is invalid.
        """
        return made("output_config.format", json=self.schema_)


class OutputConfig(Body):
    """The reasoning effort and the format of the answer."""

    effort: Effort | None = None
    format: OutputFormat | None = None


def told_effort(effort: Effort | None, replies: ServedFormat) -> str | None:
    """Returns the effort for the chat template. `high` is the default of Anthropic's API."""
    return None if effort == "high" and not replies.knows_efforts else effort


class ContextEdit(Body):
    """An edit that would drop a part of a long conversation: the server drops none."""

    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "keep",
            "trigger",
            "clear_at_least",
            "clear_tool_inputs",
            "exclude_tools",
            "instructions",
            "pause_after_compaction",
        ),
        "Conversations are kept whole, and the answer says so.",
    )
    type: Literal["clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112"]


class ContextManagement(Body):
    """Edits that would drop parts of the conversation."""

    edits: list[ContextEdit] = Field(default_factory=list)


class Container(Body):
    """A container in which a server's tools run code. This server has none, so nothing runs in it."""

    ignored: ClassVar[Mapping[str, str]] = {"id": HOSTED}
    skills: list[JsonObject] = Field(default_factory=list)

    @model_validator(mode="after")
    def _no_skills(self) -> Self:
        if self.skills:
            raise ValueError("no skills: this server runs no code")
        return self
