"""Threads, forks, signals and the end of the interpreter."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from rocmforge import LLM, AsyncLLM, EngineDeadError, SamplingParams

LONG = "SamplingParams(max_tokens=240, ignore_eos=True)"


@pytest.fixture(scope="module")
def model(tiny_model):
    return str(tiny_model("quant_models/Q4_0"))


def python(code, *arguments, **kwargs):
    """Starts a process; `code` has everything imported."""
    prelude = "import asyncio, os, signal, sys, threading, time\nfrom rocmforge import *\n"
    # A shell that runs the tests in the background has SIGINT ignored, and processes inherit that.
    prelude += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def finished(process, seconds=60):
    """Standard output and error of a process that has to end by itself."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"still running after {seconds} s: {process.communicate()}")
    return out, err


def test_kv_cache_concurrent_access(model, assert_nothing_left):
    """K3, K13: 16 threads generate and look at everything there is to look at, on the real engine."""
    with LLM(model, max_model_len=128, num_threads=2, kv_cache_memory=1 << 19) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        expected = [llm.generate([i + 1] * 30, params, progress=False)[0].outputs[0].token_ids for i in range(16)]
        failures = []

        def work(i):
            try:
                for _ in range(5):
                    (output,) = llm.generate([i + 1] * 30, params, progress=False)
                    assert output.outputs[0].token_ids == expected[i]
                    stats = llm.stats()
                    assert stats.blocks_free + stats.blocks_cached + stats.blocks_owned == stats.blocks_total
                    assert len(llm.block_map()) == stats.blocks_total
                    llm.memory()
                    llm.reset_prefix_cache()
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert_nothing_left(llm)


def test_interpreter_is_released_while_waiting(model):
    """A thread that counts goes on counting while another one generates."""
    with LLM(model, max_model_len=256, num_threads=1) as llm:
        params = SamplingParams(max_tokens=240, n=32, ignore_eos=True)
        worker = threading.Thread(target=llm.generate, args=([5], params))
        worker.start()
        beats = 0
        while worker.is_alive():
            beats += 1
            time.sleep(0.0001)
        assert beats > 10


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_child_of_a_fork_is_told(model, assert_nothing_left):
    """The child's handle says that it is unusable, its exit does not hang, and the parent goes on."""
    with LLM(model, max_model_len=64, num_threads=1) as llm:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for use in (llm.stats, llm.block_map, lambda: llm.generate([3], progress=False)):
                    with pytest.raises(EngineDeadError, match="fork"):
                        use()
                # A14: what cannot serve is closed.
                assert llm.is_closed
                llm.close()
                os.write(write, b"told")
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        assert os.read(read, 16) == b"told"
        os.close(read)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        llm.generate([3], SamplingParams(max_tokens=3), progress=False)
        assert_nothing_left(llm)


