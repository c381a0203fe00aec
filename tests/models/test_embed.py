"""Embeddings: hidden states against transformers, and requests for them beside all others."""

import asyncio
import threading

import numpy as np
import pytest
from conftest import ON_GPU, collect
from gguf.quants import dequantize
from rocmforge import (
    LLM,
    AsyncLLM,
    EngineDeadError,
    InvalidRequestError,
    ModelFileError,
    QueueFullError,
    RocmForgeError,
    SamplingParams,
)
from tiny_models import metadata, rewritten

from gguf import GGUFReader

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
# The matrix units of a GPU take attention's queries as f16.
BOUND = 3e-2 if ON_GPU else 1e-3


@pytest.fixture(scope="module")
def embedding_model(tiny_model):
    return tiny_model("embedding/qwen3_embedding")


@pytest.fixture(scope="module")
def golden(golden_npz):
    """Token ids of seven texts, and their vectors."""
    data = golden_npz("embedding/qwen3_embedding")
    texts = bytes(data["texts"]).decode().split("\0")
    return np.split(data["tokens"], data["offsets"][1:-1]), data["embeddings"], texts


@pytest.fixture(scope="module")
def prompts():
    """Prompts of 2 to 60 tokens, some with a beginning in common."""
    rng = np.random.default_rng(3)
    common = rng.integers(3, 250, 32).tolist()
    return [[*(common if n % 2 else []), *rng.integers(3, 250, n).tolist()] for n in (1, 2, 7, 16, 17, 25, 28, 60)]


def hidden_states(path, logits):
    """The hidden states that logits are made of: there are more of these, so that they leave no choice."""
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    matrix = dequantize(output.data, output.tensor_type)
    return np.linalg.lstsq(np.float64(matrix), np.float64(logits).T, rcond=None)[0].T


def test_vectors_are_those_of_transformers(embedding_model, golden, assert_nothing_left):
    """M1, L12: the pooling is the one that the file names, and its tokenizer ends a text with its end token."""
    ids, vectors, texts = golden
    with LLM(embedding_model, kv_cache_dtype="f32", num_threads=1) as llm:
        assert (llm.config()["pooling"], llm.config()["embedding_size"]) == ("last", vectors.shape[1])
        got = llm.embed(ids, progress=False)
        assert got.dtype == np.float32
        assert got.shape == vectors.shape
        assert np.abs(got - vectors).max() < BOUND
        assert np.abs(np.linalg.norm(np.float64(got), axis=1) - 1).max() < 1e-6
        assert [llm.tokenize(text) for text in texts] == [one.tolist() for one in ids[: len(texts)]]
        assert np.array_equal(llm.embed(texts, progress=False), got[: len(texts)])
        assert_nothing_left(llm)


@pytest.mark.parametrize("name", ["llama_tied", "mistral", "qwen2", "qwen3", "qwen3moe", "starcoder2"])
def test_each_pooling_of_each_kind_of_model(name, tiny_model, golden_npz, assert_nothing_left):
    """M1: hidden states of transformers, which its logits tell; the prompt comes in one chunk or in several."""
    path, golden = tiny_model(f"arch/{name}"), golden_npz(f"arch/{name}")
    ids, states = golden["tokens"].tolist(), hidden_states(path, golden["logits"])
    expected = {"last": states[-1], "mean": states.mean(axis=0), "cls": states[0]}
    for tokens in (512, 13):
        settings = {"max_num_batched_tokens": tokens, "max_num_seqs": 4, "max_model_len": 128}
        with LLM(path, kv_cache_dtype="f32", num_threads=1, batch_invariant=True, **settings) as llm:
            for pooling, vector in expected.items():
                got = llm.embed(ids, pooling=pooling, normalize=False, progress=False)[0]
                assert np.abs(got - vector).max() < BOUND * max(1, np.abs(vector).max()), pooling
                unit = llm.embed(ids, pooling=pooling, progress=False)[0]
                assert np.abs(unit - got / np.linalg.norm(np.float64(got))).max() < 1e-6
            assert_nothing_left(llm)


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_a_vector_does_not_depend_on_its_batch(model, prompts, pooling, assert_nothing_left):
    """S12: to the last bit, beside texts that are generated, in chunks, over preemptions and without a prefix cache."""
    settings = {"max_model_len": 128, "num_threads": 1, "batch_invariant": True}
    with LLM(model, **settings, enable_prefix_caching=False) as llm:
        alone = [llm.embed(prompt, pooling=pooling, progress=False)[0] for prompt in prompts]
        texts = [output.outputs[0].token_ids for output in llm.generate(prompts[4:], GREEDY, progress=False)]
    small = {"max_num_batched_tokens": 24, "max_num_seqs": 8, "kv_cache_memory": few_blocks(model, 16)}
    with LLM(model, **settings, **small) as llm:
        generated = []

        def generate():
            generated.extend(llm.generate(prompts[4:], GREEDY, progress=False))

        thread = threading.Thread(target=generate)
        thread.start()
        for _ in range(3):
            assert np.array_equal(llm.embed(prompts, pooling=pooling, progress=False), alone)
        thread.join()
        assert [output.outputs[0].token_ids for output in generated] == texts
        assert llm.stats().num_preemptions > 0
        assert_nothing_left(llm)


