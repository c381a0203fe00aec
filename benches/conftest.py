"""Models of the benches: SmolLM2 from the cache folder, and a tiny model whose forward pass costs almost nothing."""

import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocmforge import LLM
from rocmforge.hub import demo

TINY = Path(__file__).resolve().parent.parent / "tests" / "data" / "arch" / "llama_tied.gguf.xz"


@pytest.fixture(scope="session")
def model_path() -> Path:
    path = demo.find()
    if path is None:
        pytest.fail(f"the benches need SmolLM2: {demo.PULL}")
    return path


@pytest.fixture(scope="session")
def llm(model_path: Path) -> Iterator[LLM]:
    """The prefix cache is off, so that every round computes its whole prompt."""
    with LLM(model_path, enable_prefix_caching=False, seed=0) as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "llama_tied.gguf"
    path.write_bytes(lzma.decompress(TINY.read_bytes()))
    return path


@pytest.fixture(scope="session")
def tiny_llm(tiny_path: Path) -> Iterator[LLM]:
    with LLM(tiny_path, enable_prefix_caching=False, seed=0) as engine:
        yield engine
