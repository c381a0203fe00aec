"""`/v1/rerank` against the engine in this process."""

import httpx
import numpy as np
import pytest
from conftest import ON_GPU
from rocmforge import LLM
from server_process import serving
from tiny_models import rewritten
from tiny_rankers import golden, ranker, scores

TEMPLATE = "<Query>: {query}\n<Document>: {document}<|im_end|>\n"
# Inputs of products are rounded to 16 bits on a GPU.
BOUND = 5e-3 if ON_GPU else 1e-4
QUERY, DOCUMENTS = "What is a river?", ["A kind of bread.", "Water.", "A kind of bread.", "Numbers: 1 2 3"]


@pytest.fixture(scope="module")
def embedding_model(tiny_model):
    return tiny_model("embedding/qwen3_embedding")


@pytest.fixture(scope="module")
def path(embedding_model, tmp_path_factory):
    head = np.random.default_rng(6).standard_normal((2, 64)).astype(np.float32)
    return rewritten(
        embedding_model,
        tmp_path_factory.mktemp("rank") / "rank.gguf",
        replace={"qwen3.pooling_type": 4},
        extra={"tokenizer.chat_template.rerank": TEMPLATE},
        tensors={"cls.output.weight": head},
    )


@pytest.fixture(scope="module")
def server(path, tmp_path_factory):
    arguments = ["--num-threads", 1, "--served-model-name", "rank", "--max-prompts", 16]
    with serving(tmp_path_factory.mktemp("log"), path, *arguments) as server:
        yield server


def post(server, **body):
    return httpx.post(f"{server.url}/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS} | body, timeout=30)


def test_documents_in_the_order_of_their_scores(server, path):
    with LLM(path, num_threads=1) as llm:
        scores = llm.score(QUERY, DOCUMENTS, progress=False).tolist()
        count = sum(map(len, llm.rank_prompts(QUERY, DOCUMENTS)))
    order = sorted(range(4), key=lambda index: (-scores[index], index))
    answer = post(server, model="rank").json()
    assert [one["index"] for one in answer["results"]] == order
    assert [one["relevance_score"] for one in answer["results"]] == [scores[index] for index in order]
    assert [one["document"] for one in answer["results"]] == [{"text": DOCUMENTS[index]} for index in order]
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert answer["model"] == "rank"
    best = post(server, top_n=2, return_documents=False).json()["results"]
    assert best == [{"index": index, "relevance_score": scores[index]} for index in order[:2]]
    assert len(post(server, top_n=9).json()["results"]) == 4


@pytest.mark.parametrize(
    ("body", "problem", "param"),
    [
        ({"documents": []}, "documents: got []", "documents"),
        ({"documents": ["x"] * 17}, "documents: got 17, expected at most 16", "documents"),
        ({"documents": [{"image": "x"}]}, "documents.0: got", "documents.0"),
        ({"top_n": 0}, "top_n: got 0", "top_n"),
        ({"max_chunks_per_doc": 3}, "max_chunks_per_doc: this parameter is not supported", "max_chunks_per_doc"),
        ({"documents": ["x", "x " * 400]}, "documents 1: ", "documents"),
    ],
)
def test_what_is_refused(server, body, problem, param):
    """S18, S22, A8: a 400 that says what is wrong."""
    answer = post(server, **body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert problem in error["message"]
    assert error["param"] == param


def test_cohere(server, path):
    """C23: the paths and the forms of Cohere's two clients: objects as documents, and documents that are cut."""
    objects = [{"text": text, "title": str(index)} for index, text in enumerate(DOCUMENTS)]
    first = post(server, documents=objects, rank_fields=["text"]).json()
    plain = post(server).json()
    scores = [one["relevance_score"] for one in plain["results"]]
    assert [one["relevance_score"] for one in first["results"]] == scores
    assert [one["document"] for one in first["results"]] == [objects[one["index"]] for one in first["results"]]
    body = {"model": "rank", "query": QUERY, "documents": DOCUMENTS, "top_n": 3}
    second = httpx.post(f"{server.url}/v2/rerank", json=body, timeout=30).json()
    assert second["results"] == [{k: one[k] for k in ("index", "relevance_score")} for one in plain["results"][:3]]
    assert second["meta"]["api_version"] == {"version": "2"}
    same = httpx.post(f"{server.url}/rerank", json=body, timeout=30).json()
    assert same["results"] == plain["results"][:3]
    with LLM(path, num_threads=1) as llm:
        text = llm.detokenize(llm.tokenizer.encode(DOCUMENTS[0] * 9, add_special=False)[:5])
        expected = llm.score(QUERY, [text], progress=False).tolist()
    cut = post(server, documents=[DOCUMENTS[0] * 9], max_tokens_per_doc=5).json()["results"]
    assert [one["relevance_score"] for one in cut] == expected


def test_scores_of_pairs(server):
    """C23: vLLM's form of scores: one text with many, or pair by pair, in their order."""
    by_index = {one["index"]: one["relevance_score"] for one in post(server).json()["results"]}
    expected = [by_index[index] for index in range(4)]

    def ask(path="/score", **body):
        return httpx.post(f"{server.url}{path}", json=body, timeout=30)

    for answer in (
        ask(text_1=QUERY, text_2=DOCUMENTS),
        ask("/v1/score", queries=QUERY, documents=DOCUMENTS),
        ask(text_1=[QUERY] * 4, text_2=DOCUMENTS),
    ):
        assert [one["score"] for one in answer.json()["data"]] == expected
    twice = ask(text_1=[QUERY, DOCUMENTS[0]], text_2=[DOCUMENTS[1], QUERY]).json()["data"]
    assert twice[0]["score"] == expected[1]
    refused = ask(text_1=[QUERY] * 3, text_2=DOCUMENTS)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text_1")


def test_models_serve_what_they_are_for(server, embedding_model, tmp_path):
    """S29: a model that embeds does not rank, and the other way round."""
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": "x"})
    assert answer.status_code == 400
    assert "the model ranks" in answer.json()["error"]["message"]
    with serving(tmp_path, embedding_model, "--num-threads", 1) as other:
        answer = post(other)
        assert answer.status_code == 400
        assert "does not rank, expected a file with a rank head" in answer.json()["error"]["message"]


def test_an_encoder_ranks(tiny_model, tmp_path):
    """Scores of pairs as transformers has them; the model serves nothing else."""
    path = ranker(tiny_model("embedding/bert"), tmp_path / "bert.gguf", "bert")
    data = golden("embedding/rankers")
    pairs, ids = data["pairs"][:2], data["models"]["bert"]["ids"][:2]
    with serving(tmp_path, path, "--num-threads", 1, "--kv-cache-dtype", "f32") as server:
        answer = post(server, query=pairs[0][0], documents=[document for _, document in pairs]).json()
        got = {one["index"]: one["relevance_score"] for one in answer["results"]}
        assert [one["index"] for one in answer["results"]] == sorted(got, key=lambda index: -got[index])
        assert np.abs(np.array([got[0], got[1]]) - scores("bert")[:2]).max() < BOUND
        assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 400, refused.text
