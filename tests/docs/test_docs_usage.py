"""docs/usage.md names every environment variable that is read and every error; the examples of the guides run."""

import re
import subprocess
import sys
from pathlib import Path

import rocmforge
from calling_model import TEMPLATE
from rocmforge.cli.app import app
from rust_source import ROOT
from typer.main import get_command

USAGE = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
PARSING = (ROOT / "docs" / "parsing.md").read_text(encoding="utf-8")
# Variables of the project's own tests.
IN_TESTS_ALONE = {"ROCMFORGE_TEST_HELPER", "ROCMFORGE_TEST_WITHOUT_BARRIER"}


def variables(text: str) -> set[str]:
    """Names in quotes, which are the variables that a program reads."""
    return set(re.findall(r'"(ROCMFORGE_[A-Z_]+)"', text))


def product_variables() -> set[str]:
    """Variables that the library, its Python half or its build script read."""
    files = [*(ROOT / "src").rglob("*.rs"), *(ROOT / "python").rglob("*.py")]
    return set().union(*(variables(path.read_text(encoding="utf-8")) for path in files)) - IN_TESTS_ALONE


def test_every_environment_variable_is_documented() -> None:
    documented = re.findall(r"^\| `(ROCMFORGE_[A-Z_]+)` \|", USAGE, re.MULTILINE)
    assert sorted(documented) == sorted(product_variables())


def test_variables_are_found_where_they_are_read() -> None:
    assert variables('text(&read, "ROCMFORGE_DEVICE")? // ROCMFORGE_OTHER') == {"ROCMFORGE_DEVICE"}
    assert {"ROCMFORGE_LOG", "ROCMFORGE_HIP_CLANG", "ROCMFORGE_CACHE_DIR"} <= product_variables()


def test_switches_that_may_be_left_alone_are_documented_both_ways() -> None:
    """Unset they leave the choice to the engine: 0 and 1 both change something."""
    source = (ROOT / "src" / "config" / "gpu.rs").read_text(encoding="utf-8")
    switches = [f"ROCMFORGE_{field.upper()}" for field in re.findall(r"pub (\w+): Option<bool>", source)]
    assert {"ROCMFORGE_GRAPHS", "ROCMFORGE_VENDOR_BLAS"} <= set(switches)
    for name in switches:
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", USAGE, re.MULTILINE)
        assert "0: " in row, name
        assert "1: " in row, name


def test_every_error_is_documented_with_its_built_in_class() -> None:
    rows = dict(re.findall(r"^\| `(\w+Error)` \| `(\w+)` \|", USAGE, re.MULTILINE))
    own = {name: getattr(rocmforge, name) for name in rocmforge.__all__ if name.endswith("Error")}
    del own["RocmForgeError"]
    assert rows == {name: error.__bases__[-1].__name__ for name, error in own.items()}


def test_every_command_is_documented() -> None:
    commands = get_command(app).commands
    rows = re.findall(r"^\| `([a-z]+)` \|", USAGE, re.MULTILINE)
    assert {
        "generate",
        "serve",
        "chat",
        "bench",
        "perplexity",
        "inspect",
        "check",
        "doctor",
        "pull",
        "launch",
        "list",
    } == set(rows) & set(commands)


def test_the_examples_run(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(smollm2_path)
    examples = re.findall(r"^```python\n(.*?)^```$", USAGE + PARSING, re.MULTILINE | re.DOTALL)
    assert len(examples) == 6
    # The small model's own template has no tool calls.
    calling = f"tools=tools, chat_template={TEMPLATE!r})"
    for code in (example.replace("tools=tools)", calling) for example in examples):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
