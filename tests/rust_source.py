"""Reads Rust sources well enough to check the architecture: without comments, literals and tests."""

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"


def tracked_files() -> list[Path]:
    """Files that a clone holds."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


_COMMENT_OR_LITERAL = re.compile(
    r"""
      //[^\n]*
    | /\*.*?\*/
    | \b(?:b|c)?r(?P<hashes>\#*)".*?"(?P=hashes)
    | (?:\b(?:b|c))?"(?:\\.|[^"\\])*"
    | (?:\bb)?'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\'\n])'
    """,
    re.VERBOSE | re.DOTALL,
)

_TEST_FILE = re.compile(r"^(tests|prop|testdata|simulator|writer|fake|faults|loom\w*|\w+_tests|prop_\w+)\.rs$")


# The attribute of code for tests alone, or for those of other crates, too; literals are empty.
_FOR_TESTS = r"#\[cfg\((?:test|any\(test, feature = \"\"\))\)\]"


# Every rule reads every file.
@functools.cache
def code_only(text: str) -> str:
    """The text with comments gone and every literal empty; line numbers are kept."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        newlines = "\n" * found.count("\n")
        return newlines if found.startswith("/") else '""' + newlines

    return _COMMENT_OR_LITERAL.sub(blank, text)


def is_test_file(path: Path) -> bool:
    """Whether a file under src is compiled for tests alone, by its name or its folder's."""
    folders = path.parts[:-1]
    return bool({"tests", "testing", "simulator"} & set(folders)) or bool(_TEST_FILE.match(path.name))


def without_inline_tests(code: str) -> str:
    """Drops a `#[cfg(test)] mod name { … }`, which stands at the end of its file, and the heads of such functions."""
    code = re.split(_FOR_TESTS + r"\s*(?:pub(?:\([a-z]+\))?\s+)?mod\s+\w+\s*\{", code, maxsplit=1)[0]
    return re.sub(_FOR_TESTS + r"\s*(?:pub(?:\([a-z]+\))?\s+)?fn\s+\w+", "", code)


def rust_files(root: Path = SRC) -> Iterator[tuple[Path, str]]:
    """(path relative to src, text) of every Rust file but build scripts."""
    for path in sorted(root.rglob("*.rs")):
        name = path.relative_to(root)
        if name.name != "build.rs" and "build" not in name.parts:
            yield name, path.read_text(encoding="utf-8")


def product_files() -> Iterator[tuple[Path, str]]:
    """(path relative to src, code without comments, literals and tests) of every file that is in the wheel."""
    for path, text in rust_files():
        if not is_test_file(path):
            yield path, without_inline_tests(code_only(text))
