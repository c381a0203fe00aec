"""`/v1/embeddings` with OpenAI's own client and `/api/embed` with Ollama's, against the engine in this process."""

import asyncio
import base64

import httpx
import numpy as np
import ollama
import openai
import pytest
from rocmforge import LLM
from server_process import serving

TEXTS = ["The engine reads a model file.", "hello", "Die Straße ist naß.", "hello"]


@pytest.fixture(scope="module")
def path(tiny_model):
    return tiny_model("embedding/qwen3_embedding")


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(path, tmp_path_factory):
    arguments = ["--num-threads", 1, "--served-model-name", "small", "--max-prompts", 16]
    with serving(tmp_path_factory.mktemp("log"), path, *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def theirs(server):
    with ollama.Client(server.url) as client:
        yield client


def vectors(answer):
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data], np.float32)


def test_vectors_are_the_engines(client, llm):
    """P7: OpenAI's client asks for base64 and decodes it, unless it is told to take numbers."""
    expected = llm.embed(TEXTS, progress=False)
    for options in ({}, {"encoding_format": "float"}, {"user": "me"}):
        answer = client.embeddings.create(model="small", input=TEXTS, **options)
        assert np.array_equal(vectors(answer), expected)
        assert (answer.object, answer.model, answer.data[0].object) == ("list", "small", "embedding")
        count = sum(len(llm.tokenize(text)) for text in TEXTS)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (count, count)
    assert np.array_equal(vectors(client.embeddings.create(model="small", input=TEXTS[0])), expected[:1])


def test_token_ids(client, llm):
    ids = [llm.tokenize(text) for text in TEXTS]
    expected = llm.embed(TEXTS, progress=False)
    assert np.array_equal(vectors(client.embeddings.create(model="small", input=ids)), expected)
    answer = client.embeddings.create(model="small", input=ids[0])
    assert np.array_equal(vectors(answer), expected[:1])
    assert answer.usage.prompt_tokens == len(ids[0])


def test_fewer_dimensions(client, llm):
    """The first values of each vector, as a unit again."""
    whole = np.float64(llm.embed(TEXTS, progress=False))
    cut = whole[:, :10] / np.linalg.norm(whole[:, :10], axis=1, keepdims=True)
    got = vectors(client.embeddings.create(model="small", input=TEXTS, dimensions=10))
    assert got.shape == cut.shape
    assert np.abs(got - cut).max() < 1e-6
    assert np.array_equal(
        vectors(client.embeddings.create(model="small", input=TEXTS, dimensions=64)), np.float32(whole)
    )


def test_base64_is_of_little_endian_floats(server, llm):
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": "hello", "encoding_format": "base64"}).json()
    got = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    assert np.array_equal(got, llm.embed("hello", progress=False)[0])


@pytest.mark.parametrize(
    ("body", "problem", "param"),
    [
        ({"input": []}, "got an empty list", "input"),
        ({"input": ["x"] * 17}, "input: got 17, expected at most 16", "input"),
        ({"input": "x", "dimensions": 65}, "dimensions: got 65, expected at most 64", "dimensions"),
        ({"input": "x", "dimensions": 0}, "dimensions: got 0", "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format: got 'int8'", "encoding_format"),
        ({"input": ["x", 1]}, "input: got", "input"),
        ({"input": [[1], [10**6]]}, "input 1: prompt token id: got 1000000", "input"),
        ({"input": "x", "truncate": 5}, "truncate: this parameter is not supported", "truncate"),
        ({"input": "x " * 500}, "input length in tokens: got", "input"),
        ({}, "input: it is missing", "input"),
    ],
)
def test_what_is_refused(server, body, problem, param):
    """S18, S22, A8: a 400 that says what is wrong."""
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert problem in error["message"]
    assert error["param"] == param


def test_a_time_that_is_over(server):
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": ["x " * 120] * 16, "timeout": 1e-6})
    assert answer.status_code in (408, 429), answer.text
    assert answer.json()["error"]["param"] == "timeout"


def test_every_text_is_counted(server, client):
    """S27: what was asked and how it ended, and nothing is left of it."""

    def counts():
        text = httpx.get(f"{server.url}/metrics").text
        names = ("vllm:prompt_tokens_total", 'finished_reason="stop"', "vllm:request_prompt_tokens_count")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return [sum(float(line.split()[-1]) for line in lines if name in line) for name in names]

    before = counts()
    usage = client.embeddings.create(model="small", input=TEXTS).usage
    assert np.subtract(counts(), before).tolist() == [usage.prompt_tokens, 4, 4]
    stats = httpx.get(f"{server.url}/v1/engine/stats").json()
    assert (stats["num_running"], stats["num_waiting"], stats["blocks_owned"]) == (0, 0, 0)
    assert httpx.get(f"{server.url}/v1/engine/requests").json() == {"requests": []}


