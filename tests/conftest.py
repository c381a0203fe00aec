"""Models and golden data for all tests, and the check that ends every engine test."""

import asyncio
import importlib.util
import io
import json
import lzma
import os
import shutil
import signal
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_models import metadata, rewritten

# These have environments of their own, made by `make test-ray`, `make test-litellm` and so on.
OWN_ENVIRONMENTS = {
    "examples/test_ray.py": "ray",
    "frameworks/test_litellm.py": "litellm",
    "frameworks/test_sdks.py": "agents",
    "integrations": "lm_eval",
}
collect_ignore = [name for name, package in OWN_ENVIRONMENTS.items() if not importlib.util.find_spec(package)]
DATA = Path(__file__).parent / "data"
# Time limit for a request that has ended to leave the engine: one step, on a machine that does other things too.
SETTLE_SECONDS = 20.0
# Two tests run at once on two cores, beside others. Threads of one engine would mostly wait for a core, and the server
# of a test inherits this. Tests of several threads ask for them.
os.environ.setdefault("ROCMFORGE_NUM_THREADS", "1")
if importlib.util.find_spec("hypothesis"):
    import hypothesis

    # A machine that does other things makes any example slow.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("shared", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("shared")
# `make test-gpu` runs the same tests on a GPU.
ON_GPU = os.environ.get("ROCMFORGE_DEVICE") == "gpu"


def pytest_configure():
    """A shell that runs the tests in the background lets them ignore Ctrl-C, and with them each program they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def collect(engine, prompt, params, **kwargs):
    """All outputs of a request to an `AsyncLLM`."""
    return [output async for output in engine.generate(prompt, params, **kwargs)]


def unpacked(name):
    return lzma.decompress((DATA / f"{name}.xz").read_bytes())


@pytest.fixture(scope="session")
def golden_json():
    """Reads `tests/data/<name>.xz`."""
    return lambda name: json.loads(unpacked(name))


def golden_bound(logits):
    """Largest error of logits from float weights. The matrix units of a GPU take attention's queries as f16."""
    return 3e-2 if ON_GPU else 1e-3 * np.abs(logits).max()


@pytest.fixture(scope="session")
def golden_npz():
    """Reads `tests/data/<name>.npz.xz`."""
    return lambda name: np.load(io.BytesIO(unpacked(f"{name}.npz")))


@pytest.fixture(scope="session")
def golden_png():
    """Reads `tests/data/<name>.png.xz`."""
    return lambda name: unpacked(f"{name}.png")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Gives the path of `tests/data/<name>.gguf.xz`, unpacked."""
    folder = tmp_path_factory.mktemp("models")

    def path(name):
        file = folder / f"{name.replace('/', '-')}.gguf"
        if not file.exists():
            file.write_bytes(unpacked(f"{name}.gguf"))
        return file

    return path


@pytest.fixture(scope="session")
def vision_model(tiny_model, tmp_path_factory):
    """Gives the path of `tests/data/vision/<name>.gguf.xz`, with its image encoder beside it.

    It has a longer context and a chat template that takes images.
    """

    # Not every environment has Pillow.
    from pictures import GEMMA, GEMMA4, GLM, INTERNVL, LFM2, MISTRAL, QWEN  # noqa: PLC0415

    templates = {"gemma3": GEMMA, "gemma4": GEMMA4, "gemma4e": GEMMA4, "glm4v": GLM, "internvl": INTERNVL}
    templates |= {"lfm2vl": LFM2, "mistral3": MISTRAL, "pixtral": MISTRAL, "smolvlm": LFM2}

    def path(name):
        folder = tmp_path_factory.getbasetemp() / f"vision-{name}"
        if not folder.exists():
            folder.mkdir()
            source = tiny_model(f"vision/{name}")
            keys = {f"{metadata(source)['general.architecture']}.context_length": 8192}
            template = {"tokenizer.chat_template": templates.get(name, QWEN)}
            rewritten(source, folder / f"{name}.gguf", drop=template, replace=keys, extra=template)
            shutil.copy(tiny_model(f"vision/{name}.mmproj"), folder / f"mmproj-{name}.gguf")
        return folder / f"{name}.gguf"

    return path


@pytest.fixture(scope="session")
def model(tiny_model):
    """The path of the tiny model that a test takes if it does not matter which."""
    return tiny_model("quant_models/Q4_0")


@pytest.fixture(scope="module")
def engine(model):
    """An `AsyncLLM` of the tiny model, for the tests of one file."""
    # The tests of the sources run without the package.
    from rocmforge import AsyncLLM  # noqa: PLC0415

    with AsyncLLM(model, max_model_len=256, num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="session")
def long_model(tiny_model, tmp_path_factory):
    """The path of a tiny model with room for requests that end in no test by themselves."""
    file = tmp_path_factory.mktemp("long") / "long.gguf"
    return rewritten(tiny_model("quant_models/Q4_0"), file, replace={"llama.context_length": 65536})


@pytest.fixture(scope="session")
def bad_gguf(tmp_path_factory):
    """The folder of malformed files, with `index.json`."""
    folder = tmp_path_factory.mktemp("bad")
    with tarfile.open(fileobj=io.BytesIO(unpacked("bad_gguf.tar"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.rglob("index.json")).parent


@pytest.fixture(scope="session")
def smollm2_path():
    """The real model, in the cache folder."""
    # The tests of the sources run without the package.
    from rocmforge.hub import demo  # noqa: PLC0415

    path = demo.find()
    if path is None:
        pytest.skip(f"SmolLM2 is not there: {demo.PULL}")
    return path


@pytest.fixture(scope="session")
def assert_nothing_left():
    """Asserts that an engine has no request and no owned block, and that its invariants hold."""

    def check(engine):
        def check_integrity():
            checked = engine.check_integrity()
            if asyncio.iscoroutine(checked):
                asyncio.run(checked)

        # Answered by the engine's thread, after all that was asked of it before: what follows is no older.
        check_integrity()
        deadline = time.monotonic() + SETTLE_SECONDS
        while (stats := engine.stats()).num_running or stats.num_waiting or engine.block_map()["owners"].any():
            assert time.monotonic() < deadline, f"still there: {stats}"
            time.sleep(0.002)
        check_integrity()
        stats, blocks = engine.stats(), engine.block_map()
        assert stats.blocks_owned == 0
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
        assert stats.state_slots_free + stats.state_slots_cached == stats.state_slots_total
        assert (blocks["state"] != 2).all()

    return check
