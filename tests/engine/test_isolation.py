"""An engine in a child process gives what the engine in this one gives, and its faults stay there."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import collect
from processes import children
from rocmforge import (
    LLM,
    AsyncLLM,
    EngineDeadError,
    InvalidRequestError,
    ModelFileError,
    RocmForgeError,
    SamplingParams,
    StructuredOutputsParams,
)
from rocmforge.isolation import supervisor

PATIENCE = 30.0
ENDLESS = SamplingParams(max_tokens=60_000, temperature=0.0, ignore_eos=True, output_kind="delta")
SHORT = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
STREAMS = 24
OPTIONS = {"num_threads": 1, "seed": 5, "device": "cpu"}


def until(holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_alive(process):
    """Whether a process exists and is not just waiting to be asked how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def before():
    """The processes that this one has already."""
    return children(os.getpid())


@pytest.fixture(scope="module")
def local(long_model):
    with LLM(long_model, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def isolated(long_model):
    with LLM(long_model, isolate=True, **OPTIONS) as llm:
        yield llm


@pytest.fixture
def load(long_model, before, assert_nothing_left):
    """Loads an isolated engine with its process's id; at its end there is nothing left of it."""
    engines = []

    def start(**options):
        engine = AsyncLLM(long_model, isolate=True, **OPTIONS | options)
        engines.append(engine)

        def process():
            [child] = children(os.getpid()) - before
            return child

        return engine, process

    yield start
    for engine in engines:
        if not engine.is_closed:
            assert_nothing_left(engine)
        engine.close()
    assert children(os.getpid()) == before


def without_times(output):
    return dataclasses.replace(output, metrics=None, request_id="")


@pytest.mark.parametrize(
    "params",
    [
        SHORT,
        SamplingParams(n=3, max_tokens=20, seed=1, logprobs=3, prompt_logprobs=2, stop="e"),
        SamplingParams(
            max_tokens=20, seed=2, top_p=0.9, logit_bias={5: 2.0}, stop_token_ids=[7], output_kind="final_only"
        ),
        SamplingParams(max_tokens=30, seed=3, structured_outputs=StructuredOutputsParams(choice=["yes", "no"])),
    ],
)
def test_results_are_the_same_to_the_bit(local, isolated, params):
    prompts = ["The sky is", [1, 2, 3], np.arange(40), "a" * 300]
    wanted = [without_times(output) for output in local.generate(prompts, params)]
    assert [without_times(output) for output in isolated.generate(prompts, params)] == wanted
    streamed = {output.index: without_times(output) for output in isolated.stream(prompts, params)}
    assert [streamed[index] for index in range(len(prompts))] == wanted


def test_what_an_engine_tells_is_the_same(local, isolated, assert_nothing_left):
    assert isolated.config() == local.config()
    assert isolated.describe() == local.describe()
    assert isolated.memory() == local.memory()
    assert isolated.recommended_sampling() == local.recommended_sampling()
    assert isolated.tokenize("Hello, you") == local.tokenize("Hello, you")
    np.testing.assert_array_equal(isolated.prompt_logits([1, 2, 3]), local.prompt_logits([1, 2, 3]))
    assert isolated.block_map().dtype == local.block_map().dtype
    assert len(isolated.state_map()) == len(local.state_map()) == 0
    isolated.generate([1] * 40, SHORT)
    assert isolated.stats().blocks_cached > 0
    assert isolated.reset_prefix_cache()
    assert isolated.stats().blocks_cached == 0
    assert isolated.record("nobody") is None
    assert (isolated.restarts["abort"], isolated.is_restarting) == (0, False)
    assert (local.restarts, local.is_restarting) == ({}, False)
    assert_nothing_left(isolated)


@pytest.mark.parametrize(
    ("prompt", "params"),
    [([10**9], SHORT), ([], SHORT), ([1, "a"], SHORT), ({"x": 1}, SHORT)],
)
def test_errors_are_the_same(local, isolated, prompt, params):
    raised = []
    for llm in (local, isolated):
        with pytest.raises((RocmForgeError, TypeError)) as error:
            llm.generate(prompt, params)
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]


