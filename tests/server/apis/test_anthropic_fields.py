"""Every field of Anthropic's own types of requests: it is read, on the list of harmless ones, or refused."""

import json
from typing import get_args, get_type_hints

import anthropic
import pydantic
import pytest
import typing_extensions
from anthropic.types import beta
from anthropic.types.beta import message_count_tokens_params, message_create_params
from rocmforge._rocmforge import JsonBody
from rocmforge.server.anthropic import blocks, settings, tools
from rocmforge.server.anthropic.conversation import MessageParam, TurnConfig, template_messages
from rocmforge.server.anthropic.diagnostics import Diagnostics
from rocmforge.server.anthropic.messages import CountTokensRequest, MessagesRequest
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import read_body
from server_process import serving

HELLO = [{"role": "user", "content": "Say hello."}]
# The client sends them in the head of a request.
IN_THE_HEAD = {"betas", "user_profile_id", "workspace_id"}
# Fields that would change the answer, by our class.
REFUSED = {
    MessagesRequest: {"compaction"},
    CountTokensRequest: {"compaction"},
    settings.OutputConfig: {"task_budget"},
    # Such a tool is left out as a whole, and all its settings with it.
    tools.ServerTool: None,
}
BLOCKS = {
    kind: model
    for model in get_args(get_args(blocks.Block)[0])
    for kind in get_args(model.model_fields["type"].annotation)
}
IN_RESULTS = {
    kind: model
    for model in get_args(get_args(blocks.ResultPart)[0])
    for kind in get_args(model.model_fields["type"].annotation)
}
# Summaries of other servers, and tools that come and go: each would change the answer.
REFUSED_BLOCKS = {"compaction", "tool_addition", "tool_removal"}
PAIRS = [
    (message_create_params.MessageCreateParamsNonStreaming, MessagesRequest),
    (message_create_params.MessageCreateParamsStreaming, MessagesRequest),
    (anthropic.types.message_create_params.MessageCreateParamsNonStreaming, MessagesRequest),
    (message_count_tokens_params.MessageCountTokensParams, CountTokensRequest),
    (beta.BetaUserMessageParam, MessageParam),
    (beta.BetaAssistantMessageParam, MessageParam),
    (beta.BetaSystemMessageParam, MessageParam),
    (beta.BetaSystemMessageOutputConfigParam, TurnConfig),
    (beta.BetaDiagnosticsParam, Diagnostics),
    (beta.BetaOutputConfigParam, settings.OutputConfig),
    (beta.BetaJSONOutputFormatParam, settings.OutputFormat),
    (beta.BetaThinkingConfigEnabledParam, settings.Thinking),
    (beta.BetaThinkingConfigDisabledParam, settings.Thinking),
    (beta.BetaThinkingConfigAdaptiveParam, settings.Thinking),
    (beta.BetaThinkingConfigBetweenToolsParam, settings.Thinking),
    (beta.BetaContextManagementConfigParam, settings.ContextManagement),
    (beta.BetaClearToolUses20250919EditParam, settings.ContextEdit),
    (beta.BetaClearThinking20251015EditParam, settings.ContextEdit),
    (beta.BetaCompact20260112EditParam, settings.ContextEdit),
    (beta.BetaContainerParams, settings.Container),
    (beta.BetaToolChoiceAutoParam, tools.ToolChoice),
    (beta.BetaToolChoiceAnyParam, tools.ToolChoice),
    (beta.BetaToolChoiceToolParam, tools.ToolChoice),
    (beta.BetaToolChoiceNoneParam, tools.ToolChoice),
    (beta.BetaPlainTextSourceParam, blocks.PlainText),
    (beta.BetaContentBlockSourceParam, blocks.DocumentContent),
    (beta.BetaContentBlockSourceParam, blocks.MixedContent),
    (beta.BetaBase64PDFSourceParam, blocks.UnreadDocument),
    (beta.BetaURLPDFSourceParam, blocks.UnreadDocument),
    (beta.BetaFileDocumentSourceParam, blocks.UnreadDocument),
    (beta.BetaBase64ImageSourceParam, blocks.Base64Image),
    (beta.BetaURLImageSourceParam, blocks.UrlImage),
    (beta.BetaFileImageSourceParam, blocks.FileImage),
    (beta.BetaCitationsConfigParamParam, blocks.Citations),
]


