"""The lists of files in docs/contributing/ are those of a real example: what names it in the sources is on the page."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from rust_source import ROOT, tracked_files

FOLDER = ROOT / "docs" / "contributing"
PAGES = sorted(FOLDER.glob("adding-*.md"))
# For each page, the pattern that names its example and the folders that are searched for it.
EXAMPLES = {
    "adding-architecture": (
        r"\bgranite\b",
        ("src/model/arch", "tests/data/arch", "scripts/docs/models.toml", "docs/supported-models.md"),
    ),
    "adding-kernel": (r"\b(GATHER_ROWS|gather_rows|GatherArgs)\b", ("src", "kernels")),
    "adding-tensor-type": (r"\b(NAME_)?Q4_1\b", ("src", "kernels", "python/rocmforge/hub/choice.py", "scripts")),
    "adding-endpoint": (r"\brerank\b", ("python/rocmforge/server", "docs/server.md", "docs/usage.md", "tests/server")),
    "adding-parameter": (r"\bfrequency_penalty\b", ("src", "python")),
}
# Tests of the crate beside their module; the pages name those that have a list to extend.
RUST_TESTS = re.compile(r"src/(.*/)?(tests/.*|tests\.rs|\w+_tests\.rs)$")


def listed(page: str) -> set[str]:
    """Files in the first column of a page's tables."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([\w./-]+[./][\w./-]*)` \|", text, re.MULTILINE))


def naming(pattern: str, places: tuple[str, ...]) -> set[str]:
    """Tracked files in `places` whose name or text has the pattern."""
    found = set()
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(places) and not name.startswith("docs/contributing/"):
            text = "" if path.suffix in {".xz", ".png", ".woff"} else path.read_text(encoding="utf-8")
            if re.search(pattern, name) or re.search(pattern, text):
                found.add(name)
    return found


def test_each_page_has_an_example() -> None:
    assert {page.stem for page in PAGES} == set(EXAMPLES)


@pytest.mark.parametrize("page", sorted(EXAMPLES))
def test_listed_files_exist(page: str) -> None:
    files = listed(page)
    assert len(files) >= 6
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("page", sorted(EXAMPLES))
def test_what_names_the_example_is_listed(page: str) -> None:
    pattern, places = EXAMPLES[page]
    needed = {name for name in naming(pattern, places) if not RUST_TESTS.match(name)}
    assert len(needed) >= 4
    assert sorted(needed - listed(page)) == []


@pytest.mark.parametrize("page", sorted(EXAMPLES))
def test_what_is_listed_names_the_example(page: str) -> None:
    """A file that no longer has to do with the example is not on the page."""
    pattern, places = EXAMPLES[page]
    inside = {name for name in listed(page) if name.startswith(places)}
    assert sorted(inside - naming(pattern, places)) == []


COUNTS = ROOT / "notes" / "decisions" / "files-per-change.md"
COUNT = re.compile(r"^\| ([\w ]+) \| `(git grep [^`]*)` \| (\d+) \| \d+ \|$", re.MULTILINE)


def test_counts_of_files_are_those_of_the_sources() -> None:
    counts = COUNT.findall(COUNTS.read_text(encoding="utf-8"))
    assert len(counts) == 6
    for change, command, expected in counts:
        found = subprocess.run(shlex.split(command), cwd=ROOT, check=True, capture_output=True, text=True)
        assert len(found.stdout.splitlines()) == int(expected), f"{change}: {found.stdout}"


def test_file_lists_end_where_the_table_ends() -> None:
    assert "src/model/arch/dense/mod.rs" in listed("adding-architecture")
    assert "general.architecture" not in listed("adding-architecture")


def test_the_workflow_runs_what_the_check_runs() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    check = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    stages = " ".join(re.findall(r"^stage (.+)$", check, re.MULTILINE)).split()
    assert set(stages) == {"gpu-tools", "lint", "docs", "test"}
    assert ".ci/run" in re.findall(r"^ +- run: (.*)$", workflow, re.MULTILINE)


def test_the_contributing_guide_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 120


def missing_targets(text: str, makefile: str) -> list[str]:
    """Targets of `make` in code spans and command lines that a Makefile does not define."""
    named = {
        target for command in re.findall(r"(?:^|`)make ([^`\n]*)", text, re.MULTILINE) for target in command.split()
    }
    targets = {target for target in named if re.fullmatch(r"[a-z][\w-]*", target)}
    return sorted(target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "testing.md", *sorted(FOLDER.glob("*.md"))])
def test_targets_of_make_exist(page: Path) -> None:
    """P1: the existing test of documents sees only shell blocks; most targets are named in tables and sentences."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert missing_targets(page.read_text(encoding="utf-8"), makefile) == []


def test_missing_target_is_found() -> None:
    text = "Run `make lint`, `make fuzz T=600` or `make nothing`.\nmake test gone\nWe make things."
    assert missing_targets(text, "lint: x\nfuzz:\ntest:\n") == ["gone", "nothing"]
