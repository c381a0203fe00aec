"""`LLM`: what a user does with it, and that nothing is left when it is done."""

import threading
import time

import numpy as np
import pytest
from conftest import ON_GPU
from rocmforge import LLM, EngineDeadError, InvalidRequestError, MemoryUsage, RequestRecord, SamplingParams, Stats

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, max_model_len=256, num_threads=1, seed=1) as engine:
        yield engine


def ids(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def test_single_request_generates_all_tokens(llm, assert_nothing_left):
    """S9, S10, S17: one request, nothing else to keep the loop going."""
    before = llm.stats()
    params = SamplingParams(max_tokens=64, ignore_eos=True)
    (output,) = llm.generate(list(range(100)), params, progress=False)
    assert output.finished
    assert len(output.outputs[0].token_ids) == 64
    assert output.outputs[0].finish_reason == "length"
    # One step for the prompt, one for each token but the first.
    assert llm.stats().engine_steps - before.engine_steps <= 65
    assert_nothing_left(llm)


def test_prompts_in_all_forms(llm):
    text = "ab ab"
    tokens = llm.tokenize(text)
    (expected,) = ids(llm.generate(text, GREEDY, progress=False))
    for one in (tokens, tuple(tokens), np.array(tokens), np.array(tokens, dtype=np.uint32), [text], [tokens]):
        assert ids(llm.generate(one, GREEDY, progress=False)) == [expected]
    two = llm.generate([text, np.array(tokens)], GREEDY, progress=False)
    assert ids(two) == [expected, expected]
    assert [output.prompt for output in two] == [text, None]
    assert ids(llm.generate(np.array([tokens, tokens, tokens]), GREEDY, progress=False)) == [expected] * 3


def test_together_equals_alone(llm, assert_nothing_left):
    """S12, S14: each with its own parameters, in the order given."""
    prompts = [[i + 1] * (3 * i + 1) for i in range(12)]
    params = [SamplingParams(temperature=i % 3 / 2, seed=i, max_tokens=4 + i, ignore_eos=True) for i in range(12)]
    together = llm.generate(prompts, params, progress=False)
    assert [output.prompt_token_ids for output in together] == prompts
    assert [len(tokens) for tokens in ids(together)] == [4 + i for i in range(12)]
    alone = [llm.generate(prompt, one, progress=False)[0] for prompt, one in zip(prompts, params, strict=True)]
    assert ids(together) == ids(alone)
    assert_nothing_left(llm)


def test_same_seed_same_text(llm):
    seeded = SamplingParams(seed=5, max_tokens=32, ignore_eos=True)
    first, second = ids(llm.generate([[7]] * 2, seeded, progress=False))
    (other,) = ids(llm.generate([7], seeded.replace(seed=6), progress=False))
    assert first == second != other


def test_more_prompts_than_the_queue_holds(model, assert_nothing_left):
    """S28: a batch waits for room; it neither fails nor fills the queue beyond its bound."""
    with LLM(model, max_queue_size=3, max_num_seqs=2, max_model_len=64, num_threads=1) as engine:
        outputs = engine.generate([[i + 1] for i in range(40)], GREEDY, progress=False)
        assert [output.prompt_token_ids for output in outputs] == [[i + 1] for i in range(40)]
        assert_nothing_left(engine)


def test_no_bound_goes_on_until_the_context_is_full(llm, assert_nothing_left):
    """A20: `max_tokens=None`."""
    (output,) = llm.generate([3] * 200, GREEDY.replace(max_tokens=None), progress=False)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (56, "length")
    assert_nothing_left(llm)


def test_an_engine_says_what_it_is(llm, model):
    assert llm.model == model
    assert llm.max_model_len == 256
    assert llm.device in llm.describe()
    assert repr(llm) == f"LLM({str(model)!r}, device={llm.device!r}, max_model_len=256, kv_cache_dtype='f16')"


def test_stop_string(llm):
    """S15: the text ends before the stop string, or with it when asked for."""
    (whole,) = llm.generate([9], GREEDY.replace(max_tokens=40), progress=False)
    text = whole.outputs[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    assert len(stop) == 2
    before = text[: text.index(stop)]
    for include in (False, True):
        params = GREEDY.replace(max_tokens=40, stop=stop, include_stop_str_in_output=include)
        output = llm.generate([9], params, progress=False)[0].outputs[0]
        assert output.text == before + (stop if include else "")
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def test_stop_token(llm):
    (whole,) = ids(llm.generate([9], GREEDY.replace(max_tokens=20), progress=False))
    params = GREEDY.replace(max_tokens=20, stop_token_ids=[whole[10]])
    output = llm.generate([9], params, progress=False)[0].outputs[0]
    assert output.token_ids == whole[: whole.index(whole[10]) + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", whole[10])


def test_several_sequences_of_one_prompt(llm, assert_nothing_left):
    """K20, K22: they share the prompt's blocks, and each sees in the cache what a request of its own would.

    The log-probability of every sampled token is, bit for bit, what the same tokens get as the prompt of a request
    that has no prefix to share.
    """
    prompt = [3] * 40
    params = SamplingParams(n=4, seed=1, max_tokens=24, ignore_eos=True, logprobs=0)
    (output,) = llm.generate(prompt, params, progress=False)
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 4
    for completion in output.outputs:
        assert len(completion.token_ids) == 24
        assert llm.reset_prefix_cache()
        own = SamplingParams(max_tokens=1, prompt_logprobs=0)
        (alone,) = llm.generate(prompt + completion.token_ids, own, progress=False)
        assert alone.metrics.num_cached_tokens == 0
        told = alone.prompt_logprobs[len(prompt) :]
        if ON_GPU:  # the sum over the vocabulary is the host's for a prompt, the device's for what is sampled
            values = [[one.logprob for token in some for one in token.values()] for some in (told, completion.logprobs)]
            assert values[0] == pytest.approx(values[1], abs=1e-5)
        else:
            assert told == completion.logprobs
    # The first sequence has the random stream of a request for one; and how many there are changes none of them.
    for n in (1, 2):
        (fewer,) = llm.generate(prompt, params.replace(n=n), progress=False)
        assert [one.token_ids for one in fewer.outputs] == [one.token_ids for one in output.outputs[:n]]
    assert_nothing_left(llm)


def test_logprobs_are_those_of_the_logits(llm):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, prompt_logprobs=0, ignore_eos=True)
    (output,) = llm.generate(prompt, params, progress=False)
    tokens = output.outputs[0].token_ids
    logits = llm.prompt_logits(prompt + tokens).astype(np.float64)
    assert logits.shape == (11, llm.tokenizer.vocab_size)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert output.prompt_logprobs[0] is None
    for position, entry in enumerate(output.prompt_logprobs[1:], start=1):
        assert list(entry) == [prompt[position]]
        assert entry[prompt[position]].logprob == pytest.approx(expected[position - 1, prompt[position]], abs=1e-4)
    for i, (token, entry) in enumerate(zip(tokens, output.outputs[0].logprobs, strict=True)):
        row = expected[len(prompt) - 1 + i]
        assert token in entry
        assert len(entry) == 2
        for candidate, logprob in entry.items():
            assert logprob.logprob == pytest.approx(row[candidate], abs=1e-4)
            assert logprob.rank == (row > row[candidate]).sum() + 1
            assert logprob.decoded_token == llm.detokenize([candidate])
    total = sum(entry[token].logprob for token, entry in zip(tokens, output.outputs[0].logprobs, strict=True))
    assert output.outputs[0].cumulative_logprob == pytest.approx(total, abs=1e-4)


def test_prompt_logits_leave_nothing(llm, assert_nothing_left):
    logits = llm.prompt_logits(np.arange(20))
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    assert_nothing_left(llm)


def test_metrics_tell_how_a_request_went(llm):
    llm.reset_prefix_cache()
    now = time.time()
    prompt = [11] * 64
    first, second = (llm.generate(prompt, GREEDY, progress=False)[0].metrics for _ in range(2))
    assert abs(first.arrival_time - now) < 60
    assert 0 <= first.time_in_queue <= first.time_to_first_token <= first.total_time
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 48)
    (third,) = llm.generate(prompt, GREEDY, progress=False)
    assert third.num_cached_tokens == 48


def test_metrics_of_several_sequences(llm, assert_nothing_left):
    """A4: of a request that has finished all times are known, in order, whichever sequence ended last. One at a time:
    what is left of several steps comes to Python as one."""
    params = SamplingParams(n=4, max_tokens=40, ignore_eos=True, stop_token_ids=list(range(0, 512, 12)))
    for i in range(200):
        (output,) = llm.generate([[i + 1]], params.replace(seed=i), progress=False)
        metrics = output.metrics
        assert 0 <= metrics.time_in_queue <= metrics.time_to_first_token <= metrics.total_time
    assert_nothing_left(llm)


def test_stats_count_what_happened(model):
    """S27: after three requests the counters say three."""
    with LLM(model, max_model_len=64, num_threads=1) as engine:
        start = engine.stats()
        assert isinstance(start, Stats)
        assert not any(start.num_finished.values())
        engine.generate([[5] * 20] * 3, GREEDY, progress=False)
        stats = engine.stats()
        assert stats.num_finished == {"stop": 0, "length": 3, "abort": 0, "timeout": 0, "error": 0}
        assert (stats.prompt_tokens, stats.generated_tokens) == (60, 24)
        assert stats.finished_records == 3
        assert stats.engine_steps > 0
        assert stats.device_allocations == start.device_allocations


def test_equal_prompts_at_once_are_computed_once(model, assert_nothing_left):
    """A22: the second and the third begin with what the first computed, up to its last whole block."""
    with LLM(model, max_model_len=256, num_threads=1) as engine:
        outputs = engine.generate([[5] * 100] * 3, GREEDY, progress=False)
        assert [output.metrics.num_cached_tokens for output in outputs] == [0, 96, 96]
        assert len({tuple(tokens) for tokens in ids(outputs)}) == 1
        assert_nothing_left(engine)


def test_more_sequences_than_run_at_once(model, assert_nothing_left):
    """A6: those without a place start later, and give what they would with a place of their own."""
    params = SamplingParams(n=7, seed=3, max_tokens=12, ignore_eos=True)
    with LLM(model, max_model_len=128, num_threads=1) as engine:
        (expected,) = engine.generate([[9, 8] * 20], params, progress=False)
    with LLM(model, max_model_len=128, max_num_seqs=2, num_threads=1) as engine:
        (output,) = engine.generate([[9, 8] * 20], params, progress=False)
        assert output.outputs == expected.outputs
        assert len({tuple(one.token_ids) for one in output.outputs}) == 7
        assert_nothing_left(engine)


def test_no_lookups_without_a_prefix_cache(model):
    """A20: the counter of lookups stands still where there is nothing to look up."""
    with LLM(model, max_model_len=64, num_threads=1, enable_prefix_caching=False) as engine:
        outputs = engine.generate([[5] * 20] * 3, GREEDY, progress=False)
        assert engine.stats().prefix_cache_queries == 0
        assert {output.metrics.prefix_miss for output in outputs} == {"disabled"}


def test_a_miss_of_the_prefix_cache_has_its_reason(model, assert_nothing_left):
    """A20: of each prompt it is known why no more of it was found; by tokens, the reasons add up to what was missed."""
    block = 16 * 2 * 2 * 2 * 64 * 2
    with LLM(model, max_model_len=64, num_threads=1, kv_cache_memory=6 * block) as engine:

        def ask(prompt, **more):
            params = GREEDY.replace(max_tokens=1, **more)
            (output,) = engine.generate([prompt], params, progress=False)
            assert engine.record(output.request_id).metrics == output.metrics
            return output.num_cached_tokens, output.metrics.prefix_miss

        assert ask([1] * 33) == (0, "new")
        assert ask([1] * 33) == (32, "last_block")
        assert ask([1] * 33, prompt_logprobs=1) == (0, "all_positions")
        assert ask([1] * 16 + [2] * 17) == (16, "new")
        assert ask([3] * 60) == (0, "new")
        assert ask([4] * 60) == (0, "new")
        assert ask([1] * 33) == (0, "evicted")
        stats = engine.stats()
        others = dict.fromkeys(("forgotten", "no_snapshot", "host_memory", "files", "unreadable"), 0)
        assert stats.prefix_cache_misses == {"last_block": 1, "new": 33 + 17 + 60 + 60, "evicted": 33} | others
        assert sum(stats.prefix_cache_misses.values()) == stats.prefix_cache_queries - stats.prefix_cache_hits
        assert_nothing_left(engine)


def test_salt_keeps_prefixes_apart(llm):
    """A20: only requests of the same salt share what was computed."""
    llm.reset_prefix_cache()

    def cached(salt):
        return llm.generate([17] * 33, GREEDY, progress=False, cache_salt=salt)[0].metrics.num_cached_tokens

    assert [cached(salt) for salt in (None, "a", "b", "a", None)] == [0, 0, 0, 32, 32]
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        cached("")


def test_records_of_finished_requests(model):
    """A20: how a request ended can be asked for until `retention` is over."""
    with LLM(model, max_model_len=64, num_threads=1) as engine:
        (output,) = engine.generate([[5] * 20], GREEDY.replace(n=2, temperature=1.0, seed=1), progress=False)
        record = engine.record(output.request_id)
        assert isinstance(record, RequestRecord)
        assert (record.request_id, record.finish_reason, record.error) == (output.request_id, "length", None)
        assert (record.num_prompt_tokens, record.num_generated_tokens) == (20, 16)
        assert record.metrics == output.metrics
        assert engine.record("no such request") is None
    with LLM(model, max_model_len=64, num_threads=1, retention=0.0) as engine:
        (output,) = engine.generate([[5] * 20], GREEDY, progress=False)
        assert engine.record(output.request_id) is None


def test_residency_of_blocks(model):
    """A20: how long blocks stay: one duration per eviction, and one per block that was hit."""
    block = 16 * 2 * 2 * 2 * 64 * 2
    with LLM(model, max_model_len=64, num_threads=1, kv_cache_memory=6 * block) as engine:
        for prompt in ([1] * 33, [1] * 33, [2] * 60, [3] * 60):
            engine.generate(prompt, GREEDY.replace(max_tokens=1), progress=False)
        stats = engine.stats()
        assert stats.prefix_cache_evictions > 0
        assert stats.block_lifetime.total == stats.block_idle_before_evict.total == stats.prefix_cache_evictions
        assert stats.block_reuse_gap.total == stats.prefix_cache_hits // 16 == 2
        assert 0 < stats.block_idle_before_evict.sum < stats.block_lifetime.sum
        bounds = stats.block_lifetime.bounds
        assert list(bounds) == sorted(bounds)
        assert len(stats.block_lifetime.counts) == len(bounds) + 1


def test_memory_is_a_ledger_that_does_not_change(model, tiny_model):
    with LLM(model, max_model_len=64, num_threads=1, kv_cache_memory=1 << 20) as engine:
        before = engine.memory()
        assert isinstance(before, MemoryUsage)
        assert before.total == before.weights + before.kv_cache + before.scratch + before.other
        assert 0 < before.kv_cache <= 1 << 20
        assert 0 < before.weights < 2 * model.stat().st_size
        engine.generate([[5] * 20] * 3, GREEDY, progress=False)
        assert engine.memory() == before


def test_block_map_shows_owners_and_cached_content(model, assert_nothing_left):
    with LLM(model, max_model_len=256, num_threads=1) as engine:
        assert (engine.block_map()["state"] == 0).all()
        params = SamplingParams(max_tokens=100, n=32, ignore_eos=True)
        worker = threading.Thread(target=engine.generate, args=([5] * 100, params))
        worker.start()
        while engine.stats().engine_steps < 2:
            time.sleep(0.0005)
        blocks = engine.block_map()
        assert (blocks["owners"] == 32).sum() == 6
        assert len(blocks) == engine.stats().blocks_total
        assert ((blocks["owners"] > 0) == (blocks["state"] == 2)).all()
        worker.join()
        assert_nothing_left(engine)
        blocks = engine.block_map()
        assert (blocks["state"] == 1).sum() >= 6
        assert blocks["hashed"][blocks["state"] == 1].all()
        assert (blocks["idle_seconds"] >= 0).all()
        assert engine.reset_prefix_cache()
        assert (engine.block_map()["state"] == 0).all()


def test_chat_on_the_real_model(smollm2_path):
    with LLM(smollm2_path, max_model_len=256) as engine:
        conversation = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
        params = SamplingParams(temperature=0.0, max_tokens=16)
        one = engine.chat(conversation, params, progress=False)
        two = engine.chat([conversation, conversation], params, progress=False)
        assert "Paris" in one[0].outputs[0].text
        assert one[0].prompt == engine.apply_chat_template(conversation)
        assert ids(two) == ids(one) * 2


def test_closed_engine_says_so(model):
    engine = LLM(model, max_model_len=64, num_threads=1)
    assert not engine.is_closed
    engine.close()
    engine.close()
    assert engine.is_closed
    for use in (lambda: engine.generate([3], progress=False), lambda: engine.prompt_logits([3])):
        with pytest.raises(EngineDeadError, match="closed"):
            use()


def test_close_ends_what_runs(model):
    """S4, S6: whoever waits is told, and at once."""
    engine = LLM(model, max_model_len=256, num_threads=1)
    reasons = []

    def work():
        try:
            params = SamplingParams(max_tokens=200, ignore_eos=True)
            outputs = engine.generate([[i + 1] for i in range(50)], params, progress=False)
            reasons.extend(output.outputs[0].finish_reason for output in outputs)
        except EngineDeadError:
            reasons.append("dead")

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    while engine.stats().engine_steps < 3:
        time.sleep(0.0005)
    engine.close()
    for worker in workers:
        worker.join(timeout=30)
        assert not worker.is_alive()
    assert {"abort", "dead"} & set(reasons)


def test_two_engines_in_one_process(model, tiny_model, assert_nothing_left):
    with LLM(model, max_model_len=64) as one, LLM(tiny_model("arch/qwen3"), max_model_len=64) as two:
        first = ids(one.generate([[3], [4]], GREEDY, progress=False))
        second = ids(two.generate([[3], [4]], GREEDY, progress=False))
        assert ids(one.generate([[3], [4]], GREEDY, progress=False)) == first != second
        assert_nothing_left(one)
        assert_nothing_left(two)
