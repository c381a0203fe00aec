"""Load, prefill, decode and batched decode of SmolLM2. Each bench also saves its tokens per second (`extra_info`)."""

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rocmforge import LLM, SamplingParams

PROMPT_TOKENS = 32
NEW_TOKENS = 64


def prompt_ids(count: int, start: int = 0) -> list[int]:
    """Ordinary tokens, different for every `start`."""
    return [100 + (start + i) % 1000 for i in range(count)]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def save_rate(benchmark: BenchmarkFixture, tokens: int) -> None:
    benchmark.extra_info["tokens_per_second"] = round(tokens / benchmark.stats.stats.median, 1)


def test_load(benchmark: BenchmarkFixture, model_path: Path) -> None:
    benchmark.pedantic(lambda: LLM(model_path).close(), rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("tokens", [128, 512])
def test_prefill(benchmark: BenchmarkFixture, llm: LLM, tokens: int) -> None:
    prompt = prompt_ids(tokens)
    outputs = benchmark.pedantic(lambda: llm.generate(prompt, greedy(1), progress=False), rounds=5, warmup_rounds=1)
    assert len(outputs[0].outputs[0].token_ids) == 1
    save_rate(benchmark, tokens)


@pytest.mark.parametrize("sequences", [1, 8, 16])
def test_decode(benchmark: BenchmarkFixture, llm: LLM, sequences: int) -> None:
    """The time includes the prompts (32 tokens each); `rocmforge bench` times the decode steps alone."""
    prompts = [prompt_ids(PROMPT_TOKENS, start=7 * i) for i in range(sequences)]
    outputs = benchmark.pedantic(
        lambda: llm.generate(prompts, greedy(NEW_TOKENS), progress=False), rounds=3, warmup_rounds=1
    )
    assert [len(output.outputs[0].token_ids) for output in outputs] == [NEW_TOKENS] * sequences
    save_rate(benchmark, sequences * NEW_TOKENS)
