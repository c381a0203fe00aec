"""The tiers of the KV cache below the device: what returns from host memory and files, whatever happens to them."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rocmforge import LLM, InvalidRequestError, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
SMALL = {"max_model_len": 128, "max_num_seqs": 2, "num_threads": 1, "device": "cpu"}
PATIENCE = 30.0


def prompt(seed):
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(80)]


def ask(llm, seed):
    output = llm.generate(prompt(seed), GREEDY, progress=False)[0]
    return output.num_cached_tokens, output.outputs[0].token_ids


@pytest.fixture(scope="module")
def settings(tiny_model):
    """An engine with room for two prompts on the device."""
    with LLM(tiny_model("arch/llama_tied"), **SMALL) as llm:
        memory = llm.memory()
        size = memory.kv_cache // llm.config()["num_blocks"]
    return {"model": tiny_model("arch/llama_tied"), **SMALL, "kv_cache_memory": 12 * size}


@pytest.fixture(scope="module")
def answers(settings):
    with LLM(**settings, enable_prefix_caching=False) as llm:
        return [ask(llm, seed)[1] for seed in range(8)]


@pytest.mark.parametrize("isolate", [False, True])
def test_a_restart_finds_conversations_again(settings, answers, tmp_path, isolate, assert_nothing_left):
    """The first engine writes everything when it is closed. The second one has every prompt's blocks, with the same
    answers. A model of another block size has none of them."""
    folder = tmp_path / "kv"
    with LLM(**settings, kv_offload_dir=folder, isolate=isolate) as llm:
        for _ in range(2):
            assert [ask(llm, seed)[1] for seed in range(8)] == answers
        stats = llm.stats()
        assert stats.kv_offload_memory_hits > 0
        assert stats.kv_offload_disk_hits == 0
        assert llm.memory().kv_offload == 1 << 30
    with LLM(**settings, kv_offload_dir=folder, isolate=isolate) as llm:
        assert [ask(llm, seed) for seed in range(8)] == [(64, answer) for answer in answers]
        stats = llm.stats()
        assert stats.kv_offload_disk_hits == 8 * 64
        assert stats.kv_offload_disk_unreadable == 0
        if not isolate:
            assert_nothing_left(llm)
    with LLM(**{**settings, "kv_cache_dtype": "f32", "kv_cache_memory": None}, kv_offload_dir=folder) as llm:
        assert ask(llm, 0)[0] == 0


# Starts an engine whose host memory holds one prompt, so that it writes files all the time.
WRITER = """
import resource, sys
from rocmforge import LLM, SamplingParams
sys.path.insert(0, {tests!r})
from test_kv_offload import ask
if {limit}:
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
with LLM(**{settings!r}) as llm:
    for seed in range({prompts}):
        ask(llm, seed)
        print(seed, flush=True)
    for seed in range(8):
        print(ask(llm, seed)[1], flush=True)
    stats = llm.stats()
print(stats.kv_offload_disk_written, stats.kv_offload_disk_dropped)
"""


def writer(settings, prompts, limit=0):
    tests = str(Path(__file__).parent)
    code = WRITER.format(tests=tests, settings=settings, prompts=prompts, limit=limit)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_engine_leaves_a_usable_folder(settings, answers, tmp_path):
    folder = str(tmp_path / "kv")
    settings = {**settings, "model": str(settings["model"]), "kv_offload_dir": folder}
    process = writer({**settings, "kv_offload_memory": 100_000}, prompts=10_000)
    deadline = time.monotonic() + PATIENCE
    while sum(name.endswith(".kv") for _, _, names in os.walk(folder) for name in names) < 20:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with LLM(**settings) as llm:
        assert llm.stats().kv_offload_disk_contents >= 20
        assert [ask(llm, seed)[1] for seed in range(8)] == answers
        stats = llm.stats()
        assert (stats.kv_offload_disk_hits > 0, stats.kv_offload_disk_unreadable) == (True, 0)
        llm.check_integrity()


def test_a_disk_that_takes_no_more_stops_only_the_writes(settings, answers, tmp_path):
    """Files may have 1,000 bytes, so that each write fails, as on a full disk. The log says so once."""
    folder = str(tmp_path / "kv")
    settings = {**settings, "model": str(settings["model"]), "kv_offload_dir": folder, "kv_offload_memory": 100_000}
    process = writer(settings, prompts=8, limit=1000)
    written, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log
    lines = written.splitlines()
    assert lines[8:16] == [str(answer) for answer in answers]
    wrote, dropped = map(int, lines[16].split())
    assert (wrote, dropped > 0) == (0, True)
    assert not any(name.endswith((".kv", ".unfinished")) for _, _, names in os.walk(folder) for name in names)


# An isolated engine that nobody closes, at the end of its interpreter.
UNCLOSED = """
import sys
from rocmforge import LLM
sys.path.insert(0, {tests!r})
from test_kv_offload import ask
llm = LLM(**{settings!r}, isolate=True)
ask(llm, 0)
"""


def test_an_isolated_engine_writes_files_at_exit(settings, answers, tmp_path):
    settings = {**settings, "model": str(settings["model"]), "kv_offload_dir": str(tmp_path / "kv")}
    code = UNCLOSED.format(tests=str(Path(__file__).parent), settings=settings)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
    with LLM(**settings) as llm:
        assert ask(llm, 0) == (64, answers[0])


def test_a_model_is_read_once_for_its_hash(settings, tmp_path):
    """The first load reports the bytes that it hashes, before those of its weights. The second one need not."""
    folder = tmp_path / "kv"
    model = tmp_path / "model.gguf"
    model.write_bytes(Path(settings["model"]).read_bytes())
    os.utime(model, (1_000_000_000, 1_000_000_000))
    totals = []
    for _ in range(2):
        told = []
        with LLM(
            **{**settings, "model": model}, kv_offload_dir=folder, on_load=lambda *done, told=told: told.append(done)
        ):
            totals.append({total for _, total in told})
    assert model.stat().st_size in totals[0]
    assert model.stat().st_size not in totals[1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kv_offload_disk": 1 << 20}, "kv_offload_dir as well"),
        ({"kv_offload_dir": "", "kv_offload_disk": 1 << 20}, "an empty path"),
        ({"kv_offload_dir": "kv", "kv_offload_memory": 0}, "pass through host memory"),
        ({"kv_offload_dir": "kv", "kv_offload_disk": 0}, "kv_offload_disk"),
        ({"kv_offload_dir": "kv", "enable_prefix_caching": False}, "without prefix cache"),
        ({"kv_offload_memory": 1 << 20, "enable_prefix_caching": False}, "without prefix cache"),
    ],
)
def test_settings_that_contradict_each_other(settings, options, text):
    with pytest.raises(InvalidRequestError, match=text):
        LLM(**{**settings, **options})


def test_a_folder_of_others_is_refused(settings, tmp_path):
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o755)
    with pytest.raises(InvalidRequestError, match="chmod 700"):
        LLM(**settings, kv_offload_dir=folder)
