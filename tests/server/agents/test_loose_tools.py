"""Forms that no grammar can honour as they are, through the server: refused by name, or left out where that may be."""

import pytest
from marked_models import FORMS, model_of
from server_process import serving

MESSAGES = [{"role": "user", "content": "Go on."}]
ASK = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40}
# Keywords that clients send and no grammar can honour, with the words by which a strict tool's error names them.
UNSUPPORTED = {
    "lookahead": ({"type": "string", "pattern": "^(?!undefined$|null$)"}, "pattern"),
    "border of a word": ({"type": "string", "pattern": r"\bfoo\b"}, "pattern"),
    "end of a text": ({"type": "string", "pattern": r"\Aab\Z"}, "pattern"),
    "reference to a group": ({"type": "string", "pattern": r"^(a)\1$"}, "pattern"),
    "bounds of 64 bits": ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "minimum"),
    "another document": ({"$ref": "https://example.com/x.json"}, "$ref"),
}


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


def tool(schema, **others):
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return {"type": "function", "function": {"name": "look_up", "parameters": parameters, **others}}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_keywords_of_loose_tools_are_left_out(server, name):
    """C6: tools that are not strict lose the keywords that no grammar can honour, also where a call has to come."""
    schema, _ = UNSUPPORTED[name]
    body = {**ASK, "tools": [tool(schema)], "tool_choice": "required"}
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_keywords_of_strict_tools_are_named(server, name, form):
    """C6: for a strict tool they stay an error that names the tool and the place."""
    schema, keyword = UNSUPPORTED[name]
    body = {**ASK, "tools": [tool(schema, strict=True)], "tool_choice": "required"}
    answer = server.client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["param"], error
    assert "look_up" in error["message"], error
    if form != "glm":
        assert keyword.strip("$").split()[0] in error["message"].replace("reference", "ref"), error
