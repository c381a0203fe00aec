"""docs/failure-classes.md maps every known way to fail to the tests that prove it absent. The map must be whole, and
agree with what the tests say of themselves."""

import re

from failure_map import MAP, ROW, all_tests, claimed, proofs, python_tests, rust_tests, updated
from rust_source import ROOT

# P1: a claim that no test stands behind is not made; these are all the classes known.
COUNTS = {"K": 24, "S": 30, "M": 16, "L": 13, "P": 8, "G": 26, "A": 24, "F": 10, "H": 23, "C": 23}
EXPECTED = {f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)}


def problems(text: str) -> list[str]:
    """Lists the faults of a map: ids missing, twice or unknown; rows without title or proof."""
    found: list[str] = []
    seen: set[str] = set()
    for identifier, title, tests, construction in (match.groups() for match in ROW.finditer(text)):
        if identifier in seen:
            found.append(f"{identifier}: mapped twice")
        seen.add(identifier)
        if not title.strip():
            found.append(f"{identifier}: no title")
        if not re.search(r"`\w+`", tests) and not construction.strip():
            found.append(f"{identifier}: neither a test nor a reason")
    found.extend(f"{identifier}: not mapped" for identifier in sorted(EXPECTED - seen))
    found.extend(f"{identifier}: unknown" for identifier in sorted(seen - EXPECTED))
    return found


def test_every_class_is_proven_absent() -> None:
    """P1: each class has a test, or a reason why it cannot occur."""
    assert problems(MAP.read_text(encoding="utf-8")) == []


def test_the_map_agrees_with_the_tests() -> None:
    """P1: the tests named exist and claim the class. `PYTHONPATH=tests python tests/docs/failure_map.py` mends it."""
    text = MAP.read_text(encoding="utf-8")
    assert text == updated(text, proofs(all_tests()))


def test_claims_are_for_known_classes() -> None:
    assert set(proofs(all_tests())) <= EXPECTED


def test_the_map_is_linked_from_the_architecture() -> None:
    assert "failure-classes.md" in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_line_that_looks_like_a_row_is_read() -> None:
    """A row with a stray column would be left out in silence."""
    text = MAP.read_text(encoding="utf-8")
    assert len(re.findall(r"^\|\s*[A-Z]\d+\s*\|", text, re.MULTILINE)) == len(ROW.findall(text))


def test_tests_and_their_claims_are_read() -> None:
    rust = (
        "/// K1, S2: a\n/// b\n#[test]\nfn one() {}\n    #[test]\n    /// K3: c\n    #[should_panic]\n    fn two() {}\n"
    )
    assert list(rust_tests(rust + "fn helper() {}")) == [("one", " K1, S2: a\n b"), ("two", " K3: c")]
    python = 'async def test_a():\n    """L1 and L2: x"""\nclass A:\n    def test_b(self): pass\ndef helper(): pass\n'
    assert list(python_tests(python)) == [("test_a", "L1 and L2: x"), ("test_b", "")]
    assert claimed("L1 and L2: x") == ["L1", "L2"]
    assert claimed(" K1, S2: a") == ["K1", "S2"]
    assert claimed("Differs from K1: no") == []
    assert proofs(iter([("b", "K1: x"), ("a", "K1, S2: y"), ("c", "")])) == {"K1": ["a", "b"], "S2": ["a"]}


def whole_map(**changed: str) -> str:
    rows = {identifier: f"| {identifier} | title | `test_a` | |" for identifier in EXPECTED}
    rows.update(changed)
    return "\n".join(rows.values()) + "\n"


def test_problems_are_found() -> None:
    assert problems(whole_map()) == []
    assert problems(whole_map(K3="| K3 | title | | one owner |")) == []
    assert problems(whole_map(K3="")) == ["K3: not mapped"]
    assert problems(whole_map(K3="| K3 | title | | |")) == ["K3: neither a test nor a reason"]
    assert problems(whole_map(K3="| K3 | title | soon | |")) == ["K3: neither a test nor a reason"]
    assert problems(whole_map(K3="| K3 | | `test_a` | |")) == ["K3: no title"]
    assert problems(whole_map() + "| K1 | again | `test_a` | |\n") == ["K1: mapped twice"]
    assert problems(whole_map() + "| K99 | new | `test_a` | |\n") == ["K99: unknown"]


def test_column_of_tests_is_replaced() -> None:
    text = "| K1 | a title | `test_old` | a reason |\n| K2 | b | `x` | |\n| id | other |\n"
    expected = "| K1 | a title | `test_a`, `test_b` | a reason |\n| K2 | b | | |\n| id | other |\n"
    assert updated(text, {"K1": ["test_a", "test_b"]}) == expected
