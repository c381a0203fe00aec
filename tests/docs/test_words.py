"""Documents, `--help`, docstrings, error messages, comments and the page are plain technical English: short sentences,
no idioms."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from rocmforge.cli.app import app
from rust_source import ROOT, is_test_file, tracked_files, without_inline_tests

sys.path.insert(0, str(ROOT / "tests" / "structure"))
from comment_blocks import comment_blocks

BANNED = re.compile(
    r"\bgone on with\b|\bgoes? on (with|from|behind)\b|\bwhoever\b|\bin place of (one|an error)\b|\bso many\b"
    r"|\bof which an\b|\brecorded steps?\b|\brehears|\bguess(es|ed)? tokens?\b|\bguesses\b|\bthoughts\b|\bas ever\b"
    r"|\b(is|are|was|were) there(?=[.,;:])|\bin a form\b|\bmade anew\b|\bcompany\b|^Whether\b|\bMost (tokens|bytes)\b",
    re.IGNORECASE,
)
MAX_SENTENCE = 25
MAX_PARAGRAPH = 80


def faults(block: str) -> list[str]:
    """Returns what is wrong with one paragraph, list item, table cell or message."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
    text = " ".join(re.sub(r"``[^`]+``|`[^`]+`|https?://\S+", "CODE", text).replace("*", "").split())
    # A list of names is no sentence.
    text = re.sub(r"CODE(?:, CODE)+", "CODE", text)
    found = [f"banned: {match[0]!r} in {text[:80]!r}" for match in BANNED.finditer(text)]
    sentences = re.split(r"(?<=[.!?:])[)\"]?\s+", re.sub(r"\b(e\.g|i\.e|vs|etc)\.", r"\1", text))
    counts = [len(re.findall(r"\w[\w'./-]*", sentence)) for sentence in sentences]
    found += [f"{n} words: {sentence!r}" for n, sentence in zip(counts, sentences, strict=True) if n > MAX_SENTENCE]
    return found + ([f"paragraph of {sum(counts)}: {text[:80]!r}"] if sum(counts) > MAX_PARAGRAPH else [])


def markdown_blocks(text: str) -> Iterator[str]:
    """Yields headings, paragraphs, list items and table cells, without code and comments."""
    text = re.sub(r"^> ?", "", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)```.*?^\1```$|<!--.*?-->|^---\n.*?^---\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<=\n\n)(?: {4,}(?![ *-]).*\n)+", "", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |\||#)", text):
        yield from re.split(r"(?<!\\)\|", block) if block.startswith("|") else [block]


def docstring_blocks(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring without examples; an argument's description is one too."""
    text = re.sub(r"(?<=::\n\n)(?: {4,}.*\n|\n)+", "", inspect.cleandoc(text) + "\n")
    text = re.sub(r"^>>> .*\n(?:.+\n)*", "", text, flags=re.MULTILINE)
    yield from re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*`?\w+`?(?: \([^)\n]*\))?: )", text)


