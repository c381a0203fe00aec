"""Measures a model of yours with pytest-benchmark, so that runs can be saved and compared.

    pip install dist/*.whl pytest-benchmark
    ROCMFORGE_MODEL=model.gguf pytest -c /dev/null bench_model.py --benchmark-autosave
    ROCMFORGE_MODEL=model.gguf pytest -c /dev/null bench_model.py --benchmark-compare --benchmark-compare-fail=median:5%

The last command fails if a median became more than 5 % worse since the saved run.
"""

import os
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rocmforge import LLM, SamplingParams

NEW_TOKENS = 64
PROMPT_TOKENS = 256
ROUNDS = 5


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Returns the model; without a prefix cache each round computes the same."""
    with LLM(os.environ["ROCMFORGE_MODEL"], enable_prefix_caching=False, max_model_len=1024, progress=False) as llm:
        yield llm


def measure(benchmark: BenchmarkFixture, llm: LLM, num_prompts: int, num_prompt_tokens: int, num_tokens: int) -> None:
    """Times prompts that are served together, and adds tokens per second to the report."""
    vocabulary = llm.tokenizer.vocab_size
    prompts = [[(at + each) % vocabulary for at in range(num_prompt_tokens)] for each in range(num_prompts)]
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    outputs = benchmark.pedantic(llm.generate, (prompts, params), {"progress": False}, rounds=ROUNDS, warmup_rounds=1)
    assert all(len(output.outputs[0].token_ids) == num_tokens for output in outputs)
    computed = num_prompts * (num_prompt_tokens if num_tokens == 1 else num_tokens)
    benchmark.extra_info["device"] = llm.device
    benchmark.extra_info["tokens_per_second"] = computed / benchmark.stats["median"]


def test_prompt(benchmark: BenchmarkFixture, llm: LLM) -> None:
    """A long prompt, up to its first token."""
    measure(benchmark, llm, 1, PROMPT_TOKENS, 1)


@pytest.mark.parametrize("num_sequences", [1, 8])
def test_decoding(benchmark: BenchmarkFixture, llm: LLM, num_sequences: int) -> None:
    """Tokens of one sequence, and of several at once."""
    measure(benchmark, llm, num_sequences, 8, NEW_TOKENS)
