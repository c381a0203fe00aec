"""Tools and items of OpenAI's agents that are no functions, with OpenAI's own client.

The model's weights are random: a call is forced, and its arguments are short by their schemas.
"""

import json
import re

import openai
import pytest
from marked_models import model_of
from pydantic import TypeAdapter
from rocmforge.outputs import CompletionOutput
from rocmforge.parsing import ChatFormat, ReplyFormat, ToolCallArguments, ToolCallStart
from rocmforge.server.answers.replies import Reader
from rocmforge.server.answers.sealed import sealed
from rocmforge.server.chat.toolset import Origin
from rocmforge.server.openai.responses.body import ResponsesRequest
from rocmforge.server.openai.responses.conversation import template_messages
from rocmforge.server.openai.responses.items import give_ids
from rocmforge.server.openai.responses.tools import AnyTools, toolset
from server_process import serving

DIGIT = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
FIND = {"type": "function", "name": "find", "description": "Finds one", "parameters": DIGIT, "strict": False}
CRM = {"type": "namespace", "name": "crm", "description": "Customers", "tools": [FIND, FIND | {"name": "drop"}]}
HOSTED = [{"type": "web_search"}, {"type": "tool_search", "execution": "client"}, {"type": "local_shell"}]
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files"}
TOOLS = TypeAdapter(list[AnyTools])


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    with serving(folder, model_of("hermes", folder, tiny_model), "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_namespace(client, stream):
    """C19: tools of a namespace are called, and come back as the client knows them; hosted ones are left out."""
    asked = {
        "model": "tiny",
        "input": "Go on.",
        "tools": [*HOSTED, CRM, FIND | {"name": "look"}],
        "tool_choice": {"type": "function", "name": "drop"},
        "max_output_tokens": 200,
    }
    if stream:
        with client.responses.stream(**asked) as events:
            response = events.get_final_response()
    else:
        raw = client.responses.with_raw_response.create(**asked)
        assert raw.headers["x-left-out-tools"] == "web_search, tool_search, local_shell"
        response = raw.parse()
    (call,) = response.output
    assert (call.type, call.namespace, call.name) == ("function_call", "crm", "drop")
    assert 0 <= json.loads(call.arguments)["n"] <= 9
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    again = client.responses.create(**asked | {"input": [output], "previous_response_id": response.id})
    assert again.output[0].namespace == "crm"
    turn = [{"role": "user", "content": "Go on."}, call.model_dump(exclude_none=True), output]
    assert client.responses.create(**asked | {"input": turn}).usage.input_tokens == again.usage.input_tokens


def test_the_model_reads_of_namespaces_and_custom_tools():
    """Names are told with the namespace's, whose description comes with its first tool; a grammar is told too."""
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
    tools = toolset(TOOLS.validate_python([CRM, CRM | {"name": "mcp__x__"}, PATCH | {"format": grammar}, *HOSTED]))
    said = {tool["function"]["name"]: tool["function"].get("description") for tool in tools.functions}
    assert said == {
        "crm__find": "crm: Customers\n\nFinds one",
        "crm__drop": "Finds one",
        "mcp__x__find": "mcp__x__: Customers\n\nFinds one",
        "mcp__x__drop": "Finds one",
        "apply_patch": "Edits files\n\nThe input has to fit this regular expression:\n[a-z]+",
    }
    assert tools.functions[-1]["function"]["parameters"]["required"] == ["input"]
    assert tools.origin("crm__drop") == Origin("drop", "crm")
    # A name that two tools would have.
    both = toolset(TOOLS.validate_python([CRM, FIND | {"name": "crm__find"}]))
    assert both.names == ["crm__find", "crm__drop", "crm__find_"]
    assert both.origin("crm__find_") == Origin("crm__find")
    assert both.name_of("crm__find") == "crm__find_"


def read(text, tools, step=1):
    """The events of a model's text that comes in pieces."""
    form = ReplyFormat("", ChatFormat(calls="hermes"))
    reader = tools.reader(Reader(form, tools.functions, ""))
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    events = []
    for index, piece in enumerate(pieces):
        reason = "stop" if index == len(pieces) - 1 else None
        events += reader.read(CompletionOutput(0, piece, [], reason, None, None, None))
    return events


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "*** Begin Patch\\n+\\"ä\\"\\n"}', '*** Begin Patch\n+"ä"\n'),
        ('{"input": ""}', ""),
        ('{"path": "x"}', '{"path": "x"}'),
        ('{"input": {"a": 1}}', '{"input": {"a": 1}}'),
        ('{"input": "\\ud83d"}', "\ufffd"),
    ],
)
def test_input_of_a_custom_tool(arguments, expected, step):
    """C19: the input is the text itself, in one piece; what a model wrote instead comes as it is."""
    tools = toolset(TOOLS.validate_python([PATCH, FIND]))
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>\n'
    events = read(call.format("apply_patch", arguments) + call.format("find", '{"n": 1}'), tools, step)
    first, text, second, *rest = events
    assert (first.name, text) == ("apply_patch", ToolCallArguments(0, expected))
    assert isinstance(second, ToolCallStart)
    assert "".join(piece.text for piece in rest) == '{"n": 1}'


ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Think."}], "encrypted_content": "x"},
    {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "+1"},
    {"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "ok"}]},
    {"type": "local_shell_call", "id": "ls", "call_id": "b", "status": "completed",
     "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "local_shell_call_output", "id": "ls", "output": "a.txt"},
    {"type": "shell_call", "call_id": "s", "action": {"commands": ["pwd"]}},
    {"type": "shell_call_output", "call_id": "s", "max_output_length": 9,
     "output": [{"stdout": "/", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "function_call", "call_id": "c", "namespace": "crm", "name": "find", "arguments": '{"n": 1}'},
    {"type": "function_call_output", "call_id": "c", "output": "none"},
    {"type": "message", "role": "assistant", "phase": "final_answer", "id": "m", "status": "completed",
     "content": [{"type": "refusal", "refusal": "No."}, {"type": "output_text", "text": "Done.",
                  "annotations": [{"type": "url_citation"}], "logprobs": [{"token": "x"}]}]},
    {"type": "compaction", "encrypted_content": sealed("It was short.")},
]  # fmt: skip


def test_items_of_codex_as_messages():
    """C19: each item of an agent's history has its place in the conversation, or none to have."""
    body = ResponsesRequest.model_validate({"input": ITEMS, "tools": [CRM, PATCH]})
    items = list(body.input)
    give_ids(items)

    def call(id_, name, arguments):
        return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}

    def result(id_, name, text):
        return {"role": "tool", "tool_call_id": id_, "name": name, "content": text}

    shell = {"type": "exec", "command": ["ls"], "env": {}}
    assert template_messages(None, items, body.toolset(items)) == [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Think.",
            "tool_calls": [call("a", "apply_patch", {"input": "+1"})],
        },
        result("a", "apply_patch", "ok"),
        {"role": "assistant", "content": "", "tool_calls": [call("b", "local_shell", shell)]},
        result("ls", "local_shell", "a.txt"),
        {"role": "assistant", "content": "", "tool_calls": [call("s", "shell", {"commands": ["pwd"]})]},
        result("s", "shell", "/"),
        {"role": "assistant", "content": "", "tool_calls": [call("c", "crm__find", {"n": 1})]},
        result("c", "crm__find", "none"),
        {"role": "assistant", "content": "No.\nDone."},
        {"role": "user", "content": "What was said so far, in short:\nIt was short."},
    ]


def test_items_that_change_the_request(client):
    """C19: tools and settings of items hold from there on."""
    update = {"type": "configuration_update", "reasoning": {"effort": "none"}}
    schema = {"type": "json_schema", "name": "digit", "schema": DIGIT}
    form = {"type": "configuration_update", "text": {"format": schema}}
    more = {"type": "additional_tools", "role": "developer", "tools": [FIND]}
    asked = {"model": "tiny", "max_output_tokens": 100}
    turn = {"role": "user", "content": "Go on."}
    response = client.responses.create(input=[turn, update, form], **asked)
    assert 0 <= json.loads(response.output_text)["n"] <= 9
    named = {"type": "function", "name": "find"}
    response = client.responses.create(input=[more, turn, update], tool_choice=named, **asked)
    assert response.output[-1].name == "find"
    lengths = {
        client.responses.create(input=[turn, *items], reasoning={"effort": effort}, **asked).usage.input_tokens
        for effort, items in (("none", []), ("high", [update]))
    }
    assert len(lengths) == 1


PATCHES = PATCH | {"format": {"type": "grammar", "syntax": "lark", "definition": 'start: "+" /[01]{1,3}/ "\\n" "end"'}}
DIGITS = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"}}


def check_inputs(client, name, stream):
    """Asserts that inputs of custom tools fit their grammars; `name` must be called, or none must."""
    forms = {"apply_patch": r"[+][01]{1,3}\nend", "dial": "[0-9]{3}"}
    asked = {"model": "tiny", "tools": [PATCHES, DIGITS, FIND], "parallel_tool_calls": False}
    asked |= {"max_output_tokens": 300, "reasoning": {"effort": "none"}}
    asked["tool_choice"] = "auto" if name is None else {"type": "custom", "name": name}
    for number in range(6):
        asked["input"] = f"Go on, {number}."
        if stream:
            *events, last = client.responses.create(stream=True, **asked)
            items = last.response.output
            deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
            assert deltas == [item.input for item in items if item.type == "custom_tool_call"]
        else:
            items = client.responses.create(**asked).output
        called = [item for item in items if item.type == "custom_tool_call"]
        assert name is None or [item.name for item in called] == [name]
        for item in called:
            assert re.fullmatch(forms[item.name], item.input), item


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["apply_patch", "dial", None])
def test_custom_tools_with_a_grammar(client, name, stream):
    """C19: the input of a custom tool fits its grammar, whether the model has to call or calls by itself."""
    check_inputs(client, name, stream)


