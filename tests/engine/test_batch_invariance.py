"""A request's tokens do not depend on what it was batched with, how it was chunked, or where its prefix came from."""

import random

import pytest
from rocmforge import LLM, InvalidRequestError, SamplingParams
from tiny_models import ARCHITECTURES

ENGINES = {
    "one step per prompt": {"max_num_batched_tokens": 512},
    "chunks of 7": {"max_num_batched_tokens": 7, "max_num_seqs": 6},
    "chunks of 33, no prefix cache": {"max_num_batched_tokens": 33, "max_num_seqs": 8, "enable_prefix_caching": False},
    "draft tokens": {
        "max_num_batched_tokens": 64,
        "speculative_config": {"num_speculative_tokens": 5, "prompt_lookup_min": 1},
    },
    "preemption all the time": {"max_num_batched_tokens": 64},
}
# Models with quantised weights, and how many mixes each sees; those in float weights see fewer.
QUANTISED = {"quant_models/Q4_K_M": 100, "quant_models/Q4_0": 100}
MIXES_IN_FLOAT = 24
# One model of each kind of layer sees mixes at every commit.
KINDS = (
    "deepseek2",
    "falcon_h1",
    "gemma3",
    "gemma4_moe",
    "gpt_oss",
    "granitehybrid",
    "jamba",
    "lfm2",
    "llama3_ropescale",
    "llama4",
    "qwen3",
    "qwen35",
    "qwen3next",
)
MIXED = [
    *QUANTISED,
    *(
        pytest.param(f"arch/{name}", marks=[] if name in KINDS else pytest.mark.deep, id=f"arch/{name}")
        for name in ARCHITECTURES
    ),
]
# Tokens of the longest sequence, and of the smallest vocabulary.
LENGTH = 128
VOCAB = 304


@pytest.fixture(scope="module", params=[*QUANTISED, *(f"arch/{name}" for name in ARCHITECTURES)])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name, tiny_model):
    return tiny_model(name)


def memory_for_one_and_a_quarter(model):
    """Bytes of a KV pool in which one sequence of `LENGTH` tokens fits, and hardly another."""
    with LLM(model, max_model_len=LENGTH, max_num_seqs=1, max_num_batched_tokens=64, num_threads=1) as llm:
        return llm.memory().kv_cache * 5 // 4


def random_request(rng, prefixes):
    prompt = list(rng.choice(prefixes)) + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))]
    greedy = rng.random() < 0.5
    params = SamplingParams(
        temperature=0.0 if greedy else 0.9,
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 40]),
        seed=rng.randrange(1 << 30),
        max_tokens=rng.randrange(1, 24),
        ignore_eos=True,
    )
    return prompt, params


@pytest.mark.parametrize("name", MIXED, scope="module")
def test_random_mixes(name, model, assert_nothing_left):
    """S12, S14: together, alone, chunked, preempted and with a cached prefix: the same tokens, exactly."""
    rng = random.Random(20260801)
    prefixes = [[rng.randrange(VOCAB) for _ in range(n)] for n in (0, 16, 32, 50, 64)]
    alone = LLM(model, enable_prefix_caching=False, num_threads=1, max_model_len=LENGTH)
    settings = dict(ENGINES)
    has_states = alone.stats().state_slots_total > 0
    if has_states:
        del settings["draft tokens"]
    engines = [LLM(model, num_threads=2, max_model_len=LENGTH, **args) for args in list(settings.values())[:-1]]
    small = {**ENGINES["preemption all the time"], "kv_cache_memory": memory_for_one_and_a_quarter(model)}
    engines.append(LLM(model, num_threads=2, max_model_len=LENGTH, **small))
    for mix in range(QUANTISED.get(name, MIXES_IN_FLOAT)):
        requests = [random_request(rng, prefixes) for _ in range(rng.randrange(2, 7))]
        prompts, params = [r[0] for r in requests], [r[1] for r in requests]
        engine = engines[mix % len(engines)]
        if engine is engines[-1]:
            # Sequences that go on to the end outgrow the pool together.
            params = [
                param.replace(max_tokens=LENGTH - len(prompt)) for prompt, param in zip(prompts, params, strict=True)
            ]
        together = engine.generate(prompts, params, progress=False)
        for prompt, param, out in zip(prompts, params, together, strict=True):
            expected = alone.generate(prompt, param, progress=False)[0].outputs[0]
            assert out.outputs[0].token_ids == expected.token_ids, f"mix {mix}"
            assert out.outputs[0].text == expected.text
    assert engines[0].stats().prefix_cache_hits > 0
    # In so small a pool a sequence with states waits for a slot, and none is preempted.
    if not has_states:
        assert engines[list(settings).index("draft tokens")].stats().spec_decode_num_proposed_tokens > 0
        assert engines[-1].stats().num_preemptions > 0
    for engine in [alone, *engines]:
        assert_nothing_left(engine)
        engine.close()


def test_prompt_logits_are_bitwise_equal_to_those_of_chunks(model):
    rng = random.Random(7)
    prompt = [rng.randrange(VOCAB) for _ in range(120)]
    whole = LLM(model, max_num_batched_tokens=512, max_model_len=LENGTH)
    chunks = LLM(model, max_num_batched_tokens=7, max_num_seqs=4, max_model_len=LENGTH, num_threads=1)
    assert whole.prompt_logits(prompt).tobytes() == chunks.prompt_logits(prompt).tobytes()
    whole.close()
    chunks.close()


def test_every_instruction_set_gives_the_same_bits(model, monkeypatch):
    """P5: the scalar kernels are the oracle of the others, through the whole engine."""
    prompt = [(7 * i) % VOCAB for i in range(50)]
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", "no-such")
    with pytest.raises(InvalidRequestError, match="scalar") as caught:
        LLM(model, device="cpu")
    available = str(caught.value).split("has: ")[1].split(", ")
    results = []
    for isa in available:
        monkeypatch.setenv("ROCMFORGE_CPU_ISA", isa)
        with LLM(model, device="cpu", max_model_len=64) as llm:
            results.append(llm.prompt_logits(prompt).tobytes())
    assert len(set(results)) == 1, available
