"""Requests in the public form of Claude Code: the prefix cache keeps every turn, and each of its models is served."""

import json

import anthropic
import pytest
from calling_model import TEMPLATE
from rocmforge.server.anthropic.blocks import TextBlock
from rocmforge.server.anthropic.conversation import MessageParam, template_messages, turn_effort, without_billing_header
from server_process import serving

HELLO = [{"role": "user", "content": "Say hello."}]
BLOCK = 16
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [
    {"name": "Read", "description": "Reads a file.", "input_schema": SCHEMA, "eager_input_streaming": True},
    {"type": "web_search_20260318", "name": "web_search", "max_uses": 8},
    {"type": "bash_20250124", "name": "bash"},
]


def header(number):
    """The first block of a request: its version and its hash change each time."""
    return f"x-anthropic-billing-header: cc_version=2.1.175.{number:03x}; cc_entrypoint=cli; cch={number:05x};"


def system(number, *texts):
    mark = {"type": "ephemeral", "ttl": "1h", "scope": "global"}
    blocks = [
        {"type": "text", "text": header(number)},
        {"type": "text", "text": "You are an agent.", "cache_control": mark},
    ]
    return [*blocks, *({"type": "text", "text": text} for text in texts)]


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("claude")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = ("--max-model-len", 2560, "--served-model-name", "small", "--chat-template", template)
    with serving(folder, smollm2_path, *arguments) as server:
        yield server


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, auth_token="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("texts", "rest"),
    [
        ([header(1), "You are an agent."], ["You are an agent."]),
        (["x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=sdk-cli; cch=fa690;"], []),
        (["x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli"], []),
        ([header(1) + "\nYou are an agent.", "More."], ["You are an agent.", "More."]),
        ([header(1) + "\r\nYou are an agent."], ["You are an agent."]),
        # Any other text of a user stays: other words on the line, another place, another name.
        ([header(1) + " Explain this line."], None),
        (["Explain: " + header(1)], None),
        (["You are an agent.", header(1)], None),
        (["x-anthropic-billing-header: what is it?"], None),
        (["x-anthropic-billing-header: cch=12345;"], None),
        (["x-anthropic-header: cc_version=1; cch=2;"], None),
        ([], None),
    ],
)
def test_the_billing_header_alone_is_cut(texts, rest):
    """C17: the line is recognised by its whole form, at the beginning of the system prompt and nowhere else."""
    blocks = [TextBlock(type="text", text=text) for text in texts]
    assert [block.text for block in without_billing_header(blocks)] == (texts if rest is None else rest)


