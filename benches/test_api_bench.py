"""Measures the Python surface: text to tokens and back, one step of 64 sequences, a look at the statistics."""

from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture
from rocmforge import LLM, SamplingParams, Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog; 3.14159 is not 22/7. Zürich, naïve, 東京, 🚀!\n" * 100
SEQUENCES = 64
NEW_TOKENS = 64


def test_encode(benchmark: BenchmarkFixture, model_path: Path) -> None:
    tokenizer = Tokenizer(model_path)
    ids = benchmark(tokenizer.encode, TEXT)
    assert tokenizer.decode(ids) == TEXT
    benchmark.extra_info["tokens_per_second"] = round(len(ids) / benchmark.stats.stats.median, 1)


def test_decode_text(benchmark: BenchmarkFixture, model_path: Path) -> None:
    tokenizer = Tokenizer(model_path)
    ids = tokenizer.encode(TEXT)
    assert benchmark(tokenizer.decode, ids) == TEXT
    benchmark.extra_info["tokens_per_second"] = round(len(ids) / benchmark.stats.stats.median, 1)


def test_step_of_64_sequences_on_a_tiny_model(benchmark: BenchmarkFixture, tiny_llm: LLM) -> None:
    """Scheduler, sampler, detokenizer and delivery of 64 sequences; the model itself is next to nothing."""
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    prompts = [[5 + i] for i in range(SEQUENCES)]
    outputs = benchmark.pedantic(lambda: tiny_llm.generate(prompts, params, progress=False), rounds=5, warmup_rounds=1)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [NEW_TOKENS] * SEQUENCES
    benchmark.extra_info["microseconds_per_step"] = round(1e6 * benchmark.stats.stats.median / NEW_TOKENS, 1)


def test_one_token_request(benchmark: BenchmarkFixture, tiny_llm: LLM) -> None:
    """A request's whole way through the engine and back, in the shortest form there is."""
    params = SamplingParams(max_tokens=1, temperature=0.0)
    outputs = benchmark(tiny_llm.generate, [5], params, progress=False)
    assert len(outputs[0].outputs[0].token_ids) == 1


def test_stats(benchmark: BenchmarkFixture, tiny_llm: LLM) -> None:
    benchmark(tiny_llm.stats)
