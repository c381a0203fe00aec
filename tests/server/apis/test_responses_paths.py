"""Paths of the Responses API beside the answers themselves, with OpenAI's own client."""

import threading

import openai
import pytest
from marked_models import model_of
from rocmforge.server.answers.sealed import opened
from server_process import serving

ASK = {"model": "tiny", "temperature": 0.0}
USER = {"role": "user", "content": "Go on."}
DIGIT = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
FIND = {"type": "function", "name": "find", "description": "Finds", "parameters": DIGIT, "strict": False}


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    arguments = ("--served-model-name", "tiny", "--max-model-len", 600)
    with serving(folder, model_of("hermes", folder, tiny_model), *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def responses(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.responses


def test_input_tokens(responses):
    """C23: the count is that of the answer's prompt, with tools, effort and what is kept."""
    common = {"instructions": "Be brief.", "input": [USER], "tools": [FIND], "reasoning": {"effort": "none"}}
    response = responses.create(max_output_tokens=3, **common, **ASK)
    assert responses.input_tokens.count(model="tiny", **common).input_tokens == response.usage.input_tokens
    more = {"input": "And?", "previous_response_id": response.id}
    again = responses.create(max_output_tokens=3, **more, **ASK)
    assert responses.input_tokens.count(model="tiny", **more).input_tokens == again.usage.input_tokens


def test_retrieve_as_a_stream(responses):
    """C16: the events of an answer that is kept say what those said that came while it was made."""
    named = {"type": "function", "name": "find"}
    asked = {"input": "Go on.", "tools": [FIND], "max_output_tokens": 60, "reasoning": {"effort": "high"}}
    for choice in ("none", named):
        events = list(responses.create(stream=True, tool_choice=choice, **asked, **ASK))
        response = events[-1].response
        told = list(responses.retrieve(response.id, stream=True))
        assert told[-1].response.model_dump() == response.model_dump()
        assert [event.sequence_number for event in told] == list(range(len(told)))
        kinds = [event.type for event in events]
        assert [event.type for event in told] == [
            k for i, k in enumerate(kinds) if k != kinds[i - 1] or "delta" not in k
        ]
        rest = list(responses.retrieve(response.id, stream=True, starting_after=3))
        assert [event.model_dump() for event in rest] == [event.model_dump() for event in told[4:]]
    include = ["reasoning.encrypted_content"]
    assert (
        responses.retrieve(response.id, include=include, extra_query={"include_obfuscation": False}).id == response.id
    )


@pytest.mark.parametrize(
    ("query", "param"),
    [({"steam": "true"}, "steam"), ({"include": "x"}, "include"), ({"starting_after": 1}, "starting_after")],
)
def test_query_parameters_are_known(server, responses, query, param):
    """C16: a parameter of the query that the path does not have, or cannot honour, is an error that names it."""
    id_ = responses.create(input="Go on.", max_output_tokens=2, **ASK).id
    answer = server.client.get(f"/v1/responses/{id_}", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert server.client.get(f"/v1/responses/{id_}", params={"api-version": "v1"}).status_code == 200


def test_cancel(server, responses):
    """C23: an answer that is being made ends, and one that has ended stays as it is."""
    done = responses.create(input="Go on.", max_output_tokens=2, **ASK)
    assert responses.cancel(done.id) == done
    with pytest.raises(openai.NotFoundError):
        responses.cancel("resp_x")
    stream = responses.create(input="Go on.", stream=True, **ASK)
    events = iter(stream)
    id_ = next(events).response.id
    found = []
    thread = threading.Thread(target=lambda: found.append(responses.cancel(id_)))
    thread.start()
    *_, last = events
    thread.join()
    # A model that came to its end before was not cancelled.
    if last.type != "response.completed":
        assert (last.type, last.response.status, found[0].status) == ("response.incomplete", "cancelled", "cancelled")
        assert responses.retrieve(id_).status == "cancelled"
    server.settled()


def test_compact(server, responses):
    """C23: the user's messages stay, the rest becomes a summary, and the conversation goes on from both."""
    said = {"role": "assistant", "content": "I have found it. " * 8}
    asked = {"model": "tiny", "input": [USER, said, {"role": "user", "content": "Where?"}]}
    assert responses.compact(**asked).object == "response.compaction"
    made = server.client.post("/v1/responses/compact", json=asked).json()
    *users, summary = made["output"]
    assert [item["content"][0]["text"] for item in users] == ["Go on.", "Where?"]
    assert summary["type"] == "compaction"
    assert made["usage"]["output_tokens"] > 0
    short = responses.input_tokens.count(model="tiny", input=[*users, USER]).input_tokens
    with_summary = responses.input_tokens.count(model="tiny", input=[*made["output"], USER]).input_tokens
    assert (with_summary > short) == bool(opened(summary["encrypted_content"]))


def test_truncation(responses):
    """C19: with `auto` a conversation that is too long loses its first turns, and no more of them than it has to."""
    system, last = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "The last one?"}
    turns = []
    for index in range(40):
        turns.append({"role": "user", "content": f"Question {index}?"})
        turns.append({"role": "assistant", "content": f"Answer {index}."})
    asked = {"max_output_tokens": 2, "reasoning": {"effort": "none"}}
    with pytest.raises(openai.BadRequestError, match="shorten the conversation"):
        responses.create(input=[system, *turns, last], **asked, **ASK)
    response = responses.create(input=[system, *turns, last], truncation="auto", **asked, **ASK)
    for first in range(0, 80, 2):
        try:
            fits = responses.create(input=[system, *turns[first:], last], **asked, **ASK)
        except openai.BadRequestError:
            continue
        assert response.usage.input_tokens == fits.usage.input_tokens
        assert response.output_text == fits.output_text
        break
