"""Calls never break a session: whatever a model wrote is given out, and is taken when it comes back.

The model's text is scripted: what the last message holds between two marks is read in its place. All else is the
server's own, with real chat templates.
"""

import base64
import json
import re

import pytest
from fastapi.testclient import TestClient
from marked_models import model_of
from parsing_cases.formats import template, tool
from rocmforge import AsyncLLM
from rocmforge.server import ServerConfig, create_app
from rocmforge.server.answers import replies
from tiny_models import metadata, rewritten

FORMS = ("hermes", "mistral", "llama", "harmony")
# Templates that replace that of the first one's model.
TEMPLATES = {"hermes-2-pro": "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"}
# The file of this one has a template for tools beside one that drops them.
TWO_TEMPLATES = "two-templates"
WITHOUT_TOOLS = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
TOOL = tool("f", a={"type": "boolean"})


def script(text):
    """A user's text in whose place the model's is read."""
    return f"<<S>>{base64.b64encode(text.encode()).decode()}<<E>>"


class ScriptedReader(replies.Reader):
    """Reads what the prompt holds between two marks, three characters at a time."""

    def __init__(self, form, tools, prompt, **options):
        super().__init__(form, tools, prompt, **options)
        found = re.findall(r"<<S>>([A-Za-z0-9+/=]*)<<E>>", prompt)
        self._script = base64.b64decode(found[-1]).decode() if found else None

    def read(self, one):
        if self._script is not None:
            length = len(self._script) if one.finished() else 3 * len(one.token_ids)
            one.text, self._script = self._script[:length], self._script[length:]
            if one.finished():
                one.finish_reason, one.stop_reason = "stop", None
        return super().read(one)


@pytest.fixture(scope="module")
def clients(tiny_model, tmp_path_factory):
    """A client of a server by the form of its model's calls."""
    folder = tmp_path_factory.mktemp("sessions")
    opened = {}

    def client(form):
        if form not in opened:
            config = ServerConfig(served_model_name=("m",))
            if form in TEMPLATES:
                file = folder / f"{form}.jinja"
                file.write_text(template(TEMPLATES[form]))
                config = ServerConfig(served_model_name=("m",), chat_template=file)
            model = model_of(form if form in FORMS else "hermes", folder, tiny_model)
            if form == TWO_TEMPLATES:
                key = "tokenizer.chat_template"
                extra = {f"{key}.tool_use": metadata(model)[key]}
                model = rewritten(model, folder / "two.gguf", replace={key: WITHOUT_TOOLS}, extra=extra)
            app = create_app(AsyncLLM(model, num_threads=1, device="cpu"), config)
            opened[form] = TestClient(app, base_url="http://localhost").__enter__()
        return opened[form]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rocmforge.server.chat.rules.Reader", ScriptedReader)
        yield client
        for each in opened.values():
            each.__exit__(None, None, None)


def strict_json(text):
    """The value of a JSON text, without what other languages do not read."""

    def refuse(constant):
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def written(form, arguments):
    """The text by which a model calls `f`."""
    return {
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>',
        "mistral": f'[TOOL_CALLS][{{"name": "f", "arguments": {arguments}}}]',
        "llama": f'{{"name": "f", "parameters": {arguments}}}',
        "harmony": f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{arguments}<|call|>",
    }[form]


API_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")


def asked(path, content, **fields):
    """The body of a question with a tool, by the API."""
    function = TOOL["function"]
    ask = {"messages": [{"role": "user", "content": content}]}
    return (
        {
            "/v1/chat/completions": ask | {"tools": [TOOL], "max_tokens": 60},
            "/v1/responses": {"input": content, "tools": [{"type": "function", **function}], "max_output_tokens": 60},
            "/v1/messages": ask
            | {
                "tools": [{"name": "f", "description": "d", "input_schema": function["parameters"]}],
                "max_tokens": 60,
            },
            "/api/chat": ask | {"tools": [TOOL], "options": {"num_predict": 60}},
        }[path]
        | {"model": "m"}
        | fields
    )


def texts_of_events(text):
    """The JSON texts of a stream."""
    lines = (line.removeprefix("data: ") for line in text.splitlines())
    return [line for line in lines if line.startswith("{")]