def session(turns):
    """The messages of a session, turn by turn: calls, results with pictures, reminders that stay and such that go."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}]}]
    for number in range(turns):
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"path": f"{number}.txt"}}
        thinking = [{"type": "redacted_thinking", "data": "EqQB"}] if number % 3 == 0 else []
        messages.append(
            {"role": "assistant", "content": [*thinking, {"type": "text", "text": f"I read {number}."}, use]}
        )
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": f"Line {number}."}
        if number % 4 == 1:
            picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
            result["content"] = [{"type": "text", "text": "A picture:"}, picture]
        messages.append({"role": "user", "content": [result]})
        messages.append({"role": "system", "content": f"{1000 - number} tokens are left."})
        if number % 5 == 2:
            messages.append({"role": "system", "content": f"Once: {number}.", "clear_at": "next_user_message"})
        yield list(messages)


@pytest.mark.parametrize(
    ("turns", "stream"), [(10, False), (10, True), pytest.param(30, False, marks=pytest.mark.deep)]
)
def test_a_session_keeps_its_prefix(client, turns, stream):
    """C17: each turn of a session finds the whole of the one before in the cache."""
    before = 0
    last = None
    for number, messages in enumerate(session(turns)):
        asked = {
            "model": ("claude-opus-5-5", "claude-haiku-4-5-20251001")[number % 2],
            "max_tokens": 1,
            "system": system(number + 1000 * stream, "You work in a folder."),
            "messages": messages,
            "tools": TOOLS,
            "diagnostics": {"previous_message_id": last},
        }
        if stream:
            with client.beta.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = client.beta.messages.create(**asked)
        usage = message.usage
        if number:
            # A reminder that held for one turn is gone, and what stood behind it, which is the beginning of an answer.
            gone = 32 if number % 5 == 3 else 0
            assert usage.cache_read_input_tokens >= before // BLOCK * BLOCK - gone, number
            assert message.diagnostics is None or gone
        before = usage.input_tokens + usage.cache_read_input_tokens
        last = message.id
    assert message.model == "small"


def test_the_prompt_is_the_same_without_the_header(client):
    """C17: nothing of the line is in the prompt."""
    counts = [
        client.messages.count_tokens(model="small", messages=HELLO, system=blocks).input_tokens
        for blocks in (system(1), system(2)[1:])
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", ["claude-haiku-4-5", "claude-sonnet-5[1m]", "haiku", "sonnet", "opus", "opusplan"])
def test_the_only_model_answers_for_claude(client, name):
    """C17: sub-agents and Claude Code's own names reach what is served, and the answer says which model it was."""
    assert client.messages.create(model=name, max_tokens=1, messages=HELLO).model == "small"
    assert client.messages.count_tokens(model=name, messages=HELLO).input_tokens > 0


@pytest.mark.parametrize("name", ["gpt-5", "claude", "claudette", "haiku-2"])
def test_other_names_are_not_served(client, name):
    with pytest.raises(anthropic.NotFoundError, match="expected one of those that are served: small"):
        client.messages.create(model=name, max_tokens=1, messages=HELLO)


def test_aliases_say_which_of_several_models_answers(model, tmp_path):
    """C17: the longest alias that a name begins with; without one the name is not served."""
    settings = tmp_path / "models.toml"
    table = f'path = "{model}"\nmax_model_len = 64\nnum_threads = 1\n'
    settings.write_text(f'[models.a]\naliases = ["claude"]\n{table}[models.b]\naliases = ["claude-haiku"]\n{table}')
    with serving(tmp_path, "--config", settings) as server:
        for name, served in (("claude-opus-5", "claude"), ("claude-haiku-4-5", "claude-haiku")):
            body = {"model": name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
            answer = server.client.post("/v1/messages", json=body)
            assert answer.json().get("model", served) == served, answer.text
        response = server.client.post("/v1/messages", json=body | {"model": "haiku"})
        assert response.status_code == 404


def test_the_reason_of_a_miss_is_told(client, server):
    """C17: what differs from the request before, the tokens that it cost, and the engine's own reason."""
    long = "Remember the number " + " ".join(map(str, range(60)))
    messages = [{"role": "user", "content": f"{long}. Say hello."}]
    asked = {"model": "small", "max_tokens": 1, "system": long, "messages": messages, "tools": TOOLS}

    def ask(before, **others):
        message = client.beta.messages.create(**asked | others, diagnostics={"previous_message_id": before})
        return message, message.diagnostics and message.diagnostics.cache_miss_reason

    first, reason = ask(None)
    prompt = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert reason is None
    _, reason = ask(first.id)
    assert reason is None
    for changed, kind in (
        ({"system": f"Other: {long}"}, "system_changed"),
        ({"tools": [TOOLS[0] | {"name": "Other"}]}, "tools_changed"),
        ({"messages": [{"role": "user", "content": "Bye." * 30}, *HELLO]}, "messages_changed"),
    ):
        _, reason = ask(first.id, **changed)
        assert (reason.type, reason.prefix_miss) == (kind, "new")
        assert 0 < reason.cache_missed_input_tokens <= prompt
    _, reason = ask("msg_unknown")
    assert reason.type == "previous_message_not_found"
    assert "diagnostics" not in server.client.post("/v1/messages", json=asked).json()


def test_reminders_of_one_turn_go_with_it():
    """C17: such a message is read until the next one of the user's; all before it stays as it was."""
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    reminder = {"role": "system", "content": "Now.", "clear_at": "next_user_message"}
    messages = [*HELLO, {"role": "assistant", "content": [use]}]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}]}

    def made(*more):
        return template_messages([], [MessageParam.model_validate(message) for message in (*messages, *more)])

    with_it, later = made(result, reminder), made(result, reminder, {"role": "assistant", "content": "2"}, *HELLO)
    assert with_it[-1] == {"role": "user", "content": "Now."}
    assert later[: len(with_it) - 1] == with_it[:-1]
    assert "Now." not in str(later)
    kept = reminder | {"clear_at": "never"}
    assert made(result, kept, {"role": "assistant", "content": "2"}, *HELLO)[: len(with_it)] == with_it


