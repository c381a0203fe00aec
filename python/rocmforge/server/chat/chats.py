"""Conversations as clients send them, and as the model's chat template takes them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Discriminator, Field, Tag

from rocmforge._rocmforge import Image
from rocmforge.errors import InvalidRequestError, ModelFileError
from rocmforge.parsing.grammars.inputs import InputGrammar
from rocmforge.prompts import AnyPrompt, ChatOptions, Conversation, Message, with_images
from rocmforge.server.answers.generation import Client
from rocmforge.server.answers.replies import described
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.chat.roles import in_roles, with_tools
from rocmforge.server.chat.toolset import Origin, ToolSet, input_arguments
from rocmforge.server.chat.turns import call_arguments, fitted, with_reasoning
from rocmforge.server.errors import ApiError
from rocmforge.server.ignored import CACHED, RESOLUTION, SHOWN, TOLD_BEFORE
from rocmforge.server.images.sent import (
    SentImage,
    images_after_results,
    placeholders,
    read_images,
    sent_images,
    without_images,
)
from rocmforge.server.lengths import check_conversation
from rocmforge.server.service import Service


class TextPart(Body):
    """A part of a message's content."""

    ignored: ClassVar[Mapping[str, str]] = {
        "cache_control": CACHED,
        "prompt_cache_breakpoint": CACHED,
        "annotations": TOLD_BEFORE,
    }

    type: Literal["text"]
    text: str


class RefusalPart(Body):
    """A part of an assistant's message that refuses an answer."""

    type: Literal["refusal"]
    refusal: str


class ImageUrl(Body):
    """The place of an image."""

    ignored: ClassVar[Mapping[str, str]] = {"detail": RESOLUTION}

    url: str = Field(description="A `data:` URL, or a URL of a host that the operator allows.")


