#!/usr/bin/env python3
"""The tables of supported models in docs/supported-models.md and README.md, from scripts/docs/models.toml.

scripts/docs/model_table.py --write    writes both tables
scripts/docs/model_table.py            prints the documents that differ and exits with 1, if any does
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "scripts" / "docs" / "models.toml"
ARCHITECTURES = ROOT / "src" / "model" / "arch" / "mod.rs"
BEGIN = "<!-- Written by scripts/docs/model_table.py from scripts/docs/models.toml. -->\n"
END = "<!-- Written until here. -->\n"
NONE = "–"  # noqa: RUF001


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A line of the data; its fields are explained there."""

    models: str
    architecture: str
    modality: str = "text"
    tools: str | None = None
    like: str | None = None
    notes: str = ""
    readme: str | None = None
    also: str | None = None

    @property
    def generates(self) -> bool:
        return self.modality.startswith("text")


def families() -> list[Family]:
    return [Family(**family) for family in tomllib.loads(DATA.read_text(encoding="utf-8"))["families"]]


def architectures() -> list[str]:
    """Names in `general.architecture` that the engine knows."""
    folders = sorted(ARCHITECTURES.parent.glob("*/mod.rs"))
    sources = "".join(path.read_text(encoding="utf-8") for path in folders)
    return re.findall(r'Architecture \{ name: "([\w-]+)"', sources)


def with_mtp() -> set[str]:
    """Architectures whose files may have an MTP block."""
    (names,) = re.findall(r"const NEXTN: \[&str; \d+\] = \[(.*?)\];", ARCHITECTURES.read_text(encoding="utf-8"))
    return set(re.findall(r'"([\w-]+)"', names))


def speculation(family: Family, mtp: set[str]) -> str:
    if not family.generates:
        return NONE
    return "n-gram, draft model, MTP" if family.architecture in mtp else "n-gram, draft model"


def tools(family: Family) -> str:
    if family.tools in ("none", "derived"):
        return NONE if family.tools == "none" else family.tools
    return f"`{family.tools}`" if family.tools else "not tested"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = (" | ".join(cells) for cells in (head, *rows))
    first, *others = (f"| {line} |\n".replace("|  |", "| |") for line in lines)
    return "".join((first, f"|{'---|' * len(head)}\n", *others))


def cells(family: Family) -> tuple[str, str, str]:
    return f"`{family.architecture}`", family.modality, tools(family)


def whole_table() -> str:
    mtp = with_mtp()
    rows = [(one.models, *cells(one), speculation(one, mtp), one.notes) for one in families()]
    return table(("models", "architecture", "modality", "tool calls", "speculation", "notes"), rows)


def short_table() -> str:
    """Models that many people look for, then the names of some others."""
    mtp = with_mtp()
    rows = [(one.readme, *cells(one), "✓" if one.architecture in mtp else "") for one in families() if one.readme]
    others = ", ".join(family.also for family in families() if family.also)
    return f"{table(('models', 'architecture', 'modality', 'tool calls', 'MTP'), rows)}\nAlso: {others}.\n"


TABLES = {ROOT / "docs" / "supported-models.md": whole_table, ROOT / "README.md": short_table}


def updated(path: Path) -> tuple[str, str]:
    """Returns a document's text as it is, and as it has to be."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, behind = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no lines {BEGIN!r} and {END!r}, between which the models stand")
    return text, f"{before}{BEGIN}\n{TABLES[path]()}\n{END}{behind}"


def main(arguments: list[str]) -> None:
    if arguments not in ([], ["--write"]):
        raise SystemExit(__doc__)
    changed = {path: new for path, (old, new) in ((path, updated(path)) for path in TABLES) if old != new}
    for path, new in changed.items():
        if arguments:
            path.write_text(new, encoding="utf-8")
        done = "written" if arguments else "differs; run scripts/docs/model_table.py --write"
        print(f"{path.relative_to(ROOT)}: {done}")
    if changed and not arguments:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
