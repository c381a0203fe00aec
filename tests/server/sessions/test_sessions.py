"""Sessions of coding agents and chat clients: nothing is refused, and the cache has what there was before."""

import json
import os

import pytest
from server_process import serving
from session_clients import CLIENTS
from session_model import scripted_model

# `make test-deep` has long ones.
TURNS = int(os.environ.get("ROCMFORGE_TEST_SESSION_TURNS", "5"))
CONTEXT = 65536
BLOCK = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a model for each client, which answers in text and calls the client's tools."""
    folder = tmp_path_factory.mktemp("sessions")
    lines = [f"max_model_len = {CONTEXT}", "num_threads = 1", "kv_cache_memory = 67108864"]
    for client in CLIENTS:
        answers = client.answers() if client.many_answers else client.answers()[:1]
        path = scripted_model(folder / f"{client.__name__}.gguf", answers, CONTEXT, client.template)
        lines += [f"[models.{client.__name__}]", f'path = "{path}"', f"aliases = {json.dumps(client.aliases)}"]
    config = folder / "models.toml"
    config.write_text("\n".join(lines))
    with serving(folder, "--config", config) as server:
        yield server


def ask(server, client, path, body):
    response = server.client.post(path, json=body, headers=client.headers)
    assert response.status_code == 200, (client, path, response.text)
    return response


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_session(server, client, stream):
    """C18, C19: nothing is refused, and all that the engine has computed comes from the cache, in whole blocks."""
    session = client(client.__name__, stream=stream)
    for path, body in session.beginning():
        ask(server, session, path, body)
    # The tokens of the engine, and those of them that stand before the reasoning of the current task.
    before, task, calls = 0, 0, 0
    for turn in range(TURNS):
        session.say()
        used = session.take(ask(server, session, session.path, session.body()))
        known = task if client.forgets and session.is_task else before
        assert used.prompt > known, turn
        assert used.cached >= known // BLOCK * BLOCK, (turn, used, known)
        if session.is_task:
            # Without the reasoning of the task before.
            assert not (client.forgets and turn) or used.cached < before
            task = used.prompt
        # The token that was generated last is not computed.
        before = used.prompt + used.generated - 1
        calls += len(session.waiting)
        for path, body in session.behind():
            ask(server, session, path, body)
    assert calls or TURNS < 10
    server.settled(client.__name__)
