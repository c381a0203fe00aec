"""Texts of files and clients as a terminal or a log may show them."""

import re

# Characters that control a terminal, or that hide or reverse the text next to them.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# Joiners of zero width stay: emoji and some scripts are written with them.
_CONTROL_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Returns the text on one line, with what would steer a terminal as escapes."""
    return _CONTROL.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Returns the text with what would steer a terminal as escapes; line breaks and tabs stay."""
    return _CONTROL_IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