def test_what_is_wrong_with_a_load_is_raised(tmp_path, model, before):
    with pytest.raises(FileNotFoundError):
        LLM(tmp_path / "no.gguf", isolate=True)
    text = tmp_path / "text.gguf"
    text.write_text("This is no model at all, only text that is long enough for a header.")
    with pytest.raises(ModelFileError, match=str(text)):
        LLM(text, isolate=True)
    with pytest.raises(InvalidRequestError, match="watchdog"):
        LLM(model, isolate=True, watchdog=0)

    def stop(done, total):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        LLM(model, isolate=True, on_load=stop)
    assert children(os.getpid()) == before


def test_the_cpu_needs_no_process_of_its_own(model, before, monkeypatch, caplog):
    """`None` isolates on a GPU alone; the child finds out where nothing is said of the device. Told once."""
    caplog.set_level("INFO", "rocmforge")
    monkeypatch.delenv("ROCMFORGE_DEVICE", raising=False)
    for device in ("cpu", "auto"):
        with LLM(model, isolate=None, device=device, gpu_library="/nowhere.so", num_threads=1) as llm:
            assert llm.restarts == {}
            assert children(os.getpid()) == before
    assert caplog.text.count("running on the CPU") == 1


async def first_outputs(engine, count):
    """Streams that have begun, and the tasks that read them to their end."""
    streams = [await engine.add_request([1, 2, index], ENDLESS, f"name-{index}") for index in range(count)]
    for stream in streams:
        await anext(stream)

    async def rest(stream):
        async with stream:
            return [output async for output in stream]

    return [asyncio.create_task(rest(stream)) for stream in streams]


def test_a_cancel_frees(load, assert_nothing_left):
    engine, _ = load()

    async def scenario():
        tasks = await first_outputs(engine, STREAMS)
        assert engine.stats().num_running + engine.stats().num_waiting == STREAMS
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks[1:])
        assert await engine.abort("name-0")
        assert not await engine.abort("name-0")
        assert (await tasks[0])[-1].outputs[0].finish_reason == "abort"
        # A call that is cancelled before the child has answered leaves nothing either.
        for _ in range(20):
            adding = asyncio.create_task(engine.add_request([1, 2], ENDLESS))
            await asyncio.sleep(0)
            adding.cancel()
            await asyncio.wait([adding])

    asyncio.run(scenario())
    assert_nothing_left(engine)
    assert engine.record("name-0").finish_reason == "abort"
    assert engine.stats().num_finished["abort"] >= STREAMS


def test_a_slow_reader_holds_up_nobody(load):
    """While an event loop stands still, the engine goes on, and what it makes is merged."""
    engine, _ = load()
    params = ENDLESS.replace(max_tokens=2000)

    async def scenario():
        streams = [await engine.add_request([1, index], params) for index in range(4)]
        until(lambda: engine.stats().num_finished["length"] == len(streams))
        for stream in streams:
            outputs = [output async for output in stream]
            # The last outputs may still have been on their way.
            assert len(outputs) <= 2
            assert sum(len(output.outputs[0].token_ids) for output in outputs) == 2000

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGABRT, "abort"), (signal.SIGSEGV, "crash"), (signal.SIGKILL, "kill"), (signal.SIGSTOP, "hang")],
)
def test_a_child_that_dies_ends_its_requests_and_is_replaced(load, local, number, reason):
    engine, process = load(watchdog=1.0)
    first = process()

    async def scenario():
        tasks = await first_outputs(engine, STREAMS)
        os.kill(first, number)
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, EngineDeadError)
            assert "another one is being started: try again" in str(error)
        assert not engine.is_closed
        assert engine.stats().num_running == 0
        until(lambda: not engine.is_restarting)
        assert {name: count for name, count in engine.restarts.items() if count} == {reason: 1}
        assert not is_alive(first)
        assert process() != first
        # On the same event loop, and with the same results.
        outputs = await collect(engine, [1, 2, 3], SHORT)
        assert outputs[-1].outputs[0].token_ids == local.generate([1, 2, 3], SHORT)[0].outputs[0].token_ids
        assert engine.stats().prefix_cache_hits == 0

    asyncio.run(scenario())


