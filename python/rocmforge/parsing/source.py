"""The text that is still to be read, and the steps that readers are made of.

A reader is a generator: it reads the available text and yields when it needs more. No step depends on where the
available text ends. So the events do not depend on how the text was cut into pieces.
"""

import re
from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]

SPACE = " \t\r\n"
# Longer words, in characters, are not names or keys.
MAX_WORD = 256
# The limit of text that is read again, as a multiple of the text's length, and the minimum of this limit.
_MAX_REREAD = 4
_MIN_REREAD = 4096


class Source:
    """Text that has come and was not read yet.

    A reader can go back to a mark. The source counts the characters that are read again, and `may_try` refuses further
    attempts above a limit. So the total work stays linear in the length of the text.
    """

    __slots__ = ("_before", "_kept", "_marked_at", "_reread", "at", "ended", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        """The position of the next character to read."""
        self.ended = False
        """True if no more text will come."""
        # The number of characters that came before `text`.
        self._before = 0
        # Text after the mark that is no longer part of `text`; `None` without a mark.
        self._kept: list[str] | None = None
        self._marked_at = 0
        self._reread = 0

    def feed(self, text: str) -> None:
        """Appends text. Positions change."""
        if self._kept is not None:
            if self.at > self._marked_at:
                self._kept.append(self.text[self._marked_at : self.at])
            self._marked_at = 0
        self._before += self.at
        self.text = self.text[self.at :] + text
        self.at = 0

    def mark(self) -> None:
        """Marks the next character for `rewind`. There is one mark at a time."""
        self._kept = []
        self._marked_at = self.at

    def release(self) -> None:
        """Removes the mark, if there is one."""
        self._kept = None

    def rewind(self) -> None:
        """Goes back to the mark, and removes it."""
        kept = "".join(self._kept or ())
        self._reread += len(kept) + self.at - self._marked_at
        if kept:
            self.text = kept + self.text
            self._before -= len(kept)
            self._marked_at = 0
        self.at = self._marked_at
        self._kept = None

    def may_try(self) -> bool:
        """True if one more attempt that may have to go back is within the limit.

        The result depends on the text that was read, not on the text that has come, so cuts change nothing.
        """
        return self._reread <= _MIN_REREAD + _MAX_REREAD * (self._before + self.at)

    def exhausted(self) -> bool:
        """True if all available text was read."""
        return self.at >= len(self.text)


@cache
def markers(*literals: str) -> re.Pattern[str]:
    """Returns a pattern that finds a literal, or the beginning of one at the end of the text.

    Group 1 matches only complete literals. A literal that begins with another one comes before it.
    """
    whole = "|".join(re.escape(literal) for literal in literals)
    begun = "|".join(_beginnings(literal[:-1]) for literal in literals if len(literal) > 1)
    return re.compile(rf"({whole})|(?:{begun})\Z" if begun else f"({whole})")


def _beginnings(literal: str) -> str:
    """Returns a regular expression that finds the longest beginning of a literal."""
    tail = ""
    for character in reversed(literal):
        tail = f"{re.escape(character)}(?:{tail})?" if tail else re.escape(character)
    return tail


def text_until(source: Source, pattern: re.Pattern[str], write: Callable[[str], None]) -> Steps[str | None]:
    """Writes the text up to the next marker of `markers`, and stops before the marker.

    Returns:
        The marker; `None` if the text has ended without one.
    """
    while True:
        text, at = source.text, source.at
        found = pattern.search(text, at)
        end = len(text) if found is None else found.start()
        if end > at:
            write(text[at:end])
            source.at = end
        if found is not None and (marker := found.group(1)) is not None:
            return str(marker)
        if source.ended:
            if found is not None:
                write(text[end:])
                source.at = len(text)
            return None
        yield


def peek(source: Source) -> Steps[str]:
    """Returns the next character; an empty string at the end."""
    while source.exhausted():
        if source.ended:
            return ""
        yield
    return source.text[source.at]


def skip_space(source: Source, also: str = "") -> Steps[None]:
    """Reads white space and the characters of `also`."""
    characters = SPACE + also
    while True:
        if source.exhausted():
            if source.ended:
                return
            yield
        elif source.text[source.at] in characters:
            source.at += 1
        else:
            return


def expect(source: Source, literals: Iterable[str]) -> Steps[str | None]:
    """Reads one of several literals, none of which is a prefix of another.

    Returns:
        The literal; `None` if the text continues with something else. If the text ends within a literal, that part is
        read.
    """
    while True:
        begun = False
        for literal in literals:
            if source.text.startswith(literal, source.at):
                source.at += len(literal)
                return literal
            begun = begun or literal.startswith(source.text[source.at : source.at + len(literal)])
        if not begun:
            return None
        if source.ended:
            source.at = len(source.text)
            return None
        yield


def word(source: Source, characters: re.Pattern[str]) -> Steps[str]:
    """Reads characters of a class. Returns an empty string for more than `MAX_WORD`, or if nothing follows them."""
    length = yield from run_length(source, characters, MAX_WORD)
    if length > MAX_WORD or source.at + length >= len(source.text):
        return ""
    source.at += length
    return source.text[source.at - length : source.at]


def run_length(source: Source, characters: re.Pattern[str], most: int) -> Steps[int]:
    """Returns how many of the next characters belong to a class, without reading them.

    It waits for the character after them, unless there are more than `most`.
    """
    length = 0
    while True:
        if (found := characters.match(source.text, source.at + length)) is not None:
            length = found.end() - source.at
        if length > most or source.at + length < len(source.text) or source.ended:
            return length
        yield