def kinds(params):
    """The values that the field `type` of one of Anthropic's types may have."""
    hint = get_type_hints(params)["type"]
    texts = [hint]
    while any(not isinstance(each, str) for each in texts):
        texts = [
            part for each in texts for part in ([each] if isinstance(each, str) else get_args(each)) if part is not None
        ]
        texts = [each for each in texts if each is not type(None)]
    return texts


def members(union):
    """The types of dictionaries in a union of Anthropic's."""
    found = [each for each in get_args(union) if typing_extensions.is_typeddict(each)]
    assert found, union
    return found


def check(params, model):
    """True if each field of a type is a field of ours, or is dropped for a reason that is told."""
    refused = REFUSED.get(model, set())
    if refused is None:
        return
    known = {field.alias or name for name, field in model.model_fields.items()}
    fields = set(get_type_hints(params)) - IN_THE_HEAD
    assert fields - known - set(model.ignored) == refused & fields, (params, model)


@pytest.mark.parametrize(("params", "model"), PAIRS, ids=lambda each: each.__name__)
def test_every_field_has_an_answer(params, model):
    """C19: a field that Anthropic's client can send is read, has a reason to be ignored, or is refused by name."""
    check(params, model)


def test_every_block_has_an_answer():
    """C19: the blocks of messages, and those in the results of tools."""
    for params in members(beta.BetaContentBlockParam):
        for kind in kinds(params):
            if kind not in REFUSED_BLOCKS:
                check(params, BLOCKS[kind])
    for params in members(beta.beta_tool_result_block_param.Content):
        for kind in kinds(params):
            if kind != "browser_state":
                check(params, IN_RESULTS[kind])


def test_every_tool_has_an_answer():
    """C19: tools of the client are functions, those of a server are left out."""
    told = []
    for params in members(beta.BetaToolUnionParam):
        names = get_type_hints(params)
        for kind in kinds(params):
            tool = {"type": kind, "name": "custom"}
            if "input_schema" in names:
                tool["input_schema"] = {"type": "object"}
            made = pydantic.TypeAdapter(tools.AnyTool).validate_python(tool)
            check(params, type(made))
            told += [kind] if not isinstance(made, tools.ServerTool) else []
    assert {kind.rpartition("_")[0] for kind in told} == {"", "bash", "text_editor", "memory", "computer"}


@pytest.mark.parametrize("name", ["compaction", "no_such_field"])
def test_what_is_refused_is_named(name):
    """C19: what would change the answer is an error that names it."""
    body = {"model": "m", "max_tokens": 1, "messages": HELLO, name: {"type": "summarize"}}
    content = JsonBody()
    content.push(json.dumps(body).encode())
    with pytest.raises(ApiError, match="this parameter is not supported") as refused:
        read_body(content, pydantic.TypeAdapter(MessagesRequest))
    assert refused.value.param == name


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    arguments = (smollm2_path, "--max-model-len", 512, "--served-model-name", "small")
    with serving(tmp_path_factory.mktemp("log"), *arguments) as server:
        yield server


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def count(client, messages=HELLO, **others):
    return client.beta.messages.count_tokens(model="small", messages=messages, **others).input_tokens


def test_marks_of_a_cache_are_dropped_anywhere(client):
    """C9: `cache_control` may stand anywhere, with any field of its own."""
    mark = {"type": "ephemeral", "scope": "global", "ttl": "1h"}
    plain = [{"type": "text", "text": "Say hello."}]
    marked = [{"type": "text", "text": "Say hello.", "cache_control": mark, "citations": []}]
    others = {"system": marked, "extra_body": {"cache_control": mark}}
    told = count(client, [{"role": "user", "content": marked}], **others)
    assert told == count(client, [{"role": "user", "content": plain}], system=plain)