def python_blocks(path: Path) -> Iterator[str]:
    """Yields what `help()`, editors and tracebacks show: docstrings, also of attributes, and messages of errors."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from docstring_blocks(node.value.value)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                strings = [part for part in ast.walk(argument) if isinstance(part, ast.Constant)]
                yield "".join(part.value for part in strings if isinstance(part.value, str))


def page_blocks(path: Path) -> Iterator[str]:
    """Yields the strings of a script of the page, or the texts and labels of its HTML; comments are left out."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        text = re.sub(r"(?<![:\w\"'`])//.*", "", text)
        strings = re.findall(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\\n]|\\.)*)`', text)
        yield from (re.sub(r"\$\{[^}]*\}", "CODE", "".join(both)) for both in strings)
    else:
        yield from re.findall(r">([^<>]+)<", text)
        yield from re.findall(r'(?:aria-label|placeholder|title|content)="([^"]*)"', text)


def rust_messages(text: str) -> Iterator[str]:
    """Yields the strings of a Rust source that may be a sentence; a signature is none."""
    for match in re.finditer(r"//[^\n]*|\br(#*)\".*?\"\1|(?<![\w'])\"((?:\\.|[^\"\\])*)\"", text, re.DOTALL):
        message = re.sub(r"\\\n\s*", "", match[2] or "")
        if len(message.split()) > 3 and not message.startswith("("):
            yield re.sub(r"\{[^{}]*\}", "CODE", message).replace('\\"', '"')


def rust_blocks(path: Path) -> Iterator[str]:
    """Yields the paragraphs, list items and arguments of the comments of a Rust source, and its messages."""
    text = without_inline_tests(path.read_text(encoding="utf-8"))
    for _, block in comment_blocks(path, text):
        yield from re.split(r"\n\s*\n|\n(?=[-*] |\d+\. |\w+: )", block)
    yield from rust_messages(text)


def help_blocks(command: typer.main.TyperCommand | typer.main.TyperGroup) -> Iterator[str]:
    yield from docstring_blocks(command.help or "")
    yield from (parameter.help or "" for parameter in command.params if hasattr(parameter, "help"))
    for below in getattr(command, "commands", {}).values():
        yield from help_blocks(below)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


ROOT_PAGES = (
    *("README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("kernels/README.md", "examples/README.md", "fuzz/README.md"),
    *("sim/amdsim/README.md", "sim/hipsim/README.md"),
)
PAGE = ROOT / "python" / "rocmforge" / "server" / "page"
FILES = [
    *(ROOT / name for name in ROOT_PAGES),
    *sorted((ROOT / "integrations").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "notes" / "decisions").glob("*.md")),
    *sorted((ROOT / "python").rglob("*.py*")),
]
FILES = [path for path in FILES if path.suffix in {".md", ".py", ".pyi"}]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_texts_are_plain(path: Path) -> None:
    blocks = markdown_blocks(path.read_text(encoding="utf-8")) if path.suffix == ".md" else python_blocks(path)
    assert [fault for block in blocks for fault in faults(block)] == []


def sources(folder: Path, *suffixes: str) -> list[Path]:
    """The tracked files of the product in a folder."""
    inside = [path for path in tracked_files() if path.is_relative_to(folder) and path.suffix in suffixes]
    return [path for path in inside if not is_test_file(path.relative_to(ROOT))]


@pytest.mark.parametrize("folder", [*sorted((ROOT / "src").iterdir()), ROOT / "crates"], ids=relative)
def test_rust_is_plain(folder: Path) -> None:
    files = sources(folder, ".rs")
    assert [(relative(path), fault) for path in files for block in rust_blocks(path) for fault in faults(block)] == []


def test_kernels_have_no_idioms() -> None:
    """Their comments have tables and formulas, which are no sentences."""
    files = sources(ROOT / "kernels", ".h", ".hip")
    found = [(path, block) for path in files for _, block in comment_blocks(path, path.read_text(encoding="utf-8"))]
    assert [(relative(path), block) for path, block in found if BANNED.search(block)] == []


@pytest.mark.parametrize("path", [*sorted(PAGE.rglob("*.js")), *sorted(PAGE.glob("*.html"))], ids=relative)
def test_the_page_is_plain(path: Path) -> None:
    assert [fault for block in page_blocks(path) for fault in faults(block)] == []


def test_help_is_plain() -> None:
    assert [fault for block in help_blocks(typer.main.get_command(app)) for fault in faults(block)] == []


def test_faults_are_found() -> None:
    assert faults("A text is gone on with.") == ["banned: 'gone on with' in 'A text is gone on with.'"]
    assert faults("word " * 26)[0].startswith("26 words")
    assert faults("word word. " * 41)[0].startswith("paragraph of 82")
    assert faults("[A link](https://x.org/a b) to `some code of many words`.") == []
    assert faults(", ".join(["`name`"] * 26)) == []


def test_blocks_are_found(tmp_path: Path) -> None:
    text = "# A heading\n\n> Quoted\n\n- one\n- two\n\n| a | b |\n"
    assert [block.strip(" #-\n") for block in markdown_blocks(text) if block.strip()] == [
        *("A heading", "Quoted", "one", "two", "a", "b")
    ]
    file = tmp_path / "module.py"
    file.write_text('"""Module."""\nvalue = 1\n"""Of a value."""\n\n\ndef _f() -> None:\n    """Private."""\n')
    assert sorted(python_blocks(file)) == ["Module.\n", "Of a value.\n", "Private.\n"]
    script = tmp_path / "page.js"
    script.write_text('// "A comment."\nel("https://x.org/a", "Two words."); say(`${count + 1} found`); // "no"\n')
    assert list(page_blocks(script)) == ["https://x.org/a", "Two words.", "CODE found"]
    rust = tmp_path / "lib.rs"
    rust.write_text(
        "//! A module.\n//!\n//! - An item\n//!   of a list.\n"
        'let x = "no"; let y = "{n} bytes \\\n    too many"; // "a b c d"\n'
        "#[cfg(test)]\nmod tests {\n    // A test.\n}\n"
    )
    assert list(rust_blocks(rust)) == ["A module.", "- An item\nof a list.", "CODE bytes too many"]
    page = tmp_path / "page.html"
    page.write_text('<p aria-label="A label">A text.</p>')
    assert list(page_blocks(page)) == ["A text.", "A label"]
