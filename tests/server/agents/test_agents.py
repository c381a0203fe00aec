"""Coding agents: requests in the shape of those of Claude Code 2.1 and of Codex 0.163, without their texts."""

import json

import anthropic
import openai
import pytest
from calling_model import MAX_TOKENS, MESSAGES, SCHEMA, TEMPLATE, TOOLS, parts
from rocmforge import LLM, SamplingParams
from rocmforge.server.answers.sealed import opened, sealed
from rocmforge.server.chat.turns import in_turns
from server_process import serving

FUNCTION = TOOLS[0]["function"]
MARK = {"type": "ephemeral"}
# The engine gets the conversation as chat templates take it.
PLAIN = [
    {"role": "system", "content": "You are an agent.\nYou work in a folder."},
    {"role": "user", "content": "<reminder>Be brief.</reminder>\nWeather in Rome?\nThere are no skills."},
    *MESSAGES[1:],
]


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, max_model_len=1024, num_threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(llm):
    """The length of the prompt, and the reasoning and the call of the answer."""
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    (output,) = llm.chat(PLAIN, params, chat_template=TEMPLATE, tools=TOOLS)
    return len(output.prompt_token_ids), *parts(output.outputs[0].text)


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = ("--max-model-len", 1024, "--served-model-name", "small", "--chat-template", template)
    with serving(folder, smollm2_path, *arguments) as server:
        yield server


def text(*texts, **more):
    return [{"type": "text", "text": each, **more} for each in texts]


def anthropic_form(hidden):
    """The conversation in blocks, with reasoning shown or hidden in the signatures."""
    made = [
        {"role": "user", "content": text("<reminder>Be brief.</reminder>", "Weather in Rome?")},
        {"role": "system", "content": "There are no skills."},
    ]
    for message in MESSAGES[1:]:
        blocks = text(message["content"]) if message["content"] else []
        if message["role"] == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": blocks}]
        if reasoning_text := message.get("reasoning_content"):
            shown, signature = ("", sealed(reasoning_text)) if hidden else (reasoning_text, "")
            blocks.append({"type": "thinking", "thinking": shown, "signature": signature})
        for call in message.get("tool_calls", []):
            use = {"name": call["function"]["name"], "input": call["function"]["arguments"]}
            blocks.append({"type": "tool_use", "id": call["id"], **use})
        made.append({"role": "user" if message["role"] == "tool" else message["role"], "content": blocks})
    return made


CLAUDE_CODE = {
    "model": "small",
    "max_tokens": MAX_TOKENS,
    "system": text("You are an agent.") + text("You work in a folder.", cache_control=MARK),
    "tools": [{"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": SCHEMA}],
    "metadata": {"user_id": '{"session_id": "1"}'},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "extra_body": {
        "temperature": 0.0,
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    },
    "extra_headers": {"anthropic-beta": "claude-code-20250219,context-management-2025-06-27,effort-2025-11-24"},
    "extra_query": {"beta": "true"},
}


@pytest.fixture
def messages(server):
    with anthropic.Anthropic(base_url=server.url, auth_token="none", max_retries=0) as client:
        yield client.messages


@pytest.mark.parametrize("stream", [True, False])
def test_claude_code(server, messages, expected, stream):
    """It calls a tool, its reasoning is kept though it is not shown, and the answer follows the tool's."""
    length, reasoning_text, call = expected
    asked = CLAUDE_CODE | {"messages": anthropic_form(hidden=True)}
    if stream:
        with messages.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = messages.create(**asked)
    thinking, use = message.content
    assert (thinking.type, thinking.thinking, opened(thinking.signature)) == ("thinking", "", reasoning_text)
    assert (use.type, {"name": use.name, "arguments": use.input}) == ("tool_use", json.loads(call))
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == length
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny", "is_error": False}
    turn = [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result | {"cache_control": MARK}]},
    ]
    answer = messages.create(**asked | {"messages": [*asked["messages"], *turn]})
    assert ([block.text for block in answer.content], answer.stop_reason) == (["Sunny."], "end_turn")
    assert answer.usage.cache_read_input_tokens > 0
    server.settled()


