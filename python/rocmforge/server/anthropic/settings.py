"""Settings of a request in Anthropic's form beside its conversation: thoughts, effort, the form of the answer."""

from typing import Literal, Self

from pydantic import Field, model_validator

from rocmforge._rocmforge import StructuredOutputsParams
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.replies import ReplyFormat
from rocmforge.server.structured import made


class Thinking(Body):
    """Whether the model thinks, and how long."""

    type: Literal["adaptive", "disabled", "enabled"]
    budget_tokens: int | None = Field(None, ge=1, description="Tokens of thoughts at most, with the type `enabled`.")
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted`: the thoughts are not shown; their block's signature holds them."
    )

    @model_validator(mode="after")
    def _budget_when_enabled(self) -> Self:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("budget_tokens with the type enabled, and with no other")
        return self

    def told(self) -> bool | None:
        """Whether the model is told to think, or not to; `None` where it does as it likes."""
        return None if self.type == "adaptive" else self.type == "enabled"


class OutputFormat(Body):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema", description="The JSON schema.")

    def params(self) -> StructuredOutputsParams:
        """Makes the engine's parameters of it.

        Raises:
            ApiError: The schema is wrong.
        """
        return made("output_config.format", json=self.schema_)


class OutputConfig(Body):
    """How much the model makes of the answer, and in which form it is."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None

    def effort_of(self, replies: ReplyFormat) -> str | None:
        """The effort that the chat template is told. `high` is what Anthropic's API takes where none is given."""
        return None if self.effort == "high" and not replies.knows_efforts else self.effort


class ClearThinking(Body):
    """The thoughts of earlier turns that are left out: none."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Body):
    """Parts of the conversation that are left out: none, which is all that may be asked for."""

    edits: list[ClearThinking] = Field(default_factory=list)
