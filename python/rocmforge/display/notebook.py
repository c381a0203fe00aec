"""HTML that a notebook shows for an object that is the result of a cell."""

import html
from collections.abc import Iterable


def table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """HTML of a table with a name and a text in each row; line breaks of the texts are kept."""
    cell = "text-align: left; vertical-align: top"
    body = "".join(
        f'<tr><th style="{cell}">{html.escape(name)}</th>'
        f'<td style="{cell}; white-space: pre-wrap">{html.escape(text)}</td></tr>'
        for name, text in rows
    )
    return f'<table><caption style="{cell}">{html.escape(caption)}</caption>{body}</table>'
