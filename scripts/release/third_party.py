#!/usr/bin/env python3
"""Writes THIRD_PARTY_LICENSES.txt: the licence texts of the Rust crates that the wheel contains.

`scripts/release/third_party.py --check` fails where the file lacks a crate of Cargo.lock, or names one that is gone.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "THIRD_PARTY_LICENSES.txt"
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
TEXTS = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)
RULE = "=" * 80
HEADER = (
    "rocmforge contains code of the Rust crates below. scripts/release/third_party.py made this list from Cargo.lock\n"
    "and from the files of each crate.\n"
)


def crates() -> dict[str, dict[str, Any]]:
    """Returns the packages that are linked into the extension, by name and version."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--features", "python"]
    platforms = [word for platform in PLATFORMS for word in ("--filter-platform", platform)]
    output = subprocess.run([*command, *platforms], cwd=ROOT, check=True, capture_output=True, text=True)
    metadata = json.loads(output.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [metadata["resolve"]["root"]]
    seen = set(waiting)
    while waiting:
        deps = nodes[waiting.pop()]["deps"]
        new = {each["pkg"] for each in deps if any(kind["kind"] is None for kind in each["dep_kinds"])} - seen
        seen |= new
        waiting += new
    linked = [packages[package] for package in seen if packages[package]["source"]]
    found = {f"{package['name']} {package['version']}": package for package in linked}
    return dict(sorted(found.items()))


def texts(package: dict[str, Any]) -> Iterator[str]:
    """Yields the licence files of a package; the MIT licence alone where a crate may be used under it."""
    folder = Path(package["manifest_path"]).parent
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and TEXTS.search(path.name)]
    mit = [path for path in files if "MIT" in path.name.upper()]
    is_choice = " OR " in (package["license"] or "")
    for path in mit if is_choice and mit else files:
        yield f"--- {path.name}\n\n{path.read_text(encoding='utf-8', errors='replace').strip()}\n"


def document() -> str:
    """Returns the whole file. A text that several crates share stands once."""
    by_text: dict[str, list[str]] = {}
    for name, package in crates().items():
        line = f"{name} ({package['license'] or package['license_file']})"
        by_text.setdefault("\n".join(texts(package)), []).append(line)
    parts = (f"{RULE}\n" + "\n".join(names) + f"\n\n{text}" for text, names in by_text.items())
    return HEADER + "\n" + "\n".join(parts)


def named(text: str) -> set[str]:
    """Returns the crates that a file names, with their versions."""
    return set(re.findall(r"^([\w-]+ \d[\w.+-]*) \(", text, flags=re.MULTILINE))


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the crates instead of writing the file")
    if not parser.parse_args().check:
        TARGET.write_text(document(), encoding="utf-8")
        return 0
    differ = named(TARGET.read_text(encoding="utf-8")) ^ set(crates())
    if differ:
        print(f"{TARGET.name} is not up to date: {sorted(differ)}; run scripts/release/third_party.py", file=sys.stderr)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
