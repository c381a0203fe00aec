"""The map in docs/failure-classes.md, from failure class to tests. A test says what it proves at the start of its doc
comment or docstring (`K2, S9: …`); run this file to write the map's column of tests anew:

    PYTHONPATH=tests python tests/docs/failure_map.py
"""

import ast
import re
from collections.abc import Iterator

from rust_source import ROOT, rust_files

MAP = ROOT / "docs" / "failure-classes.md"
ROW = re.compile(r"^\| ([A-Z]\d+) \|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|$", re.MULTILINE)

_RUST_TEST = re.compile(
    r"(?P<before>(?:^[ \t]*///[^\n]*\n)*)"
    r"(?P<attributes>^[ \t]*#\[test\]\s*(?:(?:#\[[^\]]*\]|//[^\n]*)\s*)*)"
    r"fn\s+(?P<name>\w+)",
    re.MULTILINE,
)
_CLAIM = re.compile(r"\A\s*([A-Z]\d+(?:(?:, | and )[A-Z]\d+)*):")


def claimed(doc: str) -> list[str]:
    """The ids at the start of a test's documentation."""
    claim = _CLAIM.match(doc)
    return re.findall(r"[A-Z]\d+", claim.group(1)) if claim else []


def rust_tests(text: str) -> Iterator[tuple[str, str]]:
    """(name, documentation) of the tests in a Rust file."""
    for match in _RUST_TEST.finditer(text):
        lines = (match["before"] + match["attributes"]).splitlines()
        doc = [line.strip().removeprefix("///") for line in lines if line.strip().startswith("///")]
        yield match["name"], "\n".join(doc)


def python_tests(text: str) -> Iterator[tuple[str, str]]:
    """(name, documentation) of the tests in a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def all_tests() -> Iterator[tuple[str, str]]:
    for folder in ("src", "crates", "sim"):
        for _, text in rust_files(ROOT / folder):
            yield from rust_tests(text)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        yield from python_tests(path.read_text(encoding="utf-8"))


def proofs(tests: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """Names of the tests that claim each id, in alphabetical order."""
    found: dict[str, set[str]] = {}
    for name, doc in tests:
        for identifier in claimed(doc):
            found.setdefault(identifier, set()).add(name)
    return {identifier: sorted(names) for identifier, names in found.items()}


def updated(text: str, proven: dict[str, list[str]]) -> str:
    """The map with its column of tests replaced."""

    def row(match: re.Match[str]) -> str:
        identifier, title, _, construction = match.groups()
        tests = ", ".join(f"`{name}`" for name in proven.get(identifier, []))
        cells = (identifier, title.strip(), tests, construction.strip())
        return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"

    return ROW.sub(row, text)


if __name__ == "__main__":
    MAP.write_text(updated(MAP.read_text(encoding="utf-8"), proofs(all_tests())), encoding="utf-8")
