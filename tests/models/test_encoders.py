"""Models that attend in both directions: vectors against transformers, and all that they refuse."""

import asyncio
import json

import numpy as np
import pytest
from conftest import ON_GPU
from rocmforge import LLM, AsyncLLM, InvalidRequestError, ModelFileError
from rocmforge.cli.app import app
from tiny_models import rewritten
from typer.testing import CliRunner

from gguf import GGUFReader

NAMES = ("bert", "gemma_embedding", "modern_bert", "nomic_bert", "t5encoder")
# Inputs of products are rounded to 16 bits on a GPU: llama.cpp's move the vectors by up to 3.1e-3.
BOUND = 5e-3 if ON_GPU else 1e-4
EXACT = {"num_threads": 1, "batch_invariant": True}


@pytest.fixture(scope="module")
def paths(tiny_model):
    return {name: tiny_model(f"embedding/{name}") for name in (*NAMES, "eurobert")}


@pytest.fixture(scope="module")
def golden(golden_npz):
    """Token ids of seven sequences of each model, their vectors, and the texts of the first four."""

    def read(name):
        data = golden_npz(f"embedding/{name}")
        texts = bytes(data["texts"]).decode().split("\0")
        return np.split(data["tokens"], data["offsets"][1:-1]), data["embeddings"], texts

    return read


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("bert", "cls"),
        ("eurobert", "mean"),
        ("gemma_embedding", "mean"),
        ("modern_bert", "cls"),
        ("nomic_bert", "mean"),
        ("t5encoder", "mean"),
    ],
)
def test_vectors_are_those_of_transformers(name, pooling, paths, golden, assert_nothing_left):
    """M1, L12: the file's pooling, its tokenizer with the tokens around a text, and nothing that stays in the cache."""
    ids, vectors, texts = golden(name)
    with LLM(paths[name], kv_cache_dtype="f32", num_threads=1) as llm:
        assert (llm.config()["pooling"], llm.config()["embedding_size"]) == (pooling, vectors.shape[1])
        got = llm.embed(ids, progress=False)
        assert np.abs(got - vectors).max() < BOUND
        assert np.abs(np.linalg.norm(np.float64(got), axis=1) - 1).max() < 1e-6
        assert [llm.tokenize(text) for text in texts] == [one.tolist() for one in ids[: len(texts)]]
        assert np.abs(llm.embed(texts, progress=False) - got[: len(texts)]).max() < (BOUND if ON_GPU else 1e-9)
        stats = llm.stats()
        assert (stats.blocks_cached, stats.prefix_cache_hits, stats.num_finished["stop"]) == (0, 0, 11)
        assert_nothing_left(llm)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_a_vector_does_not_depend_on_its_batch(name, pooling, paths, golden, assert_nothing_left):
    """S12: to the last bit, alone and with others, in steps that have room for few of them."""
    ids, _, _ = golden(name)
    with LLM(paths[name], **EXACT) as llm:
        alone = [llm.embed(prompt, pooling=pooling, progress=False)[0] for prompt in ids]
    with LLM(paths[name], **EXACT, max_num_batched_tokens=64, max_num_seqs=3, max_model_len=64) as llm:
        for _ in range(2):
            assert np.array_equal(llm.embed(ids, pooling=pooling, progress=False), alone)
        assert_nothing_left(llm)


def test_one_token_is_its_own_text(paths):
    """Whatever the pooling, the vector of one token is the same."""
    with LLM(paths["modern_bert"], **EXACT) as llm:
        first, *others = (llm.embed([7], pooling=pooling, progress=False) for pooling in ("cls", "mean", "last"))
        assert all(np.array_equal(first, other) for other in others)


