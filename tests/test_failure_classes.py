"""docs/failure-classes.md maps every known way to fail to the tests that prove it absent; the map must be whole and
every test that it names must exist."""

import re
from collections.abc import Iterable

from rust_source import ROOT, rust_files

MAP = ROOT / "docs" / "failure-classes.md"

# P1: a claim that no test stands behind is not made; these are all the classes known.
COUNTS = {"K": 24, "S": 30, "M": 16, "L": 13, "P": 8}
EXPECTED = {f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)}

ROW = re.compile(r"^\|\s*([A-Z]\d+)\s*\|([^|]*)\|([^|]*)\|([^|]*)\|\s*$", re.MULTILINE)
RUST_TEST = re.compile(r"#\[test\]\s*(?:(?:#\[[^\]]*\]|//[^\n]*)\s*)*fn\s+(\w+)")
PYTHON_TEST = re.compile(r"^\s*(?:async\s+)?def\s+(test_\w+)", re.MULTILINE)


def problems(text: str, existing: Iterable[str]) -> list[str]:
    """What is wrong with a map: ids missing, twice or unknown, rows without proof, tests that do not exist."""
    existing = set(existing)
    found: list[str] = []
    seen: set[str] = set()
    for identifier, title, tests, construction in (match.groups() for match in ROW.finditer(text)):
        if identifier in seen:
            found.append(f"{identifier}: mapped twice")
        seen.add(identifier)
        names = re.findall(r"`(\w+)`", tests)
        if not title.strip():
            found.append(f"{identifier}: no title")
        if not names and not construction.strip():
            found.append(f"{identifier}: neither a test nor a reason")
        if tests.strip() and not names:
            found.append(f"{identifier}: the tests' column names no test")
        found.extend(f"{identifier}: no test is named {name}" for name in names if name not in existing)
    found.extend(f"{identifier}: not mapped" for identifier in sorted(EXPECTED - seen))
    found.extend(f"{identifier}: unknown" for identifier in sorted(seen - EXPECTED))
    return found


def existing_tests() -> set[str]:
    """Names of all Rust and Python tests."""
    names: set[str] = set()
    for _, text in rust_files():
        names.update(RUST_TEST.findall(text))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names.update(PYTHON_TEST.findall(path.read_text(encoding="utf-8")))
    return names


def test_every_class_is_proven_absent() -> None:
    assert problems(MAP.read_text(encoding="utf-8"), existing_tests()) == []


def test_the_map_is_linked_from_the_architecture() -> None:
    assert "failure-classes.md" in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_existing_tests_are_found() -> None:
    assert "test_existing_tests_are_found" in existing_tests()
    assert RUST_TEST.findall("#[test]\n#[should_panic]\n/// K1: why\nfn a_b() {}\nfn helper() {}") == ["a_b"]
    assert PYTHON_TEST.findall("    async def test_x(self):\n  def helper():") == ["test_x"]


def whole_map(**changed: str) -> str:
    rows = {identifier: f"| {identifier} | title | `test_a` | |" for identifier in EXPECTED}
    rows.update(changed)
    return "\n".join(rows.values()) + "\n"


def test_problems_are_found() -> None:
    assert problems(whole_map(), ["test_a"]) == []
    assert problems(whole_map(K3="| K3 | title | | one owner; `!Sync` |"), ["test_a"]) == []
    assert problems(whole_map(K3=""), ["test_a"]) == ["K3: not mapped"]
    assert problems(whole_map(K3="| K3 | title | | |"), ["test_a"]) == ["K3: neither a test nor a reason"]
    assert problems(whole_map(K3="| K3 | title | `test_b` | |"), ["test_a"]) == ["K3: no test is named test_b"]
    assert problems(whole_map(K3="| K3 | title | soon | |"), ["test_a"]) == [
        "K3: neither a test nor a reason",
        "K3: the tests' column names no test",
    ]
    assert problems(whole_map(K3="| K3 | | `test_a` | |"), ["test_a"]) == ["K3: no title"]
    assert problems(whole_map() + "| K1 | again | `test_a` | |\n", ["test_a"]) == ["K1: mapped twice"]
    assert problems(whole_map() + "| K99 | new | `test_a` | |\n", ["test_a"]) == ["K99: unknown"]


def test_map_lists_only_tables_with_four_columns() -> None:
    """A row with a stray column would be left out in silence; count what looks like a row."""
    text = MAP.read_text(encoding="utf-8")
    assert len(re.findall(r"^\|\s*[KSMLP]\d+\s*\|", text, re.MULTILINE)) == len(EXPECTED)
