"""Parts that compare results with what is right: kernels, sums that blocks share, the vendor's matrix library."""

from rocmforge import _rocmforge
from rocmforge.cli.device_test.outcome import FAILED, LEFT_OUT, Job, Outcome
from rocmforge.reports import CaseGroup

REPETITIONS = 10_000
QUICK_REPETITIONS = 20
MOST_PROBLEMS = 8


def kernels(job: Job) -> Outcome:
    """Every op and tensor type against references in double precision, and bit for bit alone and together."""
    return _groups(_rocmforge.device_cases(job.device, quick=job.quick, watch=job.watch, done=job.done), "")


def repeats(job: Job) -> Outcome:
    """Sums that several blocks of threads share, again and again."""
    count = QUICK_REPETITIONS if job.quick else REPETITIONS
    groups = _rocmforge.device_repeats(job.device, repetitions=count, quick=job.quick, watch=job.watch, done=job.done)
    return _groups(groups, f", each {count:,} times to the last bit")


def _groups(groups: list[CaseGroup], note: str) -> Outcome:
    cases, wrong = sum(group["cases"] for group in groups), sum(group["wrong"] for group in groups)
    right = [group for group in groups if not group["wrong"]] or groups
    worst = max(right, key=lambda group: group["worst"])
    share = f"worst error {worst['worst']:.2f} of its tolerance ({worst['name']})"
    figures = {"cases": cases, "wrong": wrong, "groups": groups}
    if not wrong:
        return Outcome.judged(cases > 0, f"{cases:,} cases{note}, none wrong; {share}", figures=figures)
    details = [f"{group['name']}: {group['wrong']} of {group['cases']} wrong" for group in groups if group["wrong"]]
    problems = [problem for group in groups for problem in group["problems"]]
    details += problems[:MOST_PROBLEMS]
    return Outcome(FAILED, f"{wrong:,} of {cases:,} cases{note} wrong", details, figures)


def matrix_library(job: Job) -> Outcome:
    """The vendor's matrix library on shapes of common models."""
    found = _rocmforge.device_matrix_library(job.device, quick=job.quick, watch=job.watch)
    if found["not_used"] is not None:
        return Outcome(LEFT_OUT, f"not used: {found['not_used']}", figures={**found})
    tried = found["tried"]
    bad = [item for item in tried if item["problem"] is not None]
    products = sum(item["products"] for item in tried)
    summary = f"{len(tried) - len(bad)} of {len(tried)} shapes right ({products} products), {found['file']}"
    details = [f"{item['shape']}: {item['problem']}" for item in bad]
    return Outcome.judged(not bad, summary, details=details, figures={**found})
