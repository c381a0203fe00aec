"""Bodies that are not called JSON, as `curl -d` sends them."""

import pytest
from server_process import serving

BODY = b'{"prompt": "a secret", "max_tokens": 1}'


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("log"), model, "--max-model-len", 64) as server:
        yield server


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain; charset=utf-8", None])
def test_the_header_is_named_and_the_body_is_not_shown(server, kind):
    headers = {} if kind is None else {"content-type": kind}
    answer = server.client.post("/v1/completions", content=BODY, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"] == (
        f"Content-Type: got {kind or 'none'}, expected application/json; with curl: -H 'Content-Type: application/json'"
    )
    assert error["param"] == "Content-Type"


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"])
def test_json_is_taken_by_all_of_its_names(server, kind):
    answer = server.client.post("/v1/completions", content=BODY, headers={"content-type": kind})
    assert answer.status_code == 200
