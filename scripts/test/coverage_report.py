#!/usr/bin/env python3
"""Prints lines and regions covered per module, and the lines that are not.

    coverage_report.py LINES REGIONS MODULE...

LINES and REGIONS are what `llvm-cov export` writes as lcov and as JSON. Code of tests does not count. Exits with 1 when
a module has less than 95 % of its lines covered, or none at all.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from rust_source import SRC, is_test_file  # noqa: E402

LEAST = 95.0
# The head of a file's own tests, if it has some: they stand at its end.
INLINE_TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{", re.MULTILINE)

Place = tuple[int, int, int, int]


def first_test_line(text: str) -> int:
    """Number of the line, from 1, at which a file's own tests begin; beyond its end if it has none."""
    found = INLINE_TESTS.search(text)
    return text.count("\n", 0, found.start() if found else len(text)) + (1 if found else 2)


def lines_of(report: Iterable[str]) -> dict[str, dict[int, int]]:
    """Counts how often each line of each file was executed, by the file's path."""
    files: dict[str, dict[int, int]] = {}
    lines: dict[int, int] = {}
    for entry in report:
        kind, _, rest = entry.strip().partition(":")
        if kind == "SF":
            lines = files.setdefault(rest, {})
        elif kind == "DA":
            number, count = rest.split(",")[:2]
            lines[int(number)] = int(count)
    return files


def regions_of(report: str) -> dict[str, dict[Place, int]]:
    """Counts how often each region of each file was executed, a generic function in all its instances together."""
    files: dict[str, dict[Place, int]] = {}
    for function in json.loads(report)["data"][0]["functions"]:
        for line, column, last, end, count, file, _, kind in function["regions"]:
            if kind == 0:  # code; the others are gaps and expansions of macros
                regions = files.setdefault(function["filenames"][file], {})
                place = (line, column, last, end)
                regions[place] = regions.get(place, 0) + count
    return files


def ranges(lines: Iterable[int]) -> str:
    """`3-5, 9` for 3, 4, 5, 9."""
    parts: list[list[int]] = []
    for line in sorted(lines):
        if parts and parts[-1][1] + 1 == line:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def share(counts: list[int]) -> float:
    return 100.0 * sum(count > 0 for count in counts) / max(len(counts), 1)


def main(lines_path: Path, regions_path: Path, modules: list[str], src: Path = SRC) -> int:
    lines = lines_of(lines_path.read_text(encoding="utf-8").splitlines())
    regions = regions_of(regions_path.read_text(encoding="utf-8"))
    too_little = False
    for module in modules:
        line_counts: list[int] = []
        region_counts: list[int] = []
        missing: list[str] = []
        for name in sorted(lines):
            path = Path(name)
            if not path.is_relative_to(src / module) or is_test_file(path.relative_to(src)):
                continue
            end = first_test_line(path.read_text(encoding="utf-8"))
            counts = {line: count for line, count in lines[name].items() if line < end}
            line_counts.extend(counts.values())
            region_counts.extend(count for place, count in regions.get(name, {}).items() if place[0] < end)
            unexecuted = ranges(line for line, count in counts.items() if count == 0)
            if unexecuted:
                missing.append(f"  src/{path.relative_to(src)}: {unexecuted}")
        of_lines = share(line_counts)
        too_little |= of_lines < LEAST
        verdict = "" if of_lines >= LEAST else f"  BELOW {LEAST:.0f} %"
        print(
            f"{module}: {of_lines:.1f} % of {len(line_counts)} lines, "
            f"{share(region_counts):.1f} % of {len(region_counts)} regions{verdict}"
        )
        print("\n".join(missing) if missing else "  all lines")
    return int(too_little)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