def test_custom_tools_with_a_grammar_between_tags(tiny_model, tmp_path):
    """C19: the same for a model that writes arguments as plain text."""
    file = model_of("qwen-xml", tmp_path, tiny_model)
    with (
        serving(tmp_path, file, "--served-model-name", "tiny") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        for name in ("apply_patch", "dial", None):
            check_inputs(client, name, stream=False)
        check_inputs(client, "apply_patch", stream=True)


def test_custom_tools_with_a_grammar_in_chats(client):
    """C19: the same in chats, whose calls are of the type `custom`."""
    custom = {"name": "dial", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{3}"}}}
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 100}
    asked |= {
        "tools": [{"type": "custom", "custom": custom}],
        "tool_choice": {"type": "custom", "custom": {"name": "dial"}},
    }
    (choice,) = client.chat.completions.create(**asked).choices
    (call,) = choice.message.tool_calls
    assert (call.type, call.custom.name, choice.finish_reason) == ("custom", "dial", "tool_calls")
    assert re.fullmatch("[0-9]{3}", call.custom.input)
    chunks = [chunk.choices[0].delta.tool_calls for chunk in client.chat.completions.create(stream=True, **asked)]
    pieces = [piece.model_dump(exclude_none=True) for calls in chunks for piece in calls or []]
    assert pieces[0]["custom"]["name"] == "dial"
    assert re.fullmatch("[0-9]{3}", "".join(piece["custom"]["input"] for piece in pieces))


def test_reference_to_an_item(client):
    """C19: an item of an answer that is kept stands for itself."""
    asked = {"model": "tiny", "max_output_tokens": 4, "reasoning": {"effort": "none"}}
    first = client.responses.create(input="Go on.", **asked)
    turn = [{"role": "user", "content": "Go on."}, {"type": "item_reference", "id": first.output[0].id}]
    said = [turn[0], first.output[0].model_dump(exclude_none=True)]
    last = {"role": "user", "content": "And?"}
    counted = [client.responses.create(input=[*each, last], **asked).usage.input_tokens for each in (turn, said)]
    assert counted[0] == counted[1]


CUSTOM = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files"}}


def test_custom_tools_of_chats_go_into_the_prompt(client):
    """C19: a call of a custom tool in the history is a call with that one argument."""
    call = {"id": "a", "type": "custom", "custom": {"name": "apply_patch", "input": "+1"}}
    same = {"id": "a", "type": "function", "function": {"name": "apply_patch", "arguments": '{"input": "+1"}'}}
    said = []
    for each in (call, same):
        turn = [
            {"role": "user", "content": "Go on."},
            {"role": "assistant", "content": None, "tool_calls": [each | {"index": 0}]},
            {"role": "tool", "tool_call_id": "a", "content": "ok"},
        ]
        body = {"messages": turn, "tools": [CUSTOM]}
        said.append(client.post("/../apply_template", body=body, cast_to=object)["prompt"])
    assert said[0] == said[1]


@pytest.mark.parametrize("stream", [False, True])
def test_functions_by_the_older_form(client, stream):
    """C19: `functions` are tools, and the call is a `function_call`."""
    function = {"name": "find", "description": "Finds one", "parameters": DIGIT}
    asked = {"model": "tiny", "max_tokens": 100, "functions": [function], "function_call": {"name": "find"}}
    turn = [{"role": "user", "content": "Go on."}]
    if stream:
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(messages=turn, stream=True, **asked)]
        calls = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
        name = "".join(call.name or "" for call in calls)
        arguments, reason = "".join(call.arguments or "" for call in calls), chunks[-1].finish_reason
    else:
        (choice,) = client.chat.completions.create(messages=turn, **asked).choices
        call, reason = choice.message.function_call, choice.finish_reason
        name, arguments = call.name, call.arguments
    assert (name, reason) == ("find", "function_call")
    assert 0 <= json.loads(arguments)["n"] <= 9
    call = {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": arguments}}
    turn += [call, {"role": "function", "name": "find", "content": "none"}]
    assert client.chat.completions.create(messages=turn, **asked).choices[0].finish_reason == "function_call"
