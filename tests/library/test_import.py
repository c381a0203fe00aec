"""Importing rocmforge is cheap: what only some programs need is imported by those; nothing is in the wheel twice."""

import json
import subprocess
import sys
from pathlib import Path

from rocmforge import _rocmforge
from rust_source import ROOT

HEAVY = [
    "numpy",
    "tqdm",
    "logging",
    "inspect",
    "asyncio",
    "typer",
    "click",
    "rich",
    "pydantic",
    "json",
    "fastapi",
    "matplotlib",
]


def loaded(code):
    script = f"{code}\nimport json as j, sys; print(j.dumps([m for m in {HEAVY} if m in before]))"
    command = [sys.executable, "-c", script]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_import_brings_in_nothing_heavy():
    alone = loaded("import sys; before = set(sys.modules)")
    assert loaded("import sys, rocmforge; before = set(sys.modules)") == alone
    # Neither does an error that is caught by its class.
    assert loaded("import sys, rocmforge; rocmforge.ModelFileError; before = set(sys.modules)") == alone


def test_an_engine_needs_numpy_and_nothing_else_that_is_heavy():
    """The bars, asyncio and the command line's packages are for those who use them."""
    numpy = loaded("import sys, numpy, numpy.typing; before = set(sys.modules)")
    assert loaded("import sys, rocmforge; rocmforge.LLM; before = set(sys.modules)") == numpy


def test_the_version_needs_no_package():
    """`rocmforge --version` and what the command line says without its packages."""
    code = (
        "import sys\n"
        "for name in ('typer', 'click', 'rich', 'numpy', 'tqdm'):\n"
        "    sys.modules[name] = None\n"
        "from rocmforge.cli import main\n"
        "sys.argv = ['rocmforge', {argument!r}]\n"
        "main()"
    )
    version = subprocess.run(
        [sys.executable, "-c", code.format(argument="--version")], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("rocmforge ")
    assert "AMD kernels: " in version.stdout
    without = subprocess.run(
        [sys.executable, "-c", code.format(argument="doctor")], capture_output=True, text=True, check=False
    )
    assert (without.returncode, without.stdout) == (1, "")
    assert without.stderr.startswith("error: the command line needs the packages")
    assert without.stderr.endswith("pip install 'rocmforge[cli]'\n")
    assert without.stderr.count("\n") == 1


def test_everything_public_can_be_listed_and_had():
    code = (
        "import rocmforge\n"
        "assert set(rocmforge.__all__) <= set(dir(rocmforge))\n"
        "from rocmforge import *\n"
        "assert LLM is rocmforge.LLM and RequestOutput.__module__ == 'rocmforge.outputs'\n"
        "try:\n"
        "    rocmforge.nothing\n"
        "except AttributeError as error:\n"
        "    assert 'nothing' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_async_llm_is_there_when_asked_for():
    code = "import sys, rocmforge; rocmforge.AsyncLLM; from rocmforge import *; before = set(sys.modules)"
    assert "asyncio" in loaded(code)


def test_everything_public_is_documented():
    code = (
        "import rocmforge\n"
        "for name in rocmforge.__all__:\n"
        "    thing = getattr(rocmforge, name)\n"
        "    assert isinstance(thing, str) or thing.__doc__, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_code_of_each_target_is_there_once():
    """Each is an xz stream of up to half a megabyte; the decoder has the format's first bytes once more."""
    streams = Path(_rocmforge.__file__).read_bytes().count(b"\xfd7zXZ\0")
    assert len(_rocmforge.embedded_targets()) <= streams <= len(_rocmforge.embedded_targets()) + 1


def test_the_wheel_carries_the_kernels_without_the_header_for_tests():
    """A line of each is looked for: the sources lie in the module as they are."""
    module = Path(_rocmforge.__file__).read_bytes()
    kernels = ROOT / "kernels"
    for file, carried in ((kernels / "gpu.h", True), (kernels / "host" / "gpu_cpu.h", False)):
        longest = max(file.read_bytes().splitlines(), key=len)
        assert (longest in module) == carried, file


SUB_INTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
sub = interpreters.create()
code = 'import rocmforge'
try:
    result = interpreters.run_string(sub, code)
    print(result)
except Exception as error:
    print(error)
"""


def test_a_sub_interpreter_is_refused():
    """H14: it says what to do, and the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", SUB_INTERPRETER], capture_output=True, text=True, check=False, timeout=60
    )
    assert "expected the main interpreter" in done.stdout + done.stderr, done
