"""Counts what a pytest run skipped, from the runner's own report, and lets no needed test be skipped in CI.

A skip is not a pass: each is listed with its reason. With CI=true in the environment the command fails when a test was
skipped for want of something that `make test` installs: everything except hardware, which a reason must name by
starting with "hardware:".

Usage: check_skips.py REPORT.xml
"""

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

HARDWARE = "hardware:"


def skips(report: Path) -> list[tuple[str, str]]:
    """(test, reason) of every skipped test in a JUnit report."""
    found = []
    for case in ET.parse(report).getroot().iter("testcase"):
        for skipped in case.findall("skipped"):
            name = f"{case.get('classname')}::{case.get('name')}"
            found.append((name, skipped.get("message") or ""))
    return found


def main(report: Path, *, in_ci: bool) -> int:
    """The exit status: 1 when CI would otherwise call a skipped test a pass."""
    skipped = skips(report)
    for name, reason in skipped:
        print(f"SKIPPED {name}: {reason}")
    needless = [name for name, reason in skipped if not reason.startswith(HARDWARE)]
    if in_ci and needless:
        print(f"{len(needless)} skipped test(s) could have run: a skip is a failure in CI", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), in_ci=os.environ.get("CI") == "true"))