def test_callers_that_leave(long_model, tmp_path):
    """S20: vectors that nobody waits for are not made."""

    async def run(url):
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            task = asyncio.create_task(http.post("/v1/embeddings", json={"input": [[7] * 20_000] * 8}))
            while not (running := (await http.get("/v1/engine/requests")).json()["requests"]):
                await asyncio.sleep(0.01)
            assert (running[0]["n"], running[0]["prompt_tokens"]) == (8, 160_000)
            while (stats := (await http.get("/v1/engine/stats")).json())["num_running"] + stats["num_waiting"] < 8:
                await asyncio.sleep(0.001)
            task.cancel()
            while (await http.get("/v1/engine/requests")).json()["requests"]:
                await asyncio.sleep(0.01)
            while (stats := (await http.get("/v1/engine/stats")).json())["num_running"] or stats["num_waiting"]:
                await asyncio.sleep(0.01)
            assert (stats["blocks_owned"], stats["num_finished"]["stop"]) == (0, 0)
            assert stats["num_finished"]["abort"] == 8

    # Long for a CPU: a GPU would be done before anyone has left.
    limits = ["--device", "cpu", "--num-threads", 1, "--max-model-len", 30_000, "--max-num-seqs", 2]
    with serving(tmp_path, long_model, *limits) as server:
        asyncio.run(asyncio.wait_for(run(server.url), 60))


def test_ollama(theirs, llm):
    expected = llm.embed(TEXTS, progress=False)
    answer = theirs.embed("small", TEXTS)
    assert np.array_equal(np.array(answer.embeddings, np.float32), expected)
    assert (answer.model, answer.prompt_eval_count) == ("small", sum(len(llm.tokenize(text)) for text in TEXTS))
    assert 0 <= answer.load_duration < answer.total_duration
    one = theirs.embed("small:latest", TEXTS[0], options={"num_ctx": 100}, keep_alive="5m")
    assert np.array_equal(np.array(one.embeddings, np.float32), expected[:1])
    assert np.abs(np.linalg.norm(theirs.embed("small", TEXTS, dimensions=9).embeddings, axis=1) - 1).max() < 1e-6
    assert theirs.embed("small", []).embeddings == []


def test_ollamas_texts_are_cut(theirs, llm):
    """A text that is too long keeps the token that the file adds at its end, of which the vector is made."""
    long = "hello " * 300
    ids = llm.tokenize(long)
    expected = llm.embed([ids[:255] + ids[-1:], ids[:19] + ids[-1:]], progress=False)
    assert np.array_equal(np.float32(theirs.embed("small", long).embeddings), expected[:1])
    assert np.array_equal(np.float32(theirs.embed("small", long, options={"num_ctx": 20}).embeddings), expected[1:])
    with pytest.raises(ollama.ResponseError, match="256"):
        theirs.embed("small", long, truncate=False)
    # A context that is longer than the server's is cut to that.
    assert theirs.embed("small", "x", options={"num_ctx": 999}).embeddings == theirs.embed("small", "x").embeddings
    # Options of generations change no vector.
    assert theirs.embed("small", "x", options={"temperature": 0.5}).embeddings == theirs.embed("small", "x").embeddings
    with pytest.raises(ollama.ResponseError, match=r"options\.no_such: this parameter is not supported"):
        theirs.embed("small", "x", options={"no_such": 0.5})


def test_ollamas_earlier_way(theirs, llm):
    got = theirs.embeddings("small", TEXTS[0]).embedding
    assert np.array_equal(np.float32(got), llm.embed(TEXTS[0], normalize=False, progress=False)[0])
    assert theirs.embeddings("small").embedding == []


@pytest.mark.parametrize(("name", "positions"), [("nomic_bert", 2048), ("t5encoder", 512)])
def test_an_encoder_serves_vectors_alone(name, positions, tiny_model, tmp_path):
    """Embeddings by both clients; text is refused as a request that the model cannot serve."""
    path = tiny_model(f"embedding/{name}")
    with LLM(path, num_threads=1) as llm:
        expected = [llm.embed(text, progress=False)[0] for text in TEXTS]
    with serving(tmp_path, path, "--num-threads", 1, "--served-model-name", "small") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert np.array_equal(vectors(client.embeddings.create(model="small", input=TEXTS)), expected)
            with pytest.raises(openai.BadRequestError, match="an embedding model"):
                client.completions.create(model="small", prompt="hello")
            too_long = [7] * (positions + 1)
            with pytest.raises(openai.BadRequestError, match=str(positions)):
                client.embeddings.create(model="small", input=too_long)
        with ollama.Client(server.url) as theirs:
            assert np.array_equal(np.float32(theirs.embed("small", TEXTS).embeddings), expected)
            assert theirs.show("small").capabilities == ["embedding"]
        assert httpx.get(f"{server.url}/health").status_code == 200