def few_blocks(model, count):
    """Bytes of so many blocks of 16 tokens."""
    keys = metadata(model)
    heads = keys["llama.attention.head_count_kv"] * keys["llama.embedding_length"]
    return count * 16 * 2 * 2 * keys["llama.block_count"] * heads // keys["llama.attention.head_count"]


def test_the_prefix_cache_serves_the_last_token_alone(model, prompts, assert_nothing_left):
    """S12: whoever needs all hidden states computes them, and leaves what others find in the cache."""
    with LLM(model, max_model_len=128, num_threads=1, batch_invariant=True) as llm:
        prompt = prompts[-1]
        hits = lambda: llm.stats().prefix_cache_hits  # noqa: E731
        vectors = {pooling: llm.embed(prompt, pooling=pooling, progress=False) for pooling in ("mean", "cls")}
        assert hits() == 0
        last = llm.embed(prompt, progress=False)
        found = hits()
        assert found == (len(prompt) - 1) // 16 * 16
        for pooling, vector in vectors.items():
            assert np.array_equal(llm.embed(prompt, pooling=pooling, progress=False), vector)
        assert hits() == found
        assert llm.reset_prefix_cache()
        assert np.array_equal(llm.embed(prompt, progress=False), last)
        assert llm.stats().num_finished["stop"] == 6
        assert_nothing_left(llm)


def test_what_cannot_be_embedded(model, assert_nothing_left):
    with LLM(model, max_model_len=64, num_threads=1) as llm:
        expected = "pooling: got first, expected 'auto', 'last', 'mean', 'cls' or 'rank'"
        with pytest.raises(InvalidRequestError, match=expected):
            llm.embed("text", pooling="first", progress=False)
        with pytest.raises(InvalidRequestError, match=r"prompt 1: .*65.*64"):
            llm.embed([[1], [1] * 65], progress=False)
        with pytest.raises(InvalidRequestError, match=r"prompt token id: got \d+"):
            llm.embed([10**6], progress=False)
        with pytest.raises(InvalidRequestError, match="empty"):
            llm.embed([], progress=False)
        with pytest.raises(TypeError):
            llm.embed(5, progress=False)
        with pytest.raises(TypeError):
            llm.embed("text", pooling=1, progress=False)
        # A prompt may fill the model's length, since no token follows it.
        assert llm.embed([1] * 64, progress=False).shape == (1, llm.config()["embedding_size"])
        assert llm.stats().engine_steps == 1
        assert_nothing_left(llm)
    with pytest.raises(EngineDeadError):
        llm.embed("text", progress=False)


def test_hidden_states_that_are_no_numbers(model, tmp_path, assert_nothing_left):
    """S23: the request ends with an error, and nothing of it becomes a cached prefix."""
    norm = np.full(metadata(model)["llama.embedding_length"], np.nan, np.float32)
    path = rewritten(model, tmp_path / "nan.gguf", drop=["output_norm.weight"], tensors={"output_norm.weight": norm})
    with LLM(path, max_model_len=64, num_threads=1, self_test=False) as llm:
        with pytest.raises(RocmForgeError, match="no numbers"):
            llm.embed([[1, 2, 3], [4] * 20], progress=False)
        stats = llm.stats()
        assert (stats.num_finished["error"], stats.blocks_cached) == (2, 0)
        assert_nothing_left(llm)


