"""The properties of the model and of its tokenizer, which clients ask for before their first question."""

import httpx
import openai
import pytest
from marked_models import model_of
from rocmforge import Tokenizer
from server_process import serving


@pytest.fixture(scope="module")
def path(tiny_model, tmp_path_factory):
    return model_of("hermes", tmp_path_factory.mktemp("model"), tiny_model)


@pytest.fixture(scope="module")
def server(path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("props")
    with serving(folder, path, "--served-model-name", "tiny", "--max-model-len", 600, "--max-num-seqs", 3) as server:
        yield server


def test_props(server, path):
    """C23: llama.cpp's clients learn the length, what can be sent, and how many at once."""
    props = server.client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 600
    assert props["modalities"] == {"vision": False, "audio": False}
    assert (props["total_slots"], props["model_alias"], props["model_path"]) == (3, "tiny", path.name)
    tokenizer = Tokenizer(path)
    assert props["chat_template"] == tokenizer.chat_template
    assert props["eos_token"] == tokenizer.decode(tokenizer.eos_token_ids[:1])
    assert server.client.get("/props", params={"model": "tiny"}).json() == props
    assert server.client.get("/props", params={"model": "other"}).status_code == 404
    assert server.client.get("/props", params={"modle": "tiny"}).status_code == 400


def test_tokenizer_info(server, path):
    """C23: what a harness needs to use the server's tokenizer: tokens that `/tokenize` gives back as one."""
    info = server.client.get("/tokenizer_info").json()
    tokenizer = Tokenizer(path)
    assert info["chat_template"] == tokenizer.chat_template
    assert info["bos_token"] == tokenizer.decode([tokenizer.bos_token_id])
    assert tokenizer.encode(info["eos_token"], add_special=False, parse_special=True) == tokenizer.eos_token_ids[:1]
    assert (info["pad_token"], info["model_max_length"]) == (info["eos_token"], 600)


def test_models_tell_what_they_can(server, tiny_model, tmp_path):
    """C23: the length and the capabilities stand in the list of models."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list().data
    assert (model.context_length, model.max_model_len) == (600, 600)
    assert model.capabilities == ["completion", "tools", "thinking"]
    assert model.chats is True
    assert model.architecture == {"input_modalities": ["text"], "output_modalities": ["text"]}
    with serving(tmp_path, tiny_model("embedding/bert"), "--num-threads", 1) as other:
        (model,) = other.client.get("/v1/models").json()["data"]
        assert model["capabilities"] == ["embedding"]
        assert model["chats"] is False
        assert httpx.get(f"{other.url}/props").json()["default_generation_settings"]["n_ctx"] == model["context_length"]
