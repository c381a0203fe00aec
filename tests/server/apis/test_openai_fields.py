"""Fields of the official SDK's requests: each is accepted, ignored by a table, or refused by its name."""

import typing

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.beta import response_create_params as beta_create_params
from openai.types.chat import (
    chat_completion_content_part_image_param,
    chat_completion_content_part_text_param,
    chat_completion_custom_tool_param,
    chat_completion_message_custom_tool_call_param,
    chat_completion_message_function_tool_call_param,
    chat_completion_message_param,
    chat_completion_stream_options_param,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)
from openai.types.responses import (
    input_token_count_params,
    response_compact_params,
    response_create_params,
    response_input_image_content_param,
    response_input_image_param,
    response_input_item_param,
    response_input_text_param,
    response_output_text_param,
    response_text_config_param,
    tool_param,
)
from openai.types.shared_params import function_definition, reasoning
from pydantic import TypeAdapter, ValidationError
from rocmforge.server.chat import chats
from rocmforge.server.errors import from_validation
from rocmforge.server.openai import chat, completions, embeddings
from rocmforge.server.openai.responses import body as response_body
from rocmforge.server.openai.responses import items
from rocmforge.server.openai.responses import tools as response_tools
from rocmforge.server.requests import CacheOptions, StreamOptions

AUDIO = "the model generates only text"
STORED = "conversations and prompts are not kept on the server"
# Fields that would change an answer and cannot be honoured, with the reason.
REFUSED = {
    chat.ChatCompletionRequest: {"audio": AUDIO},
    chats.ChatMessage: {"audio": AUDIO},
    response_body.ResponsesRequest: {"conversation": STORED, "prompt": STORED},
    items.ImagePart: {"file_id": "files are not kept on the server"},
    response_body.InputTokensRequest: {"conversation": STORED, "personality": "chat templates know none"},
}
PAIRS = [
    (chat_create_params.CompletionCreateParamsStreaming, chat.ChatCompletionRequest),
    (chat_completion_content_part_text_param.ChatCompletionContentPartTextParam, chats.TextPart),
    (chat_completion_content_part_image_param.ChatCompletionContentPartImageParam, chats.ImagePart),
    (chat_completion_content_part_image_param.ImageURL, chats.ImageUrl),
    (response_input_image_param.ResponseInputImageParam, items.ImagePart),
    (response_input_image_content_param.ResponseInputImageContentParam, items.ImagePart),
    (beta_create_params.PromptCacheOptions, CacheOptions),
    (chat_completion_stream_options_param.ChatCompletionStreamOptionsParam, StreamOptions),
    (chat_completion_message_function_tool_call_param.ChatCompletionMessageFunctionToolCallParam, chats.ToolCall),
    (chat_completion_message_custom_tool_call_param.ChatCompletionMessageCustomToolCallParam, chats.CustomToolCall),
    (chat_completion_custom_tool_param.ChatCompletionCustomToolParam, chats.CustomDefinition),
    (chat_completion_custom_tool_param.Custom, chats.Custom),
    (function_definition.FunctionDefinition, chats.Function),
    *(
        (message, chats.ChatMessage)
        for message in typing.get_args(chat_completion_message_param.ChatCompletionMessageParam)
    ),
    (completion_create_params.CompletionCreateParamsStreaming, completions.CompletionRequest),
    (embedding_create_params.EmbeddingCreateParams, embeddings.EmbeddingRequest),
    (response_create_params.ResponseCreateParamsStreaming, response_body.ResponsesRequest),
    (response_compact_params.ResponseCompactParams, response_body.CompactRequest),
    (input_token_count_params.InputTokenCountParams, response_body.InputTokensRequest),
    (response_create_params.StreamOptions, response_body.ResponseStreamOptions),
    (reasoning.Reasoning, response_body.ReasoningOptions),
    (response_text_config_param.ResponseTextConfigParam, response_body.TextOptions),
    (response_input_text_param.ResponseInputTextParam, items.TextPart),
    (response_output_text_param.ResponseOutputTextParam, items.TextPart),
]
ITEMS = TypeAdapter(items.InputItem)
TOOLS = TypeAdapter(response_tools.AnyTools)
# Items of OpenAI's own computers, and what asks OpenAI's server for something.
REFUSED_ITEMS = {"compaction_trigger", "computer_call", "computer_call_output", "program", "program_output"}


def fields(typed):
    return typing.get_type_hints(typed, include_extras=False)


def kinds(typed):
    """The values of `type` that a part of a union may have."""
    return strings(fields(typed)["type"])