def test_forked_child_exits_in_the_ordinary_way(model):
    """S4: atexit and the destructor run in the child too, and must not wait for threads that it has not."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "llm = LLM(sys.argv[1], max_model_len=64)\n"
        "pid = os.fork()\n"
        "if pid: print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    out, err = finished(python(code, model))
    assert (out, err) == ("0\n", "")


BLOCKING = {
    "generate": f"llm.generate([[i % 500] for i in range(900)], {LONG}, progress=False)",
    "async": (
        "async def go():\n"
        "    async with AsyncLLM(sys.argv[1], max_model_len=256) as engine:\n"
        "        while True:\n"
        f"            async for _ in engine.generate([3], {LONG}): pass\n"
        "asyncio.run(go())"
    ),
}


@pytest.mark.parametrize("call", BLOCKING)
def test_ctrl_c_ends_a_blocking_call(model, call):
    """S4: KeyboardInterrupt comes out of the call, nothing is left running, and the process ends."""
    body = "\n".join(f"    {line}" for line in BLOCKING[call].splitlines())
    code = (
        "llm = LLM(sys.argv[1], max_model_len=256)\n"
        "print('ready', flush=True)\n"
        f"try:\n{body}\n"
        "except KeyboardInterrupt:\n"
        # A step that a GPU computes holds the blocks that it writes until it is done.
        "    while (s := llm.stats()).num_running or s.num_waiting or s.blocks_owned: time.sleep(0.001)\n"
        "    print('interrupted', llm.stats().blocks_owned)\n"
    )
    process = python(code, model)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = finished(process)
    assert out == "interrupted 0\n", err
    assert process.returncode == 0


def test_ctrl_c_ends_the_logits_of_a_prompt(long_model):
    """A11: the request behind an interrupted `prompt_logits` ends within a step; its other steps are not made."""
    code = (
        "llm = LLM(sys.argv[1], max_model_len=30000, max_num_batched_tokens=256, num_threads=1)\n"
        "threading.Thread(target=lambda: (wait(), os.kill(os.getpid(), signal.SIGINT))).start()\n"
        "try: llm.prompt_logits([5] * 30000)\n"
        "except KeyboardInterrupt: pass\n"
        "llm.check_integrity()\n"
        "llm.generate([3], SamplingParams(max_tokens=1), progress=False)\n"
        "print(llm.stats().engine_steps, llm.stats().blocks_owned)\n"
    )
    wait = "def wait():\n    while llm.stats().engine_steps < 2: time.sleep(0.001)\n"
    out, err = finished(python(wait + code, str(long_model)))
    assert out, err
    steps, owned = map(int, out.split())
    # 30,000 tokens in steps of at most 256 are 118.
    assert steps < 100
    assert owned == 0


ENDINGS = {
    "no close": "",
    "sys.exit": "sys.exit(0)",
    "a request under way on a daemon thread": (
        f"threading.Thread(target=llm.generate, args=([3] * 9, {LONG}), daemon=True).start(); time.sleep(0.05)"
    ),
    "an abandoned generator": (
        "e = AsyncLLM(sys.argv[1], max_model_len=256)\n"
        "loop = asyncio.new_event_loop()\n"
        f"g = e.generate([3], {LONG})\n"
        "loop.run_until_complete(anext(g))"
    ),
    "a cycle that holds the engine": "llm.me = llm",
    "deleted": "del llm",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_interpreter_exits_with_a_live_engine(model, ending):
    """S4: no hang, no crash, not a word."""
    process = python(f"llm = LLM(sys.argv[1], max_model_len=256)\n{ENDINGS[ending]}\n", model)
    _, err = finished(process)
    assert process.returncode == 0, err
    assert "panicked" not in err
    if "abandoned" not in ending:
        assert err == ""


def test_ctrl_c_leaves_a_long_step_at_once(smollm2_path):
    """A10: one step of 6000 tokens takes many seconds; Ctrl-C ends `generate` within it, and leaves the `with` block,
    which closes the engine, without waiting for it."""
    process = python(
        "llm = LLM(sys.argv[1], device='cpu', num_threads=1, max_model_len=8000, max_num_batched_tokens=8000,"
        " max_num_seqs=4)\n"
        "try:\n"
        "    with llm:\n"
        "        threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "        llm.generate([[5 + i % 300 for i in range(6000)]], SamplingParams(max_tokens=1), progress=False)\n"
        "except KeyboardInterrupt:\n"
        "    print(llm.is_closed, llm.stats().engine_steps, llm.stats().blocks_owned, llm.memory().total)\n",
        str(smollm2_path),
    )
    started = time.monotonic()
    out, err = finished(process)
    took = time.monotonic() - started
    # The first step was under way, and was not computed to its end: nothing was generated, and nothing is held.
    assert (out, err) == ("True 1 0 0\n", "")
    assert took < 20, took


async def test_deadlines_and_cancels_act_within_a_long_step(smollm2_path):
    """A16: requests of thousands of tokens, each a step of many seconds, end at their deadline or when they are
    cancelled, while a short one goes on to the tokens that it has alone."""
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    arguments = {"device": "cpu", "max_model_len": 8000, "max_num_batched_tokens": 8000, "max_num_seqs": 4}
    async with AsyncLLM(smollm2_path, **arguments) as engine:

        async def run(prompt, **kwargs):
            async for output in engine.generate(prompt, params, **kwargs):
                last = output
            return last

        alone = await run([9, 8, 7])
        long = [5 + i % 300 for i in range(6000)]

        # Two ends one after the other: the second falls into the step after one that was stopped for the first.
        started = time.monotonic()
        late = asyncio.create_task(run(long, timeout=0.5))
        cancelled = asyncio.create_task(run([6, *long]))
        short = asyncio.create_task(run([9, 8, 7], priority=-1))
        await asyncio.sleep(0.3)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert (await late).outputs[0].finish_reason == "timeout"
        assert (await short).outputs[0].token_ids == alone.outputs[0].token_ids
        while engine.stats().num_running:
            await asyncio.sleep(0.01)
        stats = engine.stats()
        assert (stats.num_waiting, stats.blocks_owned) == (0, 0)
        await engine.check_integrity()
        assert time.monotonic() - started < 10
