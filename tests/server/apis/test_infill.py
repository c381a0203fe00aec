"""llama.cpp's `/infill`, by which editors ask for the text at the cursor."""

import httpx
import pytest
from marked_models import marked
from rocmforge import AsyncLLM, Tokenizer
from rocmforge.server import ServerConfig, create_app

FILL = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
FILES = ["<|repo_name|>", "<|file_sep|>"]
GREEDY = {"temperature": 0, "repeat_penalty": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module", params=[FILL, [*FILL, *FILES]], ids=["alone", "files"])
def marks(request):
    return request.param


@pytest.fixture(scope="module")
def path(marks, tiny_model, tmp_path_factory):
    return marked(tiny_model("quant_models/Q4_0"), tmp_path_factory.mktemp("fim") / "fim.gguf", control=marks)


@pytest.fixture(scope="module")
def filling(path):
    with AsyncLLM(path, max_model_len=200, num_threads=1) as engine:
        yield engine


def asking(engine):
    app = create_app(engine, ServerConfig(served_model_name=("it",)))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")


async def filled(client, **body):
    answer = await client.post("/infill", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def spelt(client, tokens):
    """The answer to a prompt that is given as tokens."""
    body = {"prompt": tokens, "max_tokens": 8} | GREEDY | {"repetition_penalty": 1.0}
    del body["repeat_penalty"]
    return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]


async def test_the_marks_stand_around_the_texts(filling, path, marks):
    """Pieces of other files come first, and the beginning of the answer last. No text becomes a mark."""
    tokenizer = Tokenizer(path)

    def tokens(text):
        return tokenizer.encode(text, add_special=False, parse_special=True)

    texts = {"input_prefix": "ab", "input_suffix": "cd", "prompt": "x"}
    chunks = [{"text": "one", "filename": "a.py", "time": 3}, {"text": "two"}]
    # Editors send these fields.
    body = texts | GREEDY | {"n_predict": 8, "cache_prompt": True, "samplers": ["top_k", "infill"], "stream": False}
    body |= {"t_max_prompt_ms": 500, "id_slot": 0, "model": "", "stop": []}
    async with asking(filling) as client:
        asked = [*tokenizer.encode(""), *tokens("<|fim_prefix|>ab<|fim_suffix|>cd<|fim_middle|>"), *tokens("x")]
        alone = await filled(client, **body)
        assert (alone["content"], alone["tokens_evaluated"]) == (await spelt(client, asked), len(asked))
        assert (alone["model"], alone["tokens_predicted"], alone["stop_type"]) == ("it", 8, "limit")
        if FILES[0] in marks:
            before = "<|repo_name|>repository\n<|file_sep|>a.py\none<|file_sep|>tmp\ntwo<|file_sep|>filename\n"
            before = [tokens(part) for part in before.replace("<|file_sep|>", "\0<|file_sep|>\0").split("\0")]
        else:
            before = [tokens(part) for part in ("\n\n", "one", "\n\n", "two")]
        before = [token for part in before for token in part]
        special = len(tokenizer.encode(""))
        asked = [*asked[:special], *before, *asked[special:]]
        with_files = await filled(client, **body, input_extra=chunks)
        assert (with_files["content"], with_files["tokens_evaluated"]) == (await spelt(client, asked), len(asked))
        # The piece that is furthest away gives way.
        long = [{"text": "y" * 190, "filename": "b.py"}, *chunks]
        assert (await filled(client, **body, input_extra=long))["tokens_evaluated"] == len(asked)
        with_mark = await filled(client, **body | {"input_prefix": "ab" + marks[1]})
        assert with_mark["tokens_evaluated"] > alone["tokens_evaluated"] + 1


async def test_limits_of_an_editor(filling):
    """An answer ends before a line that is indented less, or with its last whole line when its time is over."""
    lines = "    x\n    y\n\n    z\nq"
    body = {"input_prefix": "ab", "input_suffix": "cd", "structured_outputs": {"choice": [lines]}}
    async with asking(filling) as client:
        whole = await filled(client, **body)
        assert (whole["content"], whole["stop_type"], whole["has_new_line"]) == (lines, "eos", True)
        assert (await filled(client, **body, n_indent=5))["content"] == "    x"
        assert (await filled(client, **body, n_indent=4))["content"] == "    x\n    y\n\n    z"
        early = (await filled(client, **body, t_max_predict_ms=1e-6))["content"]
        assert early in ("    x", "    x\n    y", "    x\n    y\n", "    x\n    y\n\n    z")
        assert (await filled(client, **body, t_max_predict_ms=1e6))["content"] == lines
        stopped = await filled(client, **body, stop=["y"])
        assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == ("    x\n    ", "word", "y")
        nothing = await filled(client, **body, n_predict=0)
        assert (nothing["content"], nothing["tokens_predicted"]) == ("", 0)
        wanted = ["content", "timings/predicted_n", "timings/none", "none"]
        picked = await filled(client, **body, response_fields=wanted)
        assert picked == {"content": lines, "timings/predicted_n": whole["tokens_predicted"]}


async def test_what_cannot_be_filled_in_is_said(filling, engine):
    async with asking(engine) as client:
        refused = await client.post("/infill", json={"input_prefix": "ab"})
        assert refused.status_code == 400
        assert "input_suffix: the model's vocabulary has no tokens to fill in" in refused.json()["error"]["message"]
    async with asking(filling) as client:
        for body, param in (
            ({"stream": True}, "stream"),
            ({"n_probs": 3}, "n_probs"),
            ({"n_predict": -2}, "n_predict"),
            ({"input_extra": [{"text": "x" * 10_000_000}]}, "input_extra"),
        ):
            refused = await client.post("/infill", json={"input_prefix": "ab"} | body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