def test_reasoning_is_the_same_shown_or_not(messages):
    counted = {
        hidden: messages.count_tokens(model="small", messages=anthropic_form(hidden)).input_tokens
        for hidden in (False, True)
    }
    assert counted[True] == counted[False]
    foreign = [{"type": "thinking", "thinking": "", "signature": "EqQBCgYIBhgC"}, *text("Hi.")]
    conversations = (
        [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": said}, {"role": "user", "content": "?"}]
        for said in (foreign, "Hi.")
    )
    # Reasoning that another server has hidden cannot be read.
    first, second = (messages.count_tokens(model="small", messages=each).input_tokens for each in conversations)
    assert first == second


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"output_config": {"effort": "most"}}, "output_config.effort: got 'most'"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": 3}}}, "tools": None},
            "output_config.format",
        ),
        (
            {"context_management": {"edits": [{"type": "clear_answers_20990101"}]}},
            "context_management.edits.0.type: got 'clear_answers_20990101'",
        ),
    ],
)
def test_what_no_agent_gets(server, given, said):
    body = {name: value for name, value in CLAUDE_CODE.items() if not name.startswith("extra")}
    response = server.client.post("/v1/messages", json=body | {"messages": anthropic_form(hidden=True)} | given)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


def item(role, *texts):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": [{"type": kind, "text": t} for t in texts]}


def codex_items():
    """The conversation as Codex keeps it, with reasoning in the format that it got."""
    made = [
        item("developer", "You are an agent."),
        item("developer", "You work in a folder."),
        item("user", "<reminder>Be brief.</reminder>"),
        item("user", "Weather in Rome?"),
        item("developer", "There are no skills."),
    ]
    for message in MESSAGES[1:]:
        if reasoning_text := message.get("reasoning_content"):
            made.append({"type": "reasoning", "summary": [], "encrypted_content": sealed(reasoning_text)})
        for call in message.get("tool_calls", []):
            function = call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}
            made.append({"type": "function_call", "call_id": call["id"], **function})
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": message["content"]}
            made.append({"type": "function_call_output", **output})
        elif message["content"]:
            made.append(item(message["role"], message["content"]))
    return made


CODEX = {
    "model": "small",
    "tools": [{"type": "function", "strict": False, "parameters": SCHEMA} | FUNCTION],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a21237-2693-7e72-807b-10ab9ae12000",
    "extra_body": {"client_metadata": {"x-codex-installation-id": "1"}},
    "temperature": 0.0,
    "max_output_tokens": MAX_TOKENS,
}


@pytest.mark.parametrize("stream", [True, False])
def test_codex(server, expected, stream):
    """It calls a function, sends back the reasoning as it got it, and gets its answer."""
    length, reasoning_text, call = expected
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        items = codex_items()
        if stream:
            with client.responses.stream(input=items, **CODEX) as events:
                response = events.get_final_response()
        else:
            response = client.responses.create(input=items, **CODEX)
        assert response.usage.input_tokens == length
        reasoning, found = response.output
        assert opened(reasoning.encrypted_content) == reasoning.content[0].text == reasoning_text
        assert {"name": found.name, "arguments": json.loads(found.arguments)} == json.loads(call)
        items += [
            {"type": "reasoning", "summary": [], "encrypted_content": reasoning.encrypted_content},
            {"type": "function_call", "call_id": found.call_id, "name": found.name, "arguments": found.arguments},
            {"type": "function_call_output", "call_id": found.call_id, "output": "sunny"},
        ]
        response = client.responses.create(input=items, **CODEX)
        assert (response.output_text, response.status) == ("Sunny.", "completed")
        assert response.usage.input_tokens_details.cached_tokens > length
        with pytest.raises(openai.BadRequestError, match=r"include\.0: got 'message\.output_text\.logprob'"):
            client.responses.create(input="Hi.", model="small", include=["message.output_text.logprob"])
    server.settled()


def test_a_broken_call_ends_no_session(server):
    """The model reads what it wrote, and the client's complaint."""
    call = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": '{"city": "Ro'}
    output = {"type": "function_call_output", "call_id": "a", "output": "no JSON"}
    body = {"model": "small", "input": [item("user", "Weather?"), call, output], "max_output_tokens": 1}
    broken = server.client.post("/v1/responses", json=body).raise_for_status().json()
    call["arguments"] = json.dumps({"invalid_arguments": call["arguments"]})
    whole = server.client.post("/v1/responses", json=body).raise_for_status().json()
    assert broken["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def test_turns():
    """A system message behind others is a part of the user's turn; nothing is lost, and nothing else changes."""
    system, user, assistant, tool = (
        {"role": role, "content": role} for role in ("system", "user", "assistant", "tool")
    )
    late = text("user", "system")
    assert in_turns([system, system, user]) == [{"role": "system", "content": text("system", "system")}, user]
    assert in_turns([system, user, system]) == [system, {"role": "user", "content": late}]
    assert in_turns([user, assistant, tool, system]) == [user, assistant, tool, {"role": "user", "content": "system"}]
    assert in_turns([user, system, assistant, user]) == [{"role": "user", "content": late}, assistant, user]
    assert in_turns([system, user, assistant, tool, assistant]) == [system, user, assistant, tool, assistant]
    assert in_turns([]) == []
