"""Conversations as clients send them, and as the model's chat template takes them."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from rocmforge._rocmforge import ChatPrompt
from rocmforge.errors import InvalidRequestError
from rocmforge.prompts import ChatOptions, Conversation
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.errors import ApiError
from rocmforge.server.replies import FunctionTool, function_tool
from rocmforge.server.service import Service
from rocmforge.server.turns import call_arguments


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """A function that an assistant has called."""

    name: str
    arguments: str = Field(description="A JSON object, as text.")


class ToolCall(Body):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call as Hugging Face's templates expect it."""
        function = {"name": self.function.name, "arguments": call_arguments(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="What an assistant thought.")
    refusal: str | None = None

    def for_template(self, index: int) -> dict[str, Any]:
        """The message as Hugging Face's templates expect it: arguments of calls are objects there."""
        if self.content is None and not (self.tool_calls or self.refusal):
            raise ApiError(400, f"messages.{index}.content: it is missing", param=f"messages.{index}.content")
        content: Any = self.refusal or ""
        if isinstance(self.content, str):
            content = self.content
        elif self.content is not None:
            content = [part.model_dump() for part in self.content]
        # Newer clients call the developer's what templates know as instructions of the system.
        message = {"role": "system" if self.role == "developer" else self.role, "content": content}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message


class Function(Body):
    """A function that the client runs."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JsonObject | None = Field(None, description="A JSON schema of its arguments.")
    strict: bool | None = Field(None, description="Whether arguments have to fit the schema.")

    def described(self) -> FunctionTool:
        """Describes it to the chat template."""
        return function_tool(self.name, self.description, self.parameters)


class FunctionDefinition(Body):
    """A tool."""

    type: Literal["function"]
    function: Function


class TemplateBody(Body):
    """Options of the chat template."""

    add_generation_prompt: bool = Field(default=True, description="Whether the prompt begins the assistant's turn.")
    continue_final_message: bool = Field(default=False, description="Whether the last message is gone on with.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the chat template.")
    tools: list[FunctionDefinition] | None = Field(None, description="Functions that the model may call.")

    def template_options(self) -> ChatOptions:
        """Makes options of the tokenizer of them."""
        options: ChatOptions = {
            "add_generation_prompt": self.add_generation_prompt and not self.continue_final_message,
            "continue_final_message": self.continue_final_message,
        }
        if self.chat_template_kwargs is not None:
            options["chat_template_kwargs"] = self.chat_template_kwargs
        return options


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as Hugging Face's templates expect them."""
    return [message.for_template(index) for index, message in enumerate(messages)]


def template_prompt(service: Service, conversation: Conversation, options: ChatOptions) -> ChatPrompt:
    """The prompt of a conversation, whose messages are as the chat template expects them.

    Raises:
        ApiError: The model has no chat template, the template refuses the conversation, or it is too long.
    """
    if service.chat_template is not None:
        options = {"chat_template": service.chat_template, **options}
    try:
        prompt = service.engine.tokenizer.encode_chat(conversation, **options)
    except InvalidRequestError as error:
        raise ApiError(400, str(error), param="messages") from error
    longest = service.engine.max_model_len - 1
    if len(prompt.token_ids) > longest:
        raise ApiError(
            400,
            f"messages: got {len(prompt.token_ids)} tokens, expected at most {longest}; shorten the conversation",
            param="messages",
            code="context_length_exceeded",
        )
    return prompt
