#!/usr/bin/env python3
"""Prepares a checkout for the package index, whose page cannot follow relative links: package_page.py URL REF [FOLDER]

  URL     the repository, as https://github.com/OWNER/NAME
  REF     the tag or commit that is released
  FOLDER  the checkout, by default this one; README.md and pyproject.toml there are changed in place

Links and pictures of README become absolute, and pyproject gets `[project.urls]`.
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def absolute(text: str, url: str, ref: str) -> str:
    """Returns the text with absolute links: pictures lead to the file itself, links to its page."""

    def replace(link: re.Match[str]) -> str:
        picture, label, target = link.groups()
        return f"{picture}[{label}]({url}/{'raw' if picture else 'blob'}/{ref}/{target})"

    return LINK.sub(replace, text)


def urls(url: str, ref: str) -> str:
    """Returns the table of pyproject.toml with the project's addresses."""
    return f"""
[project.urls]
Homepage = "{url}"
Documentation = "{url}/blob/{ref}/docs/index.md"
Changelog = "{url}/blob/{ref}/CHANGELOG.md"
Issues = "{url}/issues"
"""


def main(url: str, ref: str, folder: Path) -> None:
    readme, project = folder / "README.md", folder / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), url, ref), encoding="utf-8")
    settings = project.read_text(encoding="utf-8")
    if "\n[project.urls]\n" in settings:
        raise SystemExit("pyproject.toml has [project.urls] already")
    project.write_text(settings + urls(url, ref), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in {3, 4}:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]) if len(sys.argv) == 4 else Path(__file__).parents[2])
