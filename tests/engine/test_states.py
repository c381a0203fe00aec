"""Models whose layers carry recurrent states: what the prefix cache finds of their prompts, and why no more."""

import random

import pytest
from rocmforge import LLM, SamplingParams

BLOCK = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def tokens(count, seed):
    rng = random.Random(seed)
    return [rng.randrange(512) for _ in range(count)]


@pytest.fixture
def hybrid(tiny_model, assert_nothing_left):
    """An engine of a model with three layers of states to one of attention."""
    with LLM(tiny_model("arch/qwen35"), max_model_len=256, num_threads=2, state_snapshot_interval=64) as llm:
        yield llm
        assert_nothing_left(llm)


@pytest.fixture
def alone(tiny_model):
    """Answers without a prefix cache."""
    with LLM(tiny_model("arch/qwen35"), max_model_len=256, num_threads=1, enable_prefix_caching=False) as llm:
        yield lambda prompt: llm.generate(prompt, GREEDY, progress=False)[0].outputs[0].token_ids


def ask(llm, prompt):
    output = llm.generate(prompt, GREEDY, progress=False)[0]
    return output.num_cached_tokens, output.outputs[0].token_ids


def test_each_turn_begins_where_the_last_one_ended(hybrid, alone):
    """Only the new message is computed, beside what fills no block, and the answers are those without a cache."""
    history = tokens(40, seed=1)
    for turn in range(5):
        cached, answer = ask(hybrid, history)
        assert answer == alone(history)
        if turn:
            # All but the last block of the turn before, whose end generation has not passed.
            assert cached >= (len(history) - 30) // BLOCK * BLOCK - BLOCK, (turn, cached, len(history))
        history = history + answer + tokens(24, seed=10 + turn)


def test_a_long_prompt_is_found_at_its_intervals(hybrid, alone):
    """Another prompt that shares 100 tokens begins at the snapshot behind 64, and the next such one behind 96."""
    shared = tokens(100, seed=2)
    ask(hybrid, shared + tokens(100, seed=3))
    for seed, found in [(4, 64), (5, 96)]:
        prompt = shared + tokens(50, seed)
        assert ask(hybrid, prompt) == (found, alone(prompt))
    assert hybrid.stats().prefix_cache_misses["no_snapshot"] > 0


def test_several_answers_to_one_prompt_each_have_a_state(hybrid, alone):
    prompt = tokens(50, seed=6)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, n=4)
    outputs = hybrid.generate(prompt, params, progress=False)[0].outputs
    assert [output.token_ids for output in outputs] == [alone(prompt)] * 4


def test_slots_are_counted(hybrid):
    ask(hybrid, tokens(50, seed=7))
    stats = hybrid.stats()
    assert stats.state_slots_total > 0
    assert stats.state_slots_cached > 0
    assert stats.state_slots_owned == 0
    states = hybrid.state_map()["state"].tolist()
    assert [states.count(state) for state in range(3)] == [stats.state_slots_free, stats.state_slots_cached, 0]


def test_draft_tokens_change_nothing(tiny_model, hybrid):
    config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    # A text of few tokens repeats itself.
    bias = {7: 40.0, 8: 40.0, 9: 39.0}
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=60, ignore_eos=True, logit_bias=bias)
    prompts = [tokens(20, seed=8), tokens(33, seed=9)]
    with LLM(tiny_model("arch/qwen35"), max_model_len=256, num_threads=1, speculative_config=config) as llm:
        drafting = llm.generate(prompts, params, progress=False)
        stats = llm.stats()
    plain = hybrid.generate(prompts, params, progress=False)
    assert [out.outputs[0].token_ids for out in drafting] == [out.outputs[0].token_ids for out in plain]
    assert stats.spec_decode_num_draft_tokens > 0
    assert stats.state_slots_owned == 0
