"""The part that lets a made-up model answer many requests together, and each alone."""

import asyncio
import os
import random
from dataclasses import dataclass

from rocmforge import LLM, AsyncLLM, SamplingParams
from rocmforge.cli.common import completed
from rocmforge.cli.device_test import made_up
from rocmforge.cli.device_test.outcome import Job, Outcome

SEQUENCES = made_up.Shape(layers=8, hidden=512, ffn=1024, heads=8, kv_heads=2, head_dim=64, vocab=4096)
QUICK_SEQUENCES = made_up.Shape(layers=2, hidden=256, ffn=256, heads=4, kv_heads=2, head_dim=64, vocab=512)

REQUESTS = 96
QUICK_REQUESTS = 16
MAX_MODEL_LEN = 192
BLOCK_SIZE = 16
# Blocks of a pool that a few of the requests fill, so that some have to give way.
POOL_BLOCKS = 40
QUICK_POOL_BLOCKS = 14
CANCELLED_EVERY = 5


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: list[int]
    max_tokens: int
    cancel_after: int | None
    """Tokens after which the request is cancelled."""

    def params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.max_tokens, temperature=0.0, ignore_eos=True)


def _requests(count: int, vocab: int) -> list[_Request]:
    """Requests of many lengths; a part of them begin alike."""
    rng = random.Random(1)  # noqa: S311 - the same each time
    prefixes = [[rng.randrange(vocab) for _ in range(n)] for n in (0, 0, 16, 48, 80)]
    requests = []
    for i in range(count):
        prompt = rng.choice(prefixes) + [rng.randrange(vocab) for _ in range(rng.randrange(1, 60))]
        cancel_after = rng.randrange(1, 12) if i % CANCELLED_EVERY == 1 else None
        requests.append(_Request(prompt, rng.randrange(16, 50), cancel_after))
    return requests


def sequences(job: Job) -> Outcome:
    """Requests together, in a pool far too small for them, against each of them alone."""
    shape = QUICK_SEQUENCES if job.quick else SEQUENCES
    model = made_up.write(shape, job.folder / "sequences.gguf")
    requests = _requests(QUICK_REQUESTS if job.quick else REQUESTS, shape.vocab)
    job.watch("each request alone")
    with LLM(
        model,
        device=job.device,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=1,
        enable_prefix_caching=False,
        batch_invariant=True,
    ) as llm:
        alone = [
            completed(llm.generate(request.prompt, request.params(), progress=False))[0].outputs[0].token_ids
            for request in requests
        ]
    job.watch("all requests together")
    together, stats = asyncio.run(_together(job, model, shape, requests))
    mixed_up = [
        index
        for index, (got, expected, request) in enumerate(zip(together, alone, requests, strict=True))
        if got != (expected if request.cancel_after is None else expected[: len(got)])
    ]
    distinct = len({tuple(tokens) for tokens in alone})
    figures = {"requests": len(requests), "mixed_up": len(mixed_up), "distinct_answers": distinct} | stats
    summary = (
        f"answers mixed up: {len(mixed_up)} of {len(requests)} ({stats['cancelled']} cancelled, "
        f"{stats['preemptions']} preemptions, {stats['prefix_hits']} tokens from shared prefixes)"
    )
    details = [f"request {index}: {together[index]}, not {alone[index]}" for index in mixed_up[:3]]
    # A model with equal answers, or a pool with room for all, would hide the faults that this part looks for.
    told_apart = distinct > len(requests) * 3 // 4 and stats["preemptions"] > 0 and stats["prefix_hits"] > 0
    if not told_apart:
        details.append(f"nothing is proven: {figures}")
    return Outcome.judged(told_apart and not mixed_up, summary, details=details, figures=figures)


async def _together(
    job: Job, model: os.PathLike[str], shape: made_up.Shape, requests: list[_Request]
) -> tuple[list[list[int]], dict[str, int]]:
    block_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2 * BLOCK_SIZE
    engine = AsyncLLM(
        model,
        device=job.device,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=12,
        max_num_batched_tokens=64,
        # With this setting, results do not depend on the batch on a GPU either.
        batch_invariant=True,
        kv_cache_memory=(QUICK_POOL_BLOCKS if job.quick else POOL_BLOCKS) * block_bytes,
    )
    cancelled = 0

    async def one(request: _Request) -> list[int]:
        nonlocal cancelled
        tokens: list[int] = []
        outputs = engine.generate(request.prompt, request.params())
        async for output in outputs:
            tokens = output.outputs[0].token_ids
            if request.cancel_after is not None and len(tokens) >= request.cancel_after:
                cancelled += 1
                break
        await outputs.aclose()
        return tokens

    async with engine:
        answers = list(await asyncio.gather(*(one(request) for request in requests)))
        # However a request ends, nothing of it may remain.
        await engine.check_integrity()
        stats = engine.stats()
    counts = {"preemptions": stats.num_preemptions, "prefix_hits": stats.prefix_cache_hits, "cancelled": cancelled}
    return answers, counts