# Values that JSON's grammar allows and few programs hold, and values that it does not allow.
HARD = {
    r'{"a": "\ud83d"}': {"a": "\ufffd"},
    '{"a": 1e999}': {"a": 1.7976931348623157e308},
    '{"a": -Infinity, "b": NaN}': {"a": -1.7976931348623157e308, "b": None},
    '{"a": ' + "[" * 90 + "]" * 90 + "}": ...,
    '{"a": ' + "[" * 2000 + "]" * 2000 + "}": None,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", API_PATHS)
@pytest.mark.parametrize("arguments", HARD)
def test_arguments_that_json_cannot_hold_are_given_as_some_that_it_can(clients, arguments, path, stream):
    """C1: every answer is JSON in UTF-8, with arguments that every client can read."""
    text = written("hermes", arguments)
    answer = clients("hermes").post(path, json=asked(path, script(text), stream=stream))
    assert answer.status_code == 200
    answer.content.decode()
    values = [strict_json(each) for each in (texts_of_events(answer.text) if stream else [answer.text])]
    found = json.dumps(values)
    found.encode()
    assert "Internal" not in found
    if path == "/v1/chat/completions" and not stream and HARD[arguments] is not None:
        (call,) = values[0]["choices"][0]["message"]["tool_calls"]
        value = strict_json(call["function"]["arguments"])
        assert value == (strict_json(arguments) if HARD[arguments] is ... else HARD[arguments])


def history(path, arguments, ids=("call_1",)):
    """A conversation with calls, by the API; `arguments` are their JSON, and an id may be missing in Ollama's."""
    said = [{"role": "user", "content": "x"}]
    given = [{"id": id_} if id_ else {} for id_ in ids]
    answered = [{"tool_call_id": id_} if id_ else {"tool_name": "f"} for id_ in ids]
    if path == "/v1/responses":
        items = [{"type": "function_call", "call_id": id_, "name": "f", "arguments": arguments} for id_ in ids]
        items += [{"type": "function_call_output", "call_id": id_, "output": "ok"} for id_ in ids]
        return {"model": "m", "input": [*said, *items], "max_output_tokens": 16}
    if path == "/v1/messages":
        uses = [{"type": "tool_use", "id": id_, "name": "f", "input": json.loads(arguments)} for id_ in ids]
        results = [{"type": "tool_result", "tool_use_id": id_, "content": "ok"} for id_ in ids]
        turns = [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
        return {"model": "m", "messages": [*said, *turns], "max_tokens": 2}
    value = json.loads(arguments) if path == "/api/chat" else arguments
    calls = [{**id_, "type": "function", "function": {"name": "f", "arguments": value}} for id_ in given]
    results = [{"role": "tool", "content": "ok"} | id_ for id_ in answered]
    body = {"model": "m", "messages": [*said, {"role": "assistant", "content": "", "tool_calls": calls}, *results]}
    return body | ({"stream": False, "options": {"num_predict": 2}} if path == "/api/chat" else {"max_tokens": 2})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": 1e999}', r'{"a": "\ud83d"}', '{"a": [[1]]}', "[1]", '{"a'])
def test_a_call_of_any_arguments_can_be_sent_back(clients, arguments, form):
    """C2: arguments that were given out, or that another server gave, end no session."""
    for path in API_PATHS[:2] if arguments in ("[1]", '{"a') else API_PATHS:
        body = json.dumps(history(path, arguments))
        answer = clients(form).post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, (path, answer.text)


@pytest.mark.parametrize("form", FORMS)
def test_a_conversation_in_any_order_is_taken(clients, form):
    """C6: a question may follow a result, and an answer another one, where a template wants them in turn."""
    path = API_PATHS[0]
    said = history(path, '{"a": true}')["messages"]
    for more in (["user"], ["assistant", "assistant", "user"], ["system", "user"]):
        messages = [{"role": role, "content": "x"} for role in more]
        for conversation in (said + messages, messages):
            answer = clients(form).post(path, json={"model": "m", "messages": conversation, "max_tokens": 2})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", API_PATHS)
def test_deep_arguments_can_be_sent_back(clients, path):
    """C2: so can arguments that are nested deeper than a template takes."""
    answer = clients("hermes").post(path, json=history(path, '{"a": ' + "[" * 200 + "]" * 200 + "}"))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("form", [*FORMS, *TEMPLATES, TWO_TEMPLATES])
@pytest.mark.parametrize("path", API_PATHS)
def test_a_tool_may_lack_description_and_parameters(clients, path, form):
    """C3: templates that write a tool's description get an empty one."""
    tools = {
        "/v1/messages": {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "/v1/responses": {"type": "function", "name": "f"},
    }
    bare = tools.get(path, {"type": "function", "function": {"name": "f"}})
    answer = clients(form).post(path, json=asked(path, "x", stream=False) | {"tools": [bare]})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "ids",
    [
        ("toolu_01A09q90qw90lq917835lq9",),
        ("3ef1c633-bb73-4614-a964-74a805a5cfd3", "call_0"),
        ("abcDEF123", "abcDEF124"),
        (None,),
        (None, None),
    ],
)
def test_ids_of_any_server_are_taken(clients, form, ids):
    """C4, C5: a template that wants ids of 9 characters gets such, and one that takes one call a message gets it so."""
    for path in API_PATHS[3:] if None in ids else API_PATHS:
        answer = clients(form).post(path, json=history(path, '{"a": true}', ids))
        assert answer.status_code == 200, (path, answer.text)


def test_two_calls_that_were_given_are_taken_back(clients):
    """C5: a Llama model's two calls come back to a template that takes one in a message."""
    text = '{"name": "f", "parameters": {"a": true}}; {"name": "f", "parameters": {"a": false}}'
    path = API_PATHS[0]
    asking = asked(path, script(text))
    message = clients("llama").post(path, json=asking).json()["choices"][0]["message"]
    assert len(message["tool_calls"]) == 2
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in message["tool_calls"]]
    answer = clients("llama").post(path, json=asking | {"messages": [*asking["messages"], message, *results]})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", API_PATHS)
def test_a_file_with_a_template_for_tools(clients, path):
    """F6: with tools its server takes the one template, reads calls by it and takes them back; else the other one."""
    client = clients(TWO_TEMPLATES)
    answer = client.post(path, json=asked(path, script(CALL), stream=False))
    assert answer.status_code == 200, answer.text
    assert re.search(r'"name":\s*"f"', answer.text)
    assert "<tool_call>" not in answer.text
    assert client.post(path, json=history(path, '{"a": true}') | {"stream": False}).status_code == 200
    prompts = [
        client.post("/apply_template", json={"messages": [{"role": "user", "content": "x"}]} | tools).json()["prompt"]
        for tools in ({}, {"tools": [TOOL]})
    ]
    assert (prompts[0], "<tools>" in prompts[1]) == ("[user]x", True)
    assert client.get("/props").json()["chat_template"] == WITHOUT_TOOLS
    assert "tools" in client.post("/api/show", json={"model": "m"}).json()["capabilities"]


CALL = written("hermes", '{"a": true}')
STOPS = [
    # The model's text, stop strings, and what is left: reasoning, answer, number of calls.
    ("<think>\nOne\ntwo.\n</think>\n\nThe answer\nis two.", ["\n"], "One\ntwo.", "The answer", 0),
    ("<think>\nOne END two.\n</think>\n\nNo END of it.", ["END"], "One END two.", "No ", 0),
    (f"Well.\n{CALL}", ['"', "}", "</tool_call>", "arguments"], None, "Well.", 1),
    (f"{CALL}\n{CALL}", ["\n", "tool"], None, None, 2),
    ("No stop at aLL", ["all", "L at"], None, "No stop at aLL", 0),
    ("Ends with a begun sto", ["stop"], None, "Ends with a begun sto", 0),
    ("abcabd and more", ["abd", "abcabe"], None, "abc", 0),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "stop", "reasoning", "answer", "num_calls"), STOPS)