def test_a_file_without_its_dense_layers(paths, golden, tmp_path):
    """Converters leave them out unless asked: the vector is then what comes before them."""
    keys = [f"gemma-embedding.dense_{layer}_feat_{end}" for layer in (2, 3) for end in ("in", "out")]
    weights = ["dense_2.weight", "dense_3.weight"]
    path = rewritten(paths["gemma_embedding"], tmp_path / "plain.gguf", drop=[*keys, *weights])
    ids, vectors, _ = golden("gemma_embedding")
    with LLM(path, kv_cache_dtype="f32", num_threads=1) as llm:
        plain = llm.embed(ids, progress=False, normalize=False)
    tensors = {tensor.name: np.float64(tensor.data) for tensor in GGUFReader(paths["gemma_embedding"]).tensors}
    expected = np.float64(plain) @ tensors[weights[0]].T @ tensors[weights[1]].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(expected - vectors).max() < BOUND
    with pytest.raises(ModelFileError, match=r"dense_2\.weight: is not a tensor of a gemma-embedding model"):
        LLM(rewritten(paths["gemma_embedding"], tmp_path / "keys.gguf", drop=keys))


def test_it_generates_nothing(paths, assert_nothing_left):
    """Whoever asks for text or for logits is told what the model is for."""
    problem = "model: got an embedding model.*expected one that generates"

    async def ask(engine):
        async for _ in engine.generate("hello"):
            pass

    with LLM(paths["bert"], num_threads=1) as llm:
        for call in (
            lambda: llm.generate("hello", progress=False),
            lambda: list(llm.stream("hello")),
            lambda: llm.prompt_logits([101, 102]),
        ):
            with pytest.raises(InvalidRequestError, match=problem):
                call()
        with pytest.raises(InvalidRequestError, match="pooling: got rank"):
            llm.embed("hello", pooling="rank", progress=False)
        with pytest.raises(InvalidRequestError, match="does not rank"):
            llm.score("hello", ["text"], progress=False)
        assert llm.stats().engine_steps == 0
        assert_nothing_left(llm)
    with AsyncLLM(paths["bert"], num_threads=1) as engine:
        with pytest.raises(InvalidRequestError, match=problem):
            asyncio.run(ask(engine))
        assert_nothing_left(engine)


def test_prompts_that_are_too_long(paths, assert_nothing_left):
    """S18: beyond the model's positions, or beyond what a step computes; one that fills either is served."""
    with LLM(paths["bert"], num_threads=1) as llm:
        assert (llm.config()["max_model_len"], llm.config()["enable_prefix_caching"]) == (64, False)
        with pytest.raises(InvalidRequestError, match=r"prompt 1: .*got 65, expected at most 64 .*made for no more"):
            llm.embed([[7], [7] * 65], progress=False)
        assert llm.embed([7] * 64, progress=False).shape == (1, 64)
        assert_nothing_left(llm)
    with LLM(paths["nomic_bert"], num_threads=1, max_num_batched_tokens=100, max_num_seqs=8) as llm:
        assert llm.config()["max_model_len"] == 100
        with pytest.raises(InvalidRequestError, match=r"got 101, expected at most 100 \(max_num_batched_tokens\)"):
            llm.embed([7] * 101, progress=False)
        assert llm.embed([[7] * 100] * 3, progress=False).shape == (3, 64)
        assert_nothing_left(llm)
    with LLM(paths["nomic_bert"], num_threads=1) as llm:
        assert (llm.config()["max_num_batched_tokens"], llm.config()["max_model_len"]) == (2048, 2048)
        assert llm.embed([7] * 2048, progress=False).shape == (1, 64)
    with pytest.raises(InvalidRequestError, match="max_model_len: got 200, expected at most max_num_batched_tokens"):
        LLM(paths["nomic_bert"], max_num_batched_tokens=100, max_num_seqs=8, max_model_len=200)