def test_calls_that_wait_are_ended_too(load):
    engine, process = load(watchdog=1.0)
    os.kill(process(), signal.SIGSTOP)

    async def scenario():
        with pytest.raises(EngineDeadError):
            await engine.add_request([1, 2], SHORT)

    asyncio.run(scenario())
    until(lambda: not engine.is_restarting)
    assert engine.restarts["hang"] == 1


def test_one_that_dies_again_and_again_stays_dead(load, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 2)
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", 0.01)
    engine, process = load()
    for _ in range(3):
        until(lambda: not engine.is_restarting)
        os.kill(process(), signal.SIGKILL)
        until(lambda: engine.is_restarting or engine.is_closed)
    until(lambda: engine.is_closed)
    assert engine.restarts["kill"] == 2
    with pytest.raises(EngineDeadError, match="started again 2 times"):
        asyncio.run(collect(engine, [1], SHORT))
    assert engine.memory().total == 0


def test_a_model_that_is_gone_is_not_loaded_for_ever(tmp_path, model, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_RESTARTS", 2)
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", 0.01)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    before = children(os.getpid())
    with LLM(copy, isolate=True, **OPTIONS) as llm:
        copy.unlink()
        os.kill((children(os.getpid()) - before).pop(), signal.SIGKILL)
        until(lambda: llm.is_closed)
        assert (llm.restarts["kill"], llm.restarts["load"]) == (1, 1)
        with pytest.raises(EngineDeadError, match=r"could not load the model.*No such file"):
            llm.generate([1], SHORT)


def test_a_closed_engine_says_so(long_model):
    engine = AsyncLLM(long_model, isolate=True, **OPTIONS)

    async def scenario():
        tasks = await first_outputs(engine, 3)
        await asyncio.to_thread(engine.close)
        for outputs in await asyncio.gather(*tasks):
            assert outputs[-1].outputs[0].finish_reason == "abort"
        with pytest.raises(EngineDeadError, match="it was closed"):
            await engine.add_request([1], SHORT)

    asyncio.run(scenario())
    engine.close()
    assert engine.is_closed
    assert engine.stats().generated_tokens > 0


def test_a_forked_process_cannot_use_it(isolated):
    process = os.fork()
    if process == 0:
        try:
            isolated.generate([1], SHORT)
        except EngineDeadError as error:
            os._exit(0 if isolated.is_closed and "after fork" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(process, 0)[1] == 0
    assert isolated.generate([1], SHORT)[0].finished


def test_the_child_has_no_descriptor_that_it_does_not_need(load, tmp_path):
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        _, process = load()
        targets = [str(link.readlink()) for link in Path(f"/proc/{process()}/fd").iterdir()]
    assert str(tmp_path / "secret") not in targets
    kinds = [target.partition(":")[0] for target in targets if target.startswith(("socket:", "anon_inode:"))]
    # The calls, and the ring's two bells.
    assert sorted(kinds) == ["anon_inode", "anon_inode", "socket"]


PARENT = """
import asyncio, os, sys
from rocmforge import AsyncLLM, SamplingParams
async def main():
    engine = AsyncLLM(sys.argv[1], isolate=True, num_threads=1, device="cpu")
    params = SamplingParams(max_tokens=60000, ignore_eos=True, output_kind="delta")
    streams = [await engine.add_request([1, index], params) for index in range(8)]
    for stream in streams:
        await anext(stream)
    print("streaming", flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_parent_leaves_nothing(long_model, stopped):
    with subprocess.Popen([sys.executable, "-c", PARENT, long_model], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"streaming\n"
        [child] = children(parent.pid)
        if stopped:
            os.kill(child, signal.SIGSTOP)
        parent.kill()
    until(lambda: not is_alive(child))
    # The ring never had a name.
    assert not list(Path("/dev/shm").glob("*rocmforge*"))


def test_an_engine_that_nobody_closes_goes_with_its_program(long_model):
    code = (
        "import os, sys; from rocmforge import LLM\n"
        "llm = LLM(sys.argv[1], isolate=True, num_threads=1, device='cpu')\n"
        "print(*[open(f'/proc/self/task/{t}/children').read() for t in os.listdir('/proc/self/task')])"
    )
    done = subprocess.run([sys.executable, "-c", code, long_model], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    until(lambda: not is_alive(int(done.stdout)))
