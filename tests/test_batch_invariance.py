"""A request's tokens do not depend on what it was batched with, how it was chunked, or where its prefix came from."""

import random

import pytest
from rocmforge import LLM, InvalidRequestError, SamplingParams

ENGINES = {
    "one step per prompt": {"max_num_batched_tokens": 512},
    "chunks of 7": {"max_num_batched_tokens": 7, "max_num_seqs": 6},
    "chunks of 33, no prefix cache": {"max_num_batched_tokens": 33, "max_num_seqs": 8, "enable_prefix_caching": False},
    "preemption all the time": {"max_num_batched_tokens": 64, "kv_cache_memory": 13 * 16 * 2 * 2 * 2 * 64 * 2},
}
MIXES = 200


@pytest.fixture(scope="module", params=["quant_models/Q4_K_M", "quant_models/Q4_0", "arch/qwen3moe"])
def model(request, tiny_model):
    return tiny_model(request.param)


def random_request(rng, prefixes):
    prompt = list(rng.choice(prefixes)) + [rng.randrange(512) for _ in range(rng.randrange(1, 40))]
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


def test_two_hundred_random_mixes(model, assert_nothing_left):
    """S12, S14: together, alone, chunked, preempted and with a cached prefix: the same tokens, exactly."""
    rng = random.Random(20260801)
    prefixes = [[rng.randrange(512) for _ in range(n)] for n in (0, 16, 32, 50, 80)]
    alone = LLM(model, enable_prefix_caching=False, num_threads=1, max_model_len=176)
    engines = [LLM(model, num_threads=2, **({"max_model_len": 176} | args)) for args in ENGINES.values()]
    for mix in range(MIXES // 2):
        requests = [random_request(rng, prefixes) for _ in range(rng.randrange(2, 7))]
        prompts, params = [r[0] for r in requests], [r[1] for r in requests]
        engine = engines[mix % len(engines)]
        together = engine.generate(prompts, params, progress=False)
        for prompt, param, out in zip(prompts, params, together, strict=True):
            expected = alone.generate(prompt, param, progress=False)[0].outputs[0]
            assert out.outputs[0].token_ids == expected.token_ids, f"mix {mix}"
            assert out.outputs[0].text == expected.text
    assert engines[0].stats().prefix_cache_hits > 0
    assert engines[-1].stats().num_preemptions > 0
    for engine in [alone, *engines]:
        assert_nothing_left(engine)
        engine.close()


def test_prompt_logits_are_bitwise_equal_to_those_of_chunks(model):
    rng = random.Random(7)
    prompt = [rng.randrange(512) for _ in range(120)]
    whole = LLM(model, max_num_batched_tokens=512, max_model_len=128)
    chunks = LLM(model, max_num_batched_tokens=7, max_num_seqs=4, max_model_len=128, num_threads=1)
    assert whole.prompt_logits(prompt).tobytes() == chunks.prompt_logits(prompt).tobytes()
    whole.close()
    chunks.close()


def test_every_instruction_set_gives_the_same_bits(model, monkeypatch):
    """P5: the scalar kernels are the oracle of the others, through the whole engine."""
    prompt = [(7 * i) % 512 for i in range(50)]
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
