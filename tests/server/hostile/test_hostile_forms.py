"""Forms that no grammar can honour as they are, through the server: refused by name, or left out where that may be."""

import json

import hostile_grammars
import httpx
import openai
import pytest
from marked_models import FORMS, model_of
from server_process import serving

MESSAGES = [{"role": "user", "content": "Go on."}]
ASK = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40}


def deep(form):
    """Each form takes a server: two of them at every commit."""
    return pytest.param(form, marks=pytest.mark.deep)


@pytest.fixture(scope="module", params=[deep("llama"), "hermes", "gemma4", deep("glm")])
def form(request):
    """The form of calls."""
    return request.param


@pytest.fixture(scope="module")
def server(form, tiny_model, tmp_path_factory):
    assert form in FORMS
    folder = tmp_path_factory.mktemp(form)
    with serving(folder, model_of(form, folder, tiny_model), "--served-model-name", "tiny") as server:
        yield server


@pytest.mark.parametrize("name", hostile_grammars.IMPOSSIBLE | hostile_grammars.TOO_LARGE)
def test_impossible_forms_are_refused_by_name(server, name):
    """H11: a form that no text fits, or that is too large, is a 400 that names its parameter."""
    fields = hostile_grammars.ALL[name]
    answer = server.client.post("/v1/chat/completions", json={**ASK, "structured_outputs": fields})
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["param"] == "structured_outputs"
    assert error["message"].startswith("structured_outputs: ")
    server.settled()


def test_impossible_response_format_is_refused_by_name(server):
    """H11: the parameter is the one that the client has sent."""
    schema = {"name": "x", "schema": {"$ref": "#"}}
    body = {**ASK, "response_format": {"type": "json_schema", "json_schema": schema}}
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "response_format"


CYCLES = {
    "itself": hostile_grammars.IMPOSSIBLE["reference to itself"]["json"],
    "each other": hostile_grammars.IMPOSSIBLE["references to each other"]["json"],
}


def refused_message(server, fields):
    """The reason why Anthropic's API refuses a request."""
    answer = server.client.post("/v1/messages", json=ASK | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error["message"]


@pytest.mark.parametrize("name", CYCLES)
def test_forms_that_refer_to_themselves_are_refused_by_anthropics_name(server, name):
    """H11: a message's form has its own place."""
    form = {"type": "json_schema", "schema": CYCLES[name]}
    assert refused_message(server, {"output_config": {"format": form}}).startswith("output_config.format: ")


ARGUMENT = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}


@pytest.mark.parametrize("schema", [*CYCLES.values(), ARGUMENT], ids=[*CYCLES, "argument"])
def test_forced_tools_that_refer_to_themselves_are_refused_by_name(server, schema):
    """H11: the parameter is the one that forces the call."""
    function = {"name": "f", "description": "A tool", "parameters": schema, "strict": True}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    answer = server.client.post("/v1/chat/completions", json=ASK | tools)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "tool_choice"
    tool = {"name": "f", "description": "A tool", "input_schema": schema, "strict": True}
    assert refused_message(server, {"tools": [tool], "tool_choice": {"type": "any"}}).startswith("tool_choice: ")
    server.settled()


@pytest.mark.parametrize("name", hostile_grammars.LATE)
def test_late_failures_are_told(server, name):
    """H11: what only the text shows is a 400, and in a stream an error event that says what to do."""
    fields = hostile_grammars.LATE[name]
    body = {**ASK, "structured_outputs": fields}
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert "give the text a form that is smaller" in answer.json()["error"]["message"]
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60) as stream:
        events = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    errors = [json.loads(event)["error"] for event in events if event.startswith('{"error"')]
    assert [error["param"] for error in errors] == ["structured_outputs"], events
    server.settled()


def test_hostile_forms_hurt_nobody(server):
    """H2: beside forms of all kinds a client's stream has the text that it has alone."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        options = {"model": "tiny", "prompt": "x", "max_tokens": 60, "seed": 1, "extra_body": {"ignore_eos": True}}

        def text():
            return "".join(chunk.choices[0].text for chunk in client.completions.create(stream=True, **options))

        alone = text()
        streams = [
            server.client.stream(
                "POST", "/v1/completions",
                json={"model": "tiny", "prompt": "x", "max_tokens": 20, "n": 2, "structured_outputs": fields},
            )
            for fields in hostile_grammars.COSTLY.values()
        ]  # fmt: skip
        opened = [stream.__enter__() for stream in streams]
        assert text() == alone
        for stream, answer in zip(streams, opened, strict=True):
            answer.read()
            assert answer.status_code in (200, 400), answer.text
            stream.__exit__(None, None, None)
    server.settled()