def test_harmless_fields_change_nothing(client):
    """C19: the answer is the same with them."""
    greedy = {"model": "small", "max_tokens": 8, "messages": HELLO}
    plain = client.beta.messages.create(**greedy, extra_body={"temperature": 0.0})
    harmless = {
        "service_tier": "auto",
        "speed": "fast",
        "inference_geo": "eu",
        "container": {"id": "container_1", "skills": []},
        "mcp_servers": [],
        "metadata": {"user_id": "someone"},
        "betas": ["context-management-2025-06-27"],
        "thinking": {"type": "between_tools"},
        "context_management": {
            "edits": [{"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 3}}]
        },
        "extra_body": {"temperature": 0.0, "billing_policy": {"type": "billing_policy"}, "fallbacks": "default"},
    }
    answer = client.beta.messages.create(**greedy, **harmless)
    assert answer.content == plain.content
    assert answer.context_management.applied_edits == []
    assert answer.usage.output_tokens_details.thinking_tokens == 0
    counted = client.beta.messages.count_tokens(
        model="small", messages=HELLO, context_management={"edits": [{"type": "clear_thinking_20251015"}]}
    )
    assert counted.context_management.original_input_tokens == counted.input_tokens


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mcp_servers": [{"type": "url", "name": "a", "url": "https://a"}]}, "no mcp_servers"),
        ({"container": {"skills": [{"type": "anthropic", "skill_id": "pdf"}]}}, "no skills: this server runs no code"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}, "output_config.task_budget"),
        ({"tools": [{"type": "browse_20300101", "name": "a"}]}, "a tool of the type custom"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}]},
            "messages.0.content.0.source.url: this model accepts only text",
        ),
        (
            {"messages": [{"role": "user", "content": "Hi.", "clear_at": "never"}]},
            "clear_at and output_config in messages of the role system",
        ),
    ],
)
def test_what_would_change_the_answer_is_refused(server, given, said):
    """C19: it is an error that names the field."""
    body = {"model": "small", "max_tokens": 1, "messages": HELLO} | given
    response = server.client.post("/v1/messages", json=body)
    assert (response.status_code, said in response.json()["error"]["message"]) == (400, True), response.text


def test_what_only_other_servers_can_read_is_left_out(client):
    """C19: blocks of other servers in a history neither end it nor become text."""
    opaque = [
        {"type": "redacted_thinking", "data": "EqQB"},
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
        {"type": "text", "text": "Hello."},
    ]
    plain = [*HELLO, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye."}]
    mixed = [*HELLO, {"role": "assistant", "content": opaque}, {"role": "user", "content": "Bye."}]
    assert count(client, mixed) == count(client, plain)


def test_results_of_tools_keep_a_session_going(client):
    """C19: pictures and documents in a tool's result are told by a note, and texts of all kinds are read."""
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "direct"}}
    found = [
        {"type": "text", "text": "One."},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
        {"type": "document", "source": {"type": "url", "url": "https://a.b/c.pdf"}, "title": "C"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Two."}},
        {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "Three."}]},
        {"type": "tool_reference", "tool_name": "g"},
    ]
    notes = ["[image omitted: this model reads text only]", "C", "[document omitted: this model reads text only]"]
    text = "\n".join(["One.", *notes, "Two.", "T", "S", "Three.", "g"])
    counts = [
        count(
            client,
            [
                *HELLO,
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": content}]},
            ],
        )
        for content in (found, text)
    ]
    assert counts[0] == counts[1]


def test_documents_of_a_user_are_read(client):
    """C19: a document that is text is text."""
    blocks_ = [
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "A."}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "B."}]}},
        {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "C."}]},
    ]
    plain = "T\nA.\nB.\nT\nS\nC."
    told = count(client, [{"role": "user", "content": blocks_}])
    assert told == count(client, [{"role": "user", "content": plain}])


def test_tools_that_another_server_ran_are_calls_and_results():
    """C19: a history from another provider tells the model the same as one of this server's."""
    ran = [
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "EqQB"}],
        },
        {"type": "text", "text": "Found."},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "f", "server_name": "s", "input": {}},
        {
            "type": "mcp_tool_result",
            "tool_use_id": "mcptoolu_1",
            "is_error": True,
            "content": [{"type": "text", "text": "No."}],
        },
    ]

    def call(id_, name, arguments):
        return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}

    found = '{"type": "web_search_result", "title": "T", "url": "u"}'
    messages = [MessageParam.model_validate(each) for each in (*HELLO, {"role": "assistant", "content": ran}, *HELLO)]
    assert template_messages([], messages) == [
        *HELLO,
        {"role": "assistant", "content": "I search.", "tool_calls": [call("srvtoolu_1", "web_search", {"query": "a"})]},
        {"role": "tool", "tool_call_id": "srvtoolu_1", "name": "web_search", "content": found},
        {"role": "assistant", "content": "Found.", "tool_calls": [call("mcptoolu_1", "f", {})]},
        {"role": "tool", "tool_call_id": "mcptoolu_1", "name": "f", "content": "Error: No."},
        *HELLO,
    ]
