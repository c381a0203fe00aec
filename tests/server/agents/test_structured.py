"""Answers of a given form, with OpenAI's client, checked by jsonschema and by regular expressions."""

import json
import re
from typing import Literal

import jsonschema
import openai
import pydantic
import pytest
from server_process import serving

ASK = [{"role": "user", "content": "Describe the city of Paris."}]
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 99},
        "rivers": {"type": "array", "items": {"enum": ["Seine", "Marne"]}, "maxItems": 3},
    },
    "required": ["name", "population", "rivers"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}


class City(pydantic.BaseModel):
    """A class that `parse` of the client makes a schema of."""

    kind: Literal["capital", "village"]
    bridges: int = pydantic.Field(ge=0, le=40)


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("log"), smollm2_path, "--max-model-len", 2048) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.with_options(timeout=60)


def chat(client, **options):
    return client.chat.completions.create(model=client.models.list().data[0].id, messages=ASK, **options)


@pytest.mark.parametrize("seed", range(5))
def test_json_schema(client, seed):
    answer = chat(client, response_format=FORMAT, max_tokens=400, seed=seed, temperature=1.0)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), CITY)


def test_stream_is_the_whole(client, server):
    options = {"response_format": FORMAT, "max_tokens": 200, "temperature": 0.0}
    whole = chat(client, **options).choices[0].message.content
    stream = chat(client, stream=True, n=2, **options)
    texts = ["", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [whole] * 2
    server.settled()


def test_client_parses_its_own_class(client):
    """White space between tokens has no bound, so that a seed keeps the model from an answer of nothing else."""
    options = {"response_format": City, "max_tokens": 400, "temperature": 1.0, "seed": 0}
    answer = client.chat.completions.parse(model=client.models.list().data[0].id, messages=ASK, **options)
    parsed = answer.choices[0].message.parsed
    assert parsed.kind in ("capital", "village")
    assert 0 <= parsed.bridges <= 40


def test_json_object(client):
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=400, temperature=0.0)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert answer.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("form", "matches"),
    [
        ({"regex": "[0-9]{3}-[a-f]{4}"}, "[0-9]{3}-[a-f]{4}"),
        ({"choice": ["north", "south-west"]}, "north|south-west"),
        ({"grammar": 'start: "<" /[a-z]{2,5}/ ">"'}, "<[a-z]{2,5}>"),
        ({"json": {"type": "boolean"}}, "true|false"),
        ({"json": '{"enum": [7, 8]}'}, "7|8"),
    ],
)
def test_vllms_names(client, form, matches):
    """Chats and completions take vLLM's parameter."""
    body = {"structured_outputs": form}
    text = chat(client, max_tokens=30, temperature=1.0, extra_body=body).choices[0].message.content
    assert re.fullmatch(matches, text)
    model = client.models.list().data[0].id
    text = client.completions.create(model=model, prompt="It is", max_tokens=30, extra_body=body).choices[0].text
    assert re.fullmatch(matches, text)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: expected"),
        ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format.json_schema: expected"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "cat"}}}}, "json"),
        ({"response_format": {"type": "xml"}}, "response_format.type: got 'xml'"),
        ({"structured_outputs": {}}, "structured_outputs: got none"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs: got several"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs: got regex"),
        ({"structured_outputs": {"cfg": "a"}}, "structured_outputs.cfg: this parameter is not supported"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}, "give one of them"),
        ({"response_format": {"type": "json_object"}, "tools": [TOOL]}, "has no call format"),
    ],
    ids=str,
)
def test_wrong_forms_are_refused(server, body, message):
    response = server.client.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 5} | body)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    server.settled()
