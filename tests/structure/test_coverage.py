"""The figures of `make coverage`: what counts as a line of a module, and when a module has too little."""

import json
import sys
from pathlib import Path

import pytest
from rust_source import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "test"))
import coverage_report

CODE = "fn f(x: bool) -> u8 {\n" + "    g();\n" * 17 + "    if x { 1 } else { 2 }\n}\n"
INLINE_TESTS = "\n#[cfg(test)]\nmod tests {\n    fn never() {}\n}\n"


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def lcov(counts: dict[str, dict[int, int]]) -> str:
    """Writes a report as llvm-cov does: a record of lines for each file, the functions left out."""
    lines = []
    for name, of_lines in counts.items():
        lines += [f"SF:{name}", *(f"DA:{line},{count}" for line, count in of_lines.items()), "end_of_record"]
    return "\n".join(lines)


def regions(functions: list[tuple[str, list[list[int]]]]) -> str:
    """Each region: first line, column, last line, column, count; all are of the function's own file."""
    exported = [{"filenames": [name], "regions": [[*r, 0, 0, 0] for r in found]} for name, found in functions]
    return json.dumps({"data": [{"functions": exported}]})


def report(folder: Path, lines: str, found: str, *modules: str) -> int:
    (folder / "lines").write_text(lines)
    (folder / "regions").write_text(found)
    return coverage_report.main(folder / "lines", folder / "regions", list(modules), folder / "src")


def test_lines_and_regions_of_the_product_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """19 of 20 lines are 95 %, which is enough. Tests do not count, within a file or beside it, nor do other modules;
    of two instances of a generic function, one executes what the other does not."""
    name = write(tmp_path, "src/gguf/file.rs", CODE + INLINE_TESTS)
    test_file = write(tmp_path, "src/gguf/tests/open.rs", CODE)
    other = write(tmp_path, "src/model/mod.rs", CODE)
    counts = {name: {**dict.fromkeys(range(1, 20), 3), 20: 0, 24: 0}, test_file: {1: 0}, other: {1: 0}}
    region = [[1, 1, 18, 9, 1], [19, 10, 19, 15, 0], [24, 5, 24, 20, 0]]
    instances = [(name, region), (name, [[19, 10, 19, 15, 2]]), (name, [[19, 20, 19, 26, 0]])]
    assert report(tmp_path, lcov(counts), regions(instances), "gguf") == 0
    assert capsys.readouterr().out == ("gguf: 95.0 % of 20 lines, 66.7 % of 3 regions\n  src/gguf/file.rs: 20\n")


def test_too_little_and_nothing_are_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(tmp_path, "src/gguf/file.rs", CODE)
    counts = {name: {**dict.fromkeys(range(1, 21), 1), 4: 0, 5: 0, 9: 0}}
    assert report(tmp_path, lcov(counts), regions([]), "gguf") == 1
    assert "gguf: 85.0 % of 20 lines" in (shown := capsys.readouterr().out)
    assert "BELOW 95 %" in shown
    assert "src/gguf/file.rs: 4-5, 9" in shown
    assert report(tmp_path, lcov(counts), regions([]), "sampler") == 1


def test_where_a_file_has_its_tests() -> None:
    assert coverage_report.first_test_line("fn f() {}\n\n#[cfg(test)]\nmod tests {\n") == 3
    assert coverage_report.first_test_line("fn f() {}\n#[cfg(test)]\nmod tests;\nfn g() {}\n") == 6