def test_stop_strings_match_in_the_answer_alone(clients, text, stop, reasoning, answer, num_calls, stream):
    """C8: reasoning and calls are whole, whatever stop strings are in them."""
    path = API_PATHS[0]
    asking = asked(path, script(text), stop=stop, stream=stream, max_tokens=300)
    got = clients("hermes").post(path, json=asking)
    assert got.status_code == 200, got.text
    parts = [json.loads(line)["choices"][0] for line in (texts_of_events(got.text) if stream else [got.text])]
    messages = [part["delta" if stream else "message"] for part in parts]
    assert ("".join(each.get("reasoning_content") or "" for each in messages) or None) == reasoning
    assert ("".join(each.get("content") or "" for each in messages) or None) == answer
    calls = {call.get("index", n) for each in messages for n, call in enumerate(each.get("tool_calls") or [])}
    assert len(calls) == num_calls
    stopped = answer not in (None, text.rpartition("</think>")[2].strip()) and not num_calls
    assert parts[-1]["finish_reason"] == ("tool_calls" if num_calls else "stop")
    assert (parts[-1]["stop_reason"] in stop) == stopped


def test_a_stop_string_ends_the_request(clients):
    """C8: the engine makes no more tokens behind it, streamed or not."""
    for path in API_PATHS:
        if path == "/v1/responses":
            continue
        field = "stop_sequences" if path == "/v1/messages" else "stop"
        limits = (
            {"options": {"num_predict": 2000, "stop": ["e"]}}
            if path == "/api/chat"
            else {"max_tokens": 2000, field: ["e"]}
        )
        for stream in (False, True):
            body = asked(path, script("One two three")) | limits | {"stream": stream}
            got = clients("hermes").post(path, json=body)
            assert got.status_code == 200, got.text
            assert "On" in got.text.replace('"},"', "")
            assert "two" not in got.text
            counts = re.findall(r'"(?:completion_tokens|output_tokens|eval_count)":\s*(\d+)', got.text)
            assert all(int(count) < 100 for count in counts)


def test_each_sequence_ends_by_itself(clients):
    """C8: of several sequences each has its own end."""
    path = API_PATHS[0]
    body = asked(path, script("One two three"), stop=["t"], n=3, max_tokens=200)
    choices = clients("hermes").post(path, json=body).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["One "] * 3
    assert {choice["stop_reason"] for choice in choices} == {"t"}