def test_the_effort_of_a_turn():
    """A message of the system sets it for one turn."""
    effort = {"role": "system", "output_config": {"effort": "low"}}
    answer = {"role": "assistant", "content": "Hello."}

    def told(*messages):
        return turn_effort([MessageParam.model_validate(message) for message in messages])

    assert told(*HELLO, effort) == "low"
    assert told(*HELLO, effort, answer, *HELLO) is None
    assert template_messages([], [MessageParam.model_validate(each) for each in (*HELLO, effort)]) == HELLO


def test_tools_of_other_servers_are_left_out(client):
    """C19: a header of the answer names them; those of the client are functions with the schema that Anthropic has."""
    asked = {"model": "small", "max_tokens": 60, "messages": HELLO, "tools": TOOLS}
    response = client.beta.messages.with_raw_response.create(**asked, tool_choice={"type": "tool", "name": "bash"})
    assert response.headers["x-left-out-tools"] == "web_search_20260318"
    call = response.parse().content[-1]
    assert (call.type, call.name) == ("tool_use", "bash")
    assert set(call.input) <= {"command", "restart"}
    with client.beta.messages.with_streaming_response.create(**asked, stream=True) as response:
        assert response.headers["x-left-out-tools"] == "web_search_20260318"
    with pytest.raises(anthropic.BadRequestError, match="got 'web_search', expected one of Read, bash"):
        client.beta.messages.create(**asked, tool_choice={"type": "tool", "name": "web_search"})


def test_the_tool_runner_of_the_client(client):
    """C19: it wants the server to keep the conversation, is told that it cannot be, and goes on by itself."""

    @anthropic.beta_tool
    def bash_again(command: str) -> str:
        """Runs a command.

        Args:
            command: The command.
        """
        return command

    runner = client.beta.messages.tool_runner(
        model="small", max_tokens=4, messages=HELLO, tools=[bash_again], max_iterations=2
    )
    assert runner.until_done().role == "assistant"


def test_models_are_described_for_anthropic(client):
    """Agents read how long a prompt may be."""
    (found,) = client.beta.models.list().data
    assert (found.id, found.max_input_tokens, found.max_tokens, found.lifecycle) == ("small", 2560, 2560, "active")
    assert found.capabilities.structured_outputs.supported
    assert found.capabilities.thinking.types.disabled.supported
    assert not found.capabilities.image_input.supported
    assert client.models.retrieve("small").max_input_tokens == 2560


def test_a_form_beside_tools(client):
    """C20: the answer calls a tool or has the form."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["capital", "village"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    message = client.messages.create(
        model="small",
        max_tokens=60,
        messages=[{"role": "user", "content": "Describe Paris."}],
        tools=[TOOLS[0]],
        output_config={"format": {"type": "json_schema", "schema": schema}},
        extra_body={"temperature": 0.0},
    )
    for block in message.content:
        if block.type == "text":
            assert json.loads(block.text)["kind"] in ("capital", "village")
        else:
            assert (block.type, block.name) == ("tool_use", "Read")
    assert message.content
