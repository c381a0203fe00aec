"""The documents say what is true: links lead somewhere, commands exist with their options, the examples run."""

import contextlib
import functools
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rocmforge
from rocmforge.prompts import ChatOptions
from rust_source import ROOT, code_only, rust_files, tracked_files
from server_process import serving

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notes").rglob("*.md")])
# Examples, integrations and simulators have documents as well.
ALL_DOCUMENTS = sorted(path for path in tracked_files() if path.suffix == ".md")
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
SERVER = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
# Terms of the field that a reader looks for.
TERMS = (
    "batch-invariant",
    "chunked prefill",
    "continuous batching",
    "CPU offload",
    "graph capture",
    "paged KV cache",
    "prefix caching",
    "speculative decoding",
    "structured output",
    "tool calls",
)
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


@pytest.mark.parametrize("document", ALL_DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    assert dead_links(document.read_text(encoding="utf-8"), document.parent) == []


def test_dead_link_is_found() -> None:
    assert dead_links("[a](nowhere.md) [b](https://x.org) [c](README.md#part)", ROOT) == ["nowhere.md"]


@pytest.mark.parametrize("command", shell_commands("make"))
def test_make_targets_exist(command: str) -> None:
    targets = [word for word in shlex.split(command)[1:] if "=" not in word]
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


@functools.cache
def help_of(subcommand: str) -> str:
    """The program's help for a subcommand, which many documents name."""
    program = Path(sys.executable).parent / "rocmforge"
    wide = {**os.environ, "COLUMNS": "200"}  # a narrow table cuts long names off
    shown = subprocess.run([program, subcommand, "--help"], env=wide, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


@pytest.mark.parametrize("command", shell_commands("rocmforge"))
def test_commands_and_their_options_exist(command: str) -> None:
    """S29, P1: what is documented is there."""
    _, subcommand, *arguments = shlex.split(command)
    shown = help_of(subcommand)
    options = [argument for argument in arguments if re.fullmatch(r"--?[a-z][a-z-]*", argument)]
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", shown)] == []


@pytest.mark.parametrize("code", blocks(README + SERVER, "python"))
def test_examples_of_readme_and_server_guide_run(code: str, smollm2_path: Path, tmp_path: Path) -> None:
    """P1: the examples, as they stand, on the real model."""
    (tmp_path / "model.gguf").symlink_to(smollm2_path)
    with contextlib.ExitStack() as stack:
        if "localhost:8000" in code:
            server = stack.enter_context(serving(tmp_path, tmp_path / "model.gguf"))
            code = code.replace("http://localhost:8000", server.url)
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Some sample without a seed, and an answer may be short.
    assert done.stdout.strip()


# A path, or the name of a source file, in a span of code.
FILE_NAME = re.compile(r"`((?:\.?[\w-]+/)*[\w-]+\.(?:rs|py|pyi|hip|h|sh|md|toml|yml)|(?:[\w-]+/)+)`")
# `Type::method`, in a span of code or in the drawing of a step.
METHOD = re.compile(r"\b([A-Z]\w+)::([a-z]\w*)\b")
# `name=value`, as an argument of the Python API is written.
KEYWORD = re.compile(r"`([a-z]\w+)=[^`]*`")


def missing_files(text: str, files: set[str]) -> list[str]:
    """Finds names that a document gives for files or folders of the project, by path or by name alone, and that are
    none."""
    folders = {f"{parent}/" for file in files for parent in Path(file).parents}
    names = {Path(file).name for file in files} | {f"{Path(folder).name}/" for folder in folders}
    return sorted({name for name in FILE_NAME.findall(text) if name not in files | folders | names})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path) -> None:
    """P1: a document does not send its reader to a file that is not there."""
    # The history may name what is gone; the build makes these.
    made = {"target/", "target/kernels/", ".benchmarks/", "dist/", "wheelhouse/"}
    if document.name != "CHANGELOG.md":
        tracked = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
        assert missing_files(document.read_text(encoding="utf-8"), tracked | made) == []


def test_missing_file_is_found() -> None:
    files = {"src/a/b.rs", "docs/c.md"}
    assert missing_files("`b.rs` `src/a/b.rs` `src/a/` `docs/` `x.y`", files) == []
    assert missing_files("`d.rs`, `src/b.rs` and `src/d/`", files) == ["d.rs", "src/b.rs", "src/d/"]


def numbered_lines(text: str) -> list[str]:
    """Files that are named with a line's number, which is another's after the next change."""
    return re.findall(r"`[\w./-]+\.(?:rs|py|hip|h|sh)(?:` \d+|:\d+)", text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_line_is_named_by_its_number(document: Path) -> None:
    assert numbered_lines(document.read_text(encoding="utf-8")) == []
    assert numbered_lines("`a/b.rs` 21-70, `c.py:3`, `d.h`; 4 of `e.rs`") == ["`a/b.rs` 21", "`c.py:3"]


def bodies(owner: str, sources: str) -> str:
    """Returns the text in the braces of a type's traits, enums and `impl` blocks; rustfmt closes them in column 0."""
    head = rf"^(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:impl|trait|enum)\b[^;{{}}]*\b{owner}\b[^;{{}}]*\{{"
    return "\n".join(re.findall(head + r"\n(.*?)^\}", sources, re.MULTILINE | re.DOTALL))


def missing_methods(text: str, sources: str) -> list[str]:
    """`Type::method` where the sources define no such function of the type."""
    named = set(METHOD.findall(text))
    return sorted(
        f"{owner}::{name}" for owner, name in named if not re.search(rf"\bfn {name}\b", bodies(owner, sources))
    )


def test_methods_that_are_named_exist() -> None:
    """P1: the drawing of a step, and what documents say of the code, name functions that are there."""
    sources = "\n".join(code_only(text) for _, text in rust_files())
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    texts.append((ROOT / "src" / "lib.rs").read_text(encoding="utf-8"))
    assert [name for text in texts for name in missing_methods(text, sources)] == []
    other = "pub trait Executor: Send {\n    fn launch();\n}\nimpl Decoder {\n    fn forward() {}\n}\n"
    assert missing_methods("Executor::forward(batch), Executor::launch(batch)", other) == ["Executor::forward"]


def test_arguments_that_are_named_exist() -> None:
    """P1: an argument that a document names is one of the Python API."""
    functions = [
        member
        for cls in (rocmforge.LLM, rocmforge.AsyncLLM, rocmforge.SamplingParams, rocmforge.Tokenizer)
        for member in (cls, *(value for name, value in inspect.getmembers(cls, callable) if not name.startswith("_")))
    ]
    known = {name for function in functions for name in parameters(function)} | set(ChatOptions.__annotations__)
    assert {"device", "kv_cache_memory", "temperature"} <= known
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    assert sorted({name for text in texts for name in KEYWORD.findall(text)} - known) == []


def parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:  # of the extension module, without a signature
        return []


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = (path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(listed) == sorted(pages)


def test_readme_has_its_examples() -> None:
    assert len(blocks(README, "python")) == len(blocks(SERVER, "python")) == 1
    assert len(shell_commands("rocmforge")) >= 7
    assert {"make demo", "make test"} <= set(shell_commands("make"))


def test_readme_is_short() -> None:
    """Words are counted without the bars of tables and without comments."""
    assert len(re.findall(r"\S*\w\S*", re.sub(r"<!--.*?-->", "", README))) <= 600


@pytest.mark.parametrize("text", [README, INDEX], ids=["README.md", "index.md"])
def test_first_pages_use_the_terms_of_the_field(text: str) -> None:
    assert [term for term in TERMS if term.lower() not in text.lower()] == []


def test_a_version_of_the_changelog_is_short() -> None:
    _, *versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert versions
    assert [version.splitlines()[0] for version in versions if len(version.splitlines()) > 60] == []


@pytest.mark.parametrize(
    "script", [ROOT / ".ci" / "run", *sorted((ROOT / "scripts").rglob("*.sh"))], ids=lambda path: path.name
)
def test_shell_scripts_parse_and_are_executable(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize("file", sorted(path.name for path in ROOT.glob("requirements-*.txt")))
def test_pinned_requirements_are_exact(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