def test_files_that_are_no_such_model(paths, tmp_path):
    """L1, L11: what is missing or contradicts the architecture is named when the file is loaded."""
    bert, modern, nomic, t5 = (paths[name] for name in ("bert", "modern_bert", "nomic_bert", "t5encoder"))
    for number, (source, change, problem) in enumerate(
        (
            (bert, {"replace": {"bert.attention.causal": True}}, r"attention\.causal: is true, expected false"),
            (bert, {"replace": {"bert.pooling_type": 4}}, r"cls\.output\.weight: tensor is missing"),
            (nomic, {"replace": {"nomic-bert.pooling_type": 4}}, r"pooling_type: is 4: of the models that rank only"),
            (bert, {"drop": ["position_embd.weight"]}, r"position_embd\.weight: tensor is missing"),
            (bert, {"drop": ["token_types.weight"]}, r"token_types\.weight: tensor is missing"),
            (bert, {"drop": ["blk.1.attn_q.bias"]}, r"blk\.1\.attn_q\.bias: tensor is missing"),
            (bert, {"replace": {"bert.context_length": 65}}, r"position_embd\.weight: has shape"),
            (bert, {"tensors": {"output.weight": np.ones((512, 64), np.float32)}}, r"output\.weight: is not a tensor"),
            (modern, {"drop": ["modern-bert.attention.sliding_window"]}, r"attention\.sliding_window: is missing"),
            (modern, {"tensors": {"blk.0.attn_norm.weight": np.ones(64, np.float32)}}, r"blk\.0\.attn_norm\.weight"),
            (t5, {"drop": ["enc.blk.0.attn_rel_b.weight"]}, r"enc\.blk\.0\.attn_rel_b\.weight: tensor is missing"),
            (t5, {"drop": ["enc.blk.2.attn_o.weight"]}, r"enc\.blk\.2\.attn_o\.weight: tensor is missing"),
            (t5, {"tensors": {"dec.output_norm.weight": np.ones(64, np.float32)}}, r"dec\.output_norm\.weight: is not"),
            (t5, {"replace": {"t5encoder.attention.relative_buckets_count": 15}}, "is 15, expected an even number"),
            (t5, {"replace": {"t5encoder.attention.relative_buckets_count": 32}}, r"attn_rel_b\.weight: has shape"),
            (t5, {"renamed": "t5"}, "architecture 't5' is not supported"),
        )
    ):
        with pytest.raises(ModelFileError, match=problem):
            LLM(rewritten(source, tmp_path / f"{number}.gguf", **change))


def test_a_file_without_a_pooling(paths, golden, tmp_path):
    """The first token's vector is taken: it has nothing else to do."""
    ids, vectors, _ = golden("bert")
    path = rewritten(paths["bert"], tmp_path / "none.gguf", drop=["bert.pooling_type", "bert.attention.causal"])
    with LLM(path, kv_cache_dtype="f32", num_threads=1) as llm:
        assert llm.config()["pooling"] == "cls"
        assert np.abs(llm.embed(ids, progress=False) - vectors).max() < BOUND


def test_many_callers_at_once(paths, golden, assert_nothing_left):
    """S14, and from another process: each caller has the vectors of its own prompts."""
    ids, _, _ = golden("modern_bert")
    settings = EXACT | {"max_num_batched_tokens": 128, "max_num_seqs": 4, "max_model_len": 128}

    async def run(engine):
        prompts = [one for _ in range(8) for one in ids]
        tasks = [engine.embed(prompt, client=f"client {i % 3}") for i, prompt in enumerate(prompts)]
        return np.concatenate(await asyncio.gather(*tasks))

    with AsyncLLM(paths["modern_bert"], **settings) as engine:
        vectors = asyncio.run(run(engine))
        assert_nothing_left(engine)
    with LLM(paths["modern_bert"], **settings, isolate=True) as llm:
        assert np.array_equal(np.tile(llm.embed(ids, progress=False), (8, 1)), vectors)
        with pytest.raises(InvalidRequestError, match="an embedding model"):
            llm.generate("hello", progress=False)
        assert_nothing_left(llm)


def test_inspect_says_what_a_file_serves(paths, model, tmp_path):
    def inspected(path, *more):
        done = CliRunner().invoke(app, ["inspect", str(path), *more])
        assert done.exit_code == 0, done.output
        return done.stdout

    for path, tasks in ((paths["bert"], ["embed"]), (model, ["generate", "embed"])):
        assert json.loads(inspected(path, "--json"))["tasks"] == tasks
        assert f"serves\t{', '.join(tasks)}\n" in inspected(path)
    other = rewritten(paths["bert"], tmp_path / "other.gguf", renamed="other")
    assert "serves\tnothing: this version does not run it\n" in inspected(other)
