"""The part that replays captured decode steps, and compares them with the same steps op by op."""

import itertools
import os
from typing import TypeAlias

from rocmforge import LLM, SamplingParams
from rocmforge.cli.common import completed
from rocmforge.cli.device_test import made_up
from rocmforge.cli.device_test.outcome import LEFT_OUT, NOT_CAPTURED, Job, Outcome
from rocmforge.cli.device_test.replays import replays

# The depth gives a step the number of kernels of an 8B model: some drivers fail only with long graphs.
DEEP = made_up.Shape(layers=32, hidden=256, ffn=512, heads=4, kv_heads=2, head_dim=64, vocab=2048)
QUICK_DEEP = made_up.Shape(layers=4, hidden=256, ffn=256, heads=4, kv_heads=2, head_dim=64, vocab=512)
STEPS = 64
QUICK_STEPS = 6
RUNS = 16
QUICK_RUNS = 2
# Sequences of a step: sizes that steps are captured for, so that both ways launch the same kernels.
SIZES = (1, 2, 8)
# Tokens of the prompt: contexts that reach another split of attention on the way, and that have several.
PROMPTS = (100, 700)
QUICK_PROMPTS = (20,)

Answers: TypeAlias = list[tuple[list[int], list[float]]]
"""One entry per sequence: its tokens and their log-probabilities."""


def graphs(job: Job) -> Outcome:
    """Repeats a graph in many processes; samples the same sequences with captured graphs, many times, and op by op."""
    wrong, lines = replays(job)
    steps, runs = (QUICK_STEPS, QUICK_RUNS) if job.quick else (STEPS, RUNS)
    model = made_up.write(QUICK_DEEP if job.quick else DEEP, job.folder / "deep.gguf")
    _, expected = _run(job, model, captured=False, steps=steps, runs=1)
    described, got = _run(job, model, captured=True, steps=steps, runs=runs)
    if NOT_CAPTURED in described:
        reason = described[described.index(NOT_CAPTURED) :].partition(";")[0]
        return Outcome(LEFT_OUT, f"also where graph capture is asked for, {reason}", lines, {"wrong_processes": wrong})
    differ = sum(found != expected[index // runs] for index, found in enumerate(got))
    figures = {"runs": len(got), "differ": differ, "steps": len(got) * steps, "sizes": list(SIZES)}
    figures["wrong_processes"] = wrong
    sizes = ", ".join(map(str, SIZES))
    summary = (
        f"{differ} of {len(got)} runs differ from the same steps op by op, to the last bit "
        f"({len(got) * steps:,} steps of {sizes} sequences)"
    )
    return Outcome.judged(differ == wrong == 0, summary, details=lines, figures=figures)


def _run(job: Job, model: os.PathLike[str], *, captured: bool, steps: int, runs: int) -> tuple[str, list[Answers]]:
    how = "captured" if captured else "op by op"
    lengths = QUICK_PROMPTS if job.quick else PROMPTS
    found = []
    with LLM(
        model,
        device=job.device,
        max_model_len=max(lengths) + steps,
        max_num_seqs=max(SIZES),
        enable_prefix_caching=False,
        graphs=captured,
    ) as llm:
        for size, length in itertools.product(SIZES, lengths):
            for run in range(runs):
                job.watch(f"steps {how}: {size} sequences after a prompt of {length}, run {run + 1} of {runs}")
                found.append(_answers(llm, size, length, steps))
        return llm.describe(), found


def _answers(llm: LLM, size: int, length: int, steps: int) -> Answers:
    """Sequences of one prompt: they start together, so that each run has the same steps."""
    params = SamplingParams(n=size, temperature=1.0, seed=7, max_tokens=steps, ignore_eos=True, logprobs=0)
    (output,) = completed(llm.generate([(5 * i) % 251 for i in range(length)], params, progress=False))
    return [
        (
            sequence.token_ids,
            [at[token].logprob for token, at in zip(sequence.token_ids, sequence.logprobs or (), strict=True)],
        )
        for sequence in output.outputs
    ]
