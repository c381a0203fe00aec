"""The real model for the tests of `integrations/`, in an environment of their own: `make test-integrations`."""

import time

import pytest
from calling_model import TEMPLATE
from rocmforge import LLM, SamplingParams
from rocmforge.hub import demo

# All engines of these tests have it, so that their greedy texts are equal.
MAX_MODEL_LEN = 2048


@pytest.fixture(scope="session")
def smollm2_path():
    path = demo.find()
    assert path is not None, demo.PULL
    return path


@pytest.fixture(scope="session")
def template_path(tmp_path_factory):
    """A chat template with tools and reasoning."""
    path = tmp_path_factory.mktemp("template") / "template.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="session")
def engine(smollm2_path):
    """The oracle: what rocmforge itself says, without an integration."""
    with LLM(smollm2_path, max_model_len=MAX_MODEL_LEN, progress=False) as llm:
        yield llm


@pytest.fixture
def say(engine):
    """Returns the greedy answer to a conversation."""

    def say(messages, max_tokens=20, **options):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        (output,) = engine.chat(messages, params, progress=False, **options)
        return output

    return say


@pytest.fixture
def assert_idle():
    """Asserts that an engine soon has no request, and no owned block."""

    def check(engine):
        deadline = time.monotonic() + 20.0
        while (stats := engine.stats()).num_running or stats.num_waiting or stats.blocks_owned:
            assert time.monotonic() < deadline, f"still there: {stats}"
            time.sleep(0.002)

    return check
