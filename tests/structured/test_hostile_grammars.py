"""Forms that are made to cost much: they are served or refused, and requests beside them go on."""

import asyncio
import contextlib
import subprocess
import sys
import textwrap

import hostile_grammars
import pytest
from conftest import collect
from rocmforge import LLM, AsyncLLM, GrammarError, InvalidRequestError, SamplingParams, StructuredOutputsParams

REFUSED = hostile_grammars.IMPOSSIBLE | hostile_grammars.TOO_LARGE
# Megabytes that the grammars of an engine may take, and the process beside them: pools of the allocator, and what a
# text under way holds.
BOUND, SLACK = 256, 160


@pytest.fixture(scope="module")
def llm(long_model):
    with LLM(long_model, num_threads=1, max_model_len=256) as llm:
        yield llm


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_text_fits_is_refused(llm, name, assert_nothing_left):
    """H11: such a form is an error of the request, before anything runs, which names the field and says why."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**REFUSED[name]))
    with pytest.raises(InvalidRequestError, match=r"structured_outputs: got \w+ that is refused \((?!NoExtension)"):
        llm.generate(["x", "x"], [SamplingParams(), params])
    assert_nothing_left(llm)


@pytest.mark.parametrize("name", hostile_grammars.LATE)
async def test_late_failures_end_their_own_request(long_model, name, assert_nothing_left):
    """H11: what only the text shows ends its request with a `GrammarError` that says what to do; others go on."""
    params = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(**hostile_grammars.ALL[name]))
    async with AsyncLLM(long_model, num_threads=1, max_model_len=256) as engine:
        beside = asyncio.create_task(collect(engine, "x", SamplingParams(max_tokens=50, ignore_eos=True)))
        with pytest.raises(GrammarError, match=r"structured_outputs: .*give the text a form that is smaller"):
            await collect(engine, "x", params)
        assert len((await beside)[-1].outputs[0].token_ids) == 50
        await asyncio.to_thread(assert_nothing_left, engine)


@pytest.mark.parametrize("name", hostile_grammars.COSTLY)
def test_costly_grammars_are_served_or_refused(llm, name, assert_nothing_left):
    """H2: a form whose masks may cost much ends in a text or in an error; several sequences of it as well."""
    params = SamplingParams(
        n=4, max_tokens=12, seed=1, structured_outputs=StructuredOutputsParams(**hostile_grammars.COSTLY[name])
    )
    try:
        [output] = llm.generate("x", params)
    except InvalidRequestError as error:
        assert "structured_outputs" in str(error)
    else:
        assert len(output.outputs) == 4
        assert all(one.finish_reason in ("length", "stop") for one in output.outputs)
    assert_nothing_left(llm)


async def test_others_get_their_tokens_meanwhile(long_model, assert_nothing_left):
    """H2: while forms of all kinds are worked on, other requests write the texts that they write alone."""
    plain = SamplingParams(max_tokens=40, temperature=1.0, seed=3, ignore_eos=True)
    guided = plain.replace(structured_outputs=StructuredOutputsParams(regex="[ab ]{30}"), ignore_eos=False)
    async with AsyncLLM(long_model, num_threads=1, max_model_len=256) as engine:

        async def text(params):
            return (await collect(engine, "x", params))[-1].outputs[0].text

        alone = [await text(plain), await text(guided)]

        async def attack(fields):
            params = SamplingParams(max_tokens=20, seed=2, structured_outputs=StructuredOutputsParams(**fields))
            # Whether a costly form is served or refused is no matter here.
            with contextlib.suppress(InvalidRequestError):
                await collect(engine, "x", params)

        attacks = [asyncio.create_task(attack(fields)) for fields in hostile_grammars.ALL.values()]
        assert [await text(plain), await text(guided)] == alone
        await asyncio.gather(*attacks)
        await asyncio.to_thread(assert_nothing_left, engine)


MEMORY = """
    import sys
    from rocmforge import LLM, SamplingParams, StructuredOutputsParams

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096 / 2**20

    with LLM(sys.argv[1], num_threads=1, max_model_len=512) as llm:
        def write(pattern):
            form = StructuredOutputsParams(regex=pattern)
            llm.generate("x", SamplingParams(max_tokens=400, temperature=50.0, seed=1, structured_outputs=form))

        write("[ab]{40}")
        before, most = resident(), 0.0
        for count in range(int(sys.argv[2])):
            write(f"(.*[a-m].{{{40 + count}}}){{3}}")
            most = max(most, resident())
        print(most - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.deep)])
def test_memory_of_grammars_is_bounded(long_model, count):
    """H10: grammars whose states multiply while texts are written take no more memory than the bound of the cache."""
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), str(long_model), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < BOUND + SLACK