def strings(hint):
    """The texts among the values of a type."""
    return [hint] if isinstance(hint, str) else [each for part in typing.get_args(hint) for each in strings(part)]


def names(body):
    """The fields that a body takes or ignores."""
    return {each.alias or name for name, each in body.model_fields.items()} | body.ignored.keys()


def check_field(body, field, adapter, base, where):
    try:
        adapter.validate_python(base | {field: {"unlikely": [1]}})
    except ValidationError as error:
        is_unknown = any(each["type"] == "extra_forbidden" and each["loc"][-1] == field for each in error.errors())
    else:
        is_unknown = False
    if field in REFUSED.get(body, {}):
        assert is_unknown, f"{where}.{field}: it is taken now; remove it from REFUSED"
        return
    assert not is_unknown, (
        f"{where} has the field {field!r}, which {body.__name__} does not know: take it, name it in "
        f"{body.__name__}.ignored if it can change no answer, or put it into REFUSED of this test with the reason"
    )


@pytest.mark.parametrize(("typed", "body"), PAIRS, ids=lambda each: each.__name__)
def test_fields_of_the_sdk(typed, body):
    """C19: no field of the official client's requests is unknown."""
    adapter = TypeAdapter(body)
    for field in fields(typed):
        check_field(body, field, adapter, {}, typed.__name__)


@pytest.mark.parametrize(
    "typed", typing.get_args(response_input_item_param.ResponseInputItemParam), ids=lambda each: each.__name__
)
def test_items_of_the_sdk(typed):
    """C19: no kind of item, and no field of one, is unknown."""
    for kind in kinds(typed):
        known = {tag: each for each in typing.get_args(items.AnyItem) for tag in tags(each)}
        if kind in REFUSED_ITEMS:
            assert kind not in known, f"{kind} is taken now; remove it from REFUSED_ITEMS"
            with pytest.raises(ValidationError, match=kind):
                ITEMS.validate_python({"type": kind})
            continue
        assert kind in known, (
            f"the item {kind!r} of {typed.__name__} is not known: take it, or name it in REFUSED_ITEMS"
        )
        if known[kind].model_config["extra"] == "forbid":
            for field in fields(typed):
                check_field(known[kind], field, ITEMS, {"type": kind}, typed.__name__)


def tags(body):
    return typing.get_args(body.model_fields["type"].annotation)


@pytest.mark.parametrize("typed", typing.get_args(tool_param.ToolParam), ids=lambda each: each.__name__)
def test_tools_of_the_sdk(typed):
    """C19: no kind of tool, and no field of one, is unknown."""
    known = {
        tag: each
        for each in (
            response_tools.FunctionTools,
            response_tools.CustomTools,
            response_tools.NamespaceTools,
            response_tools.HostedTools,
        )
        for tag in tags(each)
    }
    for kind in kinds(typed):
        assert kind in known, f"the tool {kind!r} of {typed.__name__} is not known: name it in HostedKind, or take it"
        if known[kind].model_config["extra"] == "forbid":
            for field in fields(typed):
                check_field(known[kind], field, TOOLS, {"type": kind}, typed.__name__)


def test_what_changes_an_answer_is_refused_by_its_name():
    """C19: lenient is not silent: an unknown field is an error that names it."""
    message = {"role": "user", "content": "x"}
    prewarm = {"prompt_cache_options": {"mode": "implicit", "prewarm": True}}
    for body, given, name in (
        (chat.ChatCompletionRequest, {"messages": [message], "audio": {}}, "audio"),
        (chat.ChatCompletionRequest, {"messages": [message], "modalities": ["audio"]}, "modalities.0"),
        (response_body.ResponsesRequest, {"input": "x", "conversation": "c"}, "conversation"),
        (response_body.ResponsesRequest, {"input": "x", "background": True}, "background"),
        (chat.ChatCompletionRequest, {"messages": [message]} | prewarm, "prompt_cache_options.prewarm"),
        (response_body.ResponsesRequest, {"input": "x"} | prewarm, "prompt_cache_options.prewarm"),
        (response_body.ResponsesRequest, {"input": "x", "reasoning": {"context": "all_turns"}}, "reasoning.context"),
        (response_body.ResponsesRequest, {"input": "x", "tools": [{"type": "fuction"}]}, "tools.0"),
    ):
        with pytest.raises(ValidationError) as raised:
            body.model_validate(given)
        place = [{**each, "loc": ("body", *each["loc"])} for each in raised.value.errors()]
        error = from_validation(place, given)
        assert (error.param, name in error.detail) == (name, True), error.detail
