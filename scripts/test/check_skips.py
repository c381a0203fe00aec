"""Fails where a skipped test could have run: a skip is not a pass.

Looks only with CI=true in the environment; `pytest -rs` lists the skips everywhere. `make test` installs everything
that a test can need except hardware, so a skip whose reason starts with "hardware:" is the one kind allowed.

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
    needless = [(name, reason) for name, reason in skips(report) if not reason.startswith(HARDWARE)]
    if not in_ci or not needless:
        return 0
    for name, reason in needless:
        print(f"skipped although it could have run, which is a failure in CI: {name}: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), in_ci=os.environ.get("CI") == "true"))