def _as_image_url(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


class ImagePart(Body):
    """An image in a message's content."""

    ignored: ClassVar[Mapping[str, str]] = {"cache_control": CACHED, "prompt_cache_breakpoint": CACHED}

    type: Literal["image_url"]
    image_url: Annotated[ImageUrl, BeforeValidator(_as_image_url, json_schema_input_type=str | ImageUrl)]


Part = Annotated[TextPart | RefusalPart | ImagePart, Field(discriminator="type")]


class CalledFunction(Body):
    """A function that an assistant has called."""

    name: str
    arguments: str = Field(description="A JSON object, as text.")


class CustomInput(Body):
    """A custom tool that an assistant has called."""

    name: str
    input: str


class ToolCall(Body):
    """A call in an assistant's message."""

    ignored: ClassVar[Mapping[str, str]] = {
        "index": "Calls are in order.",
        "provider_specific_fields": TOLD_BEFORE,
    }

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call as Hugging Face's templates expect it."""
        function = {"name": self.function.name, "arguments": call_arguments(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class CustomToolCall(Body):
    """A call of a custom tool in an assistant's message."""

    ignored: ClassVar[Mapping[str, str]] = ToolCall.ignored

    id: str
    type: Literal["custom"]
    custom: CustomInput

    def for_template(self) -> dict[str, Any]:
        """The call as Hugging Face's templates expect it."""
        function = {"name": self.custom.name, "arguments": input_arguments(self.custom.input)}
        return {"id": self.id, "type": "function", "function": function}


def _kind(value: Any) -> Any:
    return value.get("type") or "function" if isinstance(value, dict) else getattr(value, "type", None)


AnyToolCall = Annotated[
    Annotated[ToolCall, Tag("function")] | Annotated[CustomToolCall, Tag("custom")], Discriminator(_kind)
]


class ChatMessage(Body):
    """A message of a conversation."""

    ignored: ClassVar[Mapping[str, str]] = {
        "annotations": TOLD_BEFORE,
        "cache_control": CACHED,
        "phase": TOLD_BEFORE,
        "provider_specific_fields": TOLD_BEFORE,
        "reasoning_details": "The reasoning is in `reasoning` or `reasoning_content`.",
        "thinking_blocks": "The reasoning is in `reasoning` or `reasoning_content`.",
    }

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[AnyToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = Field(None, description="A call in OpenAI's older format.")
    reasoning_content: str | None = Field(None, description="The reasoning of an assistant.")
    reasoning: str | None = Field(None, description="Another name for `reasoning_content`.")
    refusal: str | None = None

    def for_template(self, index: int) -> dict[str, Any]:
        """The message as Hugging Face's templates expect it: arguments of calls are objects there."""
        if self.content is None and not (self.tool_calls or self.function_call or self.refusal):
            raise ApiError(400, f"messages.{index}.content: it is missing", param=f"messages.{index}.content")
        content: Any = self.refusal or ""
        if isinstance(self.content, str):
            content = self.content
        elif self.content is not None:
            content = [_for_template(part, f"messages.{index}.content.{at}") for at, part in enumerate(self.content)]
        # Newer clients use the role `developer` for instructions that templates know as `system`.
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        reasoning_text = self.reasoning if self.reasoning_content is None else self.reasoning_content
        message = {"role": role, "content": content}
        optional = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": reasoning_text}
        message |= {key: value for key, value in optional.items() if value is not None}
        calls = [call.for_template() for call in self.tool_calls or ()]
        if self.function_call is not None:
            calls.append(ToolCall(id=legacy_call_id(index), function=self.function_call).for_template())
        return message | {"tool_calls": calls} if calls else message


def _for_template(part: Part, place: str) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        return SentImage(f"{place}.image_url", url=part.image_url.url).part()
    return {"type": "text", "text": part.text if isinstance(part, TextPart) else part.refusal}


def legacy_call_id(index: int) -> str:
    """The id of a call in OpenAI's older format, which has none."""
    return f"call{index:05d}"


class Function(Body):
    """A function that the client runs."""

    ignored: ClassVar[Mapping[str, str]] = {"cache_control": CACHED, "defer_loading": SHOWN, "allowed_callers": SHOWN}

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JsonObject | None = Field(None, description="A JSON schema of its arguments.")
    strict: bool | None = Field(None, description="If true, arguments must match the schema.")


class FunctionDefinition(Body):
    """A tool."""

    ignored: ClassVar[Mapping[str, str]] = {"cache_control": CACHED}

    type: Literal["function"]
    function: Function


class Grammar(Body):
    """A grammar of texts."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(Body):
    """The format of a custom tool's input."""

    type: Literal["text", "grammar"]
    grammar: Grammar | None = None


class Custom(Body):
    """A tool that takes a text."""

    name: str = Field(min_length=1)
    description: str | None = None
    format: CustomFormat | None = None


class CustomDefinition(Body):
    """A tool that takes a text, in OpenAI's format."""

    ignored: ClassVar[Mapping[str, str]] = {"cache_control": CACHED}

    type: Literal["custom"]
    custom: Custom


AnyTool = Annotated[FunctionDefinition | CustomDefinition, Field(discriminator="type")]


class TemplateBody(Body):
    """Options of the chat template."""

    add_generation_prompt: bool = Field(default=True, description="If true, the prompt begins the assistant's turn.")
    continue_final_message: bool = Field(default=False, description="If true, continues the last message.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the chat template.")
    tools: list[AnyTool] | None = Field(None, description="Functions that the model may call, and custom tools.")

    def template_options(self) -> ChatOptions:
        """Returns the options for the tokenizer."""
        options: ChatOptions = {
            "add_generation_prompt": self.add_generation_prompt and not self.continue_final_message,
            "continue_final_message": self.continue_final_message,
        }
        if self.chat_template_kwargs is not None:
            options["chat_template_kwargs"] = self.chat_template_kwargs
        return options

    def toolset(self) -> ToolSet:
        """Returns the tools as the model sees them."""
        made = ToolSet()
        for tool in self.tools or ():
            if isinstance(tool, FunctionDefinition):
                add_function(made, tool.function)
            else:
                grammar = None if tool.custom.format is None else tool.custom.format.grammar
                input_grammar = None if grammar is None else InputGrammar(grammar.syntax, grammar.definition)
                made.add_custom(Origin(tool.custom.name, is_custom=True), tool.custom.description, input_grammar)
        return made


def add_function(tools: ToolSet, function: Function) -> None:
    """Adds a function to the tools."""
    origin = Origin(function.name)
    tools.add_function(origin, function.description, function.parameters, strict=bool(function.strict))


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as Hugging Face's templates expect them."""
    made = [message.for_template(index) for index, message in enumerate(messages)]
    for index, message in enumerate(messages):
        # In OpenAI's older format a result follows its call, and does not name it by id.
        if message.role == "function":
            made[index].setdefault("tool_call_id", legacy_call_id(index - 1))
    return made


class TemplatePrompt(NamedTuple):
    """The prompt that a chat template makes of a conversation."""

    text: str
    token_ids: list[int]
    images: tuple[Image, ...]
    """The images for the placeholders in the prompt."""
    image_tokens: int
    """The number of tokens that images take in addition to their placeholders."""

    @property
    def plain(self) -> AnyPrompt:
        """The prompt as the engine takes it."""
        return with_images(self.token_ids, self.images)


def template_prompt(
    service: Service, conversation: Conversation, options: ChatOptions, client: Client
) -> TemplatePrompt:
    """The prompt of a conversation, whose messages are as the chat template expects them.

    Args:
        service: The model.
        conversation: The messages.
        options: Options of the chat template.
        client: The client that sends them.

    Raises:
        ApiError: The model has no chat template, the template refuses the conversation, or it is too long. Or an image
            cannot be read.
    """
    check_conversation(service.engine, "messages", conversation)
    if not service.replies.template:
        raise _no_chats(service)
    if service.chat_template is not None:
        options = {"chat_template": service.chat_template, **options}
    needs = service.replies.needs
    if needs.descriptions and options.get("tools"):
        options = {**options, "tools": [described(tool) for tool in options["tools"] or ()]}
    shape = service.replies.chat.shape
    if shape is not None and (not needs.writes_calls or needs.tools == "nowhere"):
        # The markers that the server writes in place of the template are control tokens, as in the model's own calls.
        shape, control_texts = shape.with_placeholders()
        options = {**options, "control_texts": control_texts}
    messages: Sequence[Message] = with_tools(
        fitted(conversation, needs, shape), options.get("tools") or (), needs, shape
    )
    if service.engine.mmproj is None:
        messages = without_images(messages)
    elif not needs.images_in_results:
        messages = images_after_results(messages)
    messages = with_reasoning(in_roles(messages, needs), service.replies.template)
    images = read_images(messages, service.config, service.images, client.salt)
    try:
        prompt = service.engine.tokenizer.encode_chat(placeholders(messages), **options)
    except InvalidRequestError as error:
        raise ApiError(400, str(error), param="messages") from error
    except ModelFileError as error:
        # The log has said at the load what is wrong with it.
        message = (
            f"model: {service.names[0]!r} has an invalid chat template; start the server with --chat-template FILE"
        )
        raise ApiError(500, message, param="model", code="cannot_chat") from error
    ids = prompt.token_ids
    length = _length_with_images(service, ids, messages, images) if images else len(ids)
    longest = service.engine.max_model_len - 1
    if length > longest:
        raise ApiError(
            400,
            f"messages: got {length} tokens, expected at most {longest}; shorten the conversation",
            param="messages",
            code="context_length_exceeded",
        )
    return TemplatePrompt(prompt.text, ids, images, length - len(ids))


def _no_chats(service: Service) -> ApiError:
    """Returns the error for a conversation with a model that has no chat template."""
    name = service.names[0]
    if service.generates:
        message = f"{name!r} has no chat template and cannot chat; send a text to /v1/completions, or start the server "
        message += "with --chat-template FILE"
    else:
        message = f"{name!r} is an embedding model and cannot chat; use /v1/embeddings"
    return ApiError(400, f"model: {message}", param="model", code="cannot_chat")


def _length_with_images(
    service: Service, ids: list[int], messages: Sequence[Message], images: tuple[Image, ...]
) -> int:
    """Returns the number of tokens of a prompt in the engine; if it is too long, a lower bound that is too long, too.

    Raises:
        ApiError: The model refuses an image, or the template has not written a placeholder for each.
    """
    engine, length = service.engine, len(ids) - len(images)
    for sent, image in zip(sent_images(messages), images, strict=True):
        try:
            length += engine.image_tokens(image)
        except InvalidRequestError as error:
            raise ApiError(400, f"{sent.place}: {str(error).removeprefix('image: ')}", param=sent.place) from error
    if length >= engine.max_model_len:
        return length
    try:
        return len(engine.prompt_token_ids(with_images(ids, images)))
    except InvalidRequestError as error:
        if str(error).startswith("prompt length"):
            return engine.max_model_len
        raise ApiError(400, f"messages: {error}", param="messages") from error