def test_a_file_names_its_pooling(embedding_model, golden, tmp_path):
    ids, _, _ = golden
    for number, name in ((0, "last"), (1, "mean"), (2, "cls"), (3, "last")):
        path = rewritten(embedding_model, tmp_path / f"{number}.gguf", replace={"qwen3.pooling_type": number})
        with LLM(path, num_threads=1) as llm:
            assert llm.config()["pooling"] == name
            named, auto = (llm.embed(ids, pooling=pooling, progress=False) for pooling in (name, "auto"))
            assert np.array_equal(named, auto)
    for number, problem in ((5, "expected 0 to 4"),):
        path = rewritten(embedding_model, tmp_path / f"{number}.gguf", replace={"qwen3.pooling_type": number})
        with pytest.raises(ModelFileError, match=rf"qwen3\.pooling_type: is {number}.*{problem}"):
            LLM(path)
    path = rewritten(embedding_model, tmp_path / "both.gguf", extra={"qwen3.attention.causal": False})
    with pytest.raises(ModelFileError, match=r"qwen3\.attention\.causal: is false"):
        LLM(path)


def test_from_asyncio(model, prompts, assert_nothing_left):
    """S14: many callers at once, each with its own vectors, and texts that are generated beside them."""

    async def run(engine):
        params = GREEDY.replace(output_kind="final_only")
        tasks = [engine.embed(prompt, client=f"client {i}") for i, prompt in enumerate(prompts)]
        *vectors, texts, together = await asyncio.gather(
            *tasks, collect(engine, prompts[1], params), engine.embed(prompts)
        )
        assert texts[-1].outputs[0].finish_reason == "length"
        assert np.array_equal(np.concatenate(vectors), together)
        with pytest.raises(InvalidRequestError, match="prompt 1: "):
            await engine.embed([[1], [10**6]])
        return together

    with AsyncLLM(model, max_model_len=128, num_threads=1, batch_invariant=True) as engine:
        vectors = asyncio.run(run(engine))
        assert_nothing_left(engine)
    with LLM(model, max_model_len=128, num_threads=1, batch_invariant=True) as llm:
        assert np.array_equal(llm.embed(prompts, progress=False), vectors)


def test_callers_that_leave_or_come_too_late(long_model, assert_nothing_left):
    """S20, S28: a cancelled task, a time that is over and a full queue leave nothing, also of prompts half-way."""

    async def run(engine):
        long = [[7] * 20_000] * 3
        task = asyncio.create_task(engine.embed(long))
        while not engine.stats().num_running:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFullError):
            await engine.embed([[1]] * 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(assert_nothing_left, engine)
        with pytest.raises(TimeoutError, match="time was over"):
            await engine.embed(long, timeout=0.01)
        assert (await engine.embed([1, 2])).shape[0] == 1

    with AsyncLLM(long_model, num_threads=1, max_num_seqs=2, max_queue_size=8, max_model_len=30_000) as engine:
        asyncio.run(run(engine))
        assert_nothing_left(engine)
        stats = engine.stats()
        # On a GPU one of the prompts half-way may be through before it is cancelled.
        assert stats.num_finished["stop"] == 1 or (ON_GPU and stats.num_finished["stop"] > 1)
        assert stats.num_finished["error"] == 0
        assert stats.num_finished["timeout"] > 0


def test_an_engine_that_closes_meanwhile(long_model):
    """A14: whoever waits is told."""
    llm = LLM(long_model, num_threads=1, max_model_len=30_000)
    problems = []

    def embed():
        try:
            llm.embed([[7] * 20_000] * 3, progress=False)
        except EngineDeadError as error:
            problems.append(error)

    thread = threading.Thread(target=embed)
    thread.start()
    while not llm.stats().num_running:
        pass
    llm.close()
    thread.join()
    assert len(problems) == 1


def test_in_a_process_of_its_own(model, prompts, assert_nothing_left):
    """Vectors come over the border between the processes as they are."""
    settings = {"max_model_len": 128, "num_threads": 1, "batch_invariant": True}
    with LLM(model, **settings) as llm:
        expected = llm.embed(prompts, pooling="mean", progress=False)
    with AsyncLLM(model, **settings, isolate=True) as engine:
        assert np.array_equal(asyncio.run(engine.embed(prompts, pooling="mean")), expected)
        assert_nothing_left(engine)
    with LLM(model, **settings, isolate=True) as llm:
        assert np.array_equal(llm.embed(prompts, pooling="mean", progress=False), expected)
        with pytest.raises(InvalidRequestError, match="prompt 1: "):
            llm.embed([[1], [10**6]], progress=False)
        assert_nothing_left(llm)
