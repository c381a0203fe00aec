"""Translates patterns of JSON schemas into regular expressions of a whole text.

The patterns have the syntax of ECMA-262 with the flag `u`, and may match anywhere in a text. As an extension, a brace
that begins no count is literal. The results are terminals of a grammar, in the syntax of Rust's crate regex without
anchors.
"""

import re

# ECMA-262, 22.2.2.9: the character classes, and the line terminators that a dot does not match.
_CLASSES = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r"\t-\r\x20\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}",
}
_POINT = r"[^\n\r\x{2028}\x{2029}]"
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_COUNT = re.compile(r"[*+?]\??|\{([0-9]+)(?:(,)([0-9]*))?\}\??")
_GROUP = re.compile(r"\((\?:|\?<[A-Za-z_]\w*>|(?!\?))")
_MAX_COUNT = 100_000


class PatternError(ValueError):
    """A pattern is invalid, or has parts that no grammar can express."""


def whole(pattern: str) -> str:
    """Returns a regular expression that matches all texts in which a pattern is found.

    Raises:
        PatternError: The pattern is invalid. It has lookarounds or references to groups. Or it has anchors that are
            not around the whole pattern or one of its alternatives.
    """
    reader = _Reader(pattern)
    found = reader.alternatives(outermost=True)
    if not reader.ended():
        raise PatternError(f"got a ) without a group at {reader.at} of {pattern!r}, expected a pattern of ECMA-262")
    return "|".join(f"(?:{each})" for each in found)


def quoted(text: str) -> str:
    """Returns the regular expression of a literal text; none of its characters ends a terminal of a grammar."""
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text
    )


class _Reader:
    """Reads a pattern from its start to its end."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    def ended(self) -> bool:
        """True if the whole pattern was read."""
        return self.at >= len(self._pattern)

    def alternatives(self, *, outermost: bool = False) -> list[str]:
        """Reads up to the end of a group. Around outermost alternatives without an anchor, any text may occur."""
        found = [self._sequence(outermost=outermost)]
        while self._reads("|"):
            found.append(self._sequence(outermost=outermost))
        return found

    def _sequence(self, *, outermost: bool) -> str:
        anything = "(?s:.*)" if outermost else ""
        before = "" if outermost and self._reads("^") else anything
        pieces: list[str] = []
        while not self.ended() and self._pattern[self.at] not in "|)":
            if outermost and self._pattern[self.at] == "$" and self._pattern[self.at + 1 : self.at + 2] in ("", "|"):
                self.at += 1
                return before + "".join(pieces)
            pieces.append(self._part() + self._count())
        return before + "".join(pieces) + anything

    def _part(self) -> str:
        """Reads one part of the pattern, which a count may follow."""
        if (group := _GROUP.match(self._pattern, self.at)) is not None:
            self.at = group.end()
            found = "|".join(self.alternatives())
            if not self._reads(")"):
                raise self._wrong("a ) at the end of the group")
            return f"(?:{found})"
        character = self._next()
        if character in "(^$":
            raise self._wrong("no lookarounds, and anchors only around the whole", back=1)
        if character in "*+?{" and _COUNT.match(self._pattern, self.at - 1):
            raise self._wrong("something before a count", back=1)
        if character == ".":
            return _POINT
        if character == "[":
            return self._set()
        if character != "\\":
            return quoted(character)
        found = self._escaped()
        return f"[{found}]" if found.startswith("^") or found in _CLASSES.values() else found

    def _count(self) -> str:
        """Reads the count of the part before it. Greedy and lazy counts allow the same texts."""
        if (found := _COUNT.match(self._pattern, self.at)) is None:
            return ""
        self.at = found.end()
        least, comma, most = found.groups()
        if least is None:
            return found.group()[0]
        if int(least) > _MAX_COUNT or int(most or 0) > _MAX_COUNT or (most and int(most) < int(least)):
            raise self._wrong(f"counts in order and of at most {_MAX_COUNT}")
        return f"{{{int(least)}{comma or ''}{int(most) if most else ''}}}"

    def _set(self) -> str:
        """Reads a character class after its bracket."""
        negated = "^" if self._reads("^") else ""
        pieces: list[str] = []
        while not self._reads("]"):
            first = self._member()
            if self._pattern[self.at : self.at + 1] != "-" or self._pattern[self.at + 1 : self.at + 2] == "]":
                pieces.append(f"[{first}]" if first.startswith("^") else first)
                continue
            self.at += 1
            last = self._member()
            if {first, last} & {*_CLASSES.values()} or "^" in (first[0], last[0]):
                raise self._wrong("single characters at the ends of a range")
            pieces.append(f"{first}-{last}")
        if not pieces:
            raise self._wrong("a class with characters in it")
        return f"[{negated}{''.join(pieces)}]"

    def _member(self) -> str:
        character = self._next()
        if character != "\\":
            return quoted(character)
        if self._reads("b"):
            return quoted("\b")
        return quoted("-") if self._reads("-") else self._escaped()

    def _escaped(self) -> str:
        """Reads an escape after its backslash: the inside of a class, or one character."""
        if (code := _CODE.match(self._pattern, self.at)) is not None:
            self.at = code.end()
            number = int(next(filter(None, code.groups())), 16)
            if 0xD800 <= number < 0xE000 or number > 0x10FFFF:
                raise self._wrong("codes of characters")
            return quoted(chr(number))
        character = self._next()
        if character.lower() in _CLASSES:
            inside = _CLASSES[character.lower()]
            return inside if character.islower() else f"^{inside}"
        if character in _CONTROLS and not (character == "0" and self._pattern[self.at : self.at + 1].isdecimal()):
            return quoted(_CONTROLS[character])
        if character.isalnum() or character == "_":
            raise self._wrong("no references to groups, borders of words or properties of characters", back=2)
        return quoted(character)

    def _next(self) -> str:
        if self.ended():
            raise self._wrong("more of it")
        self.at += 1
        return self._pattern[self.at - 1]

    def _reads(self, character: str) -> bool:
        """Reads a character if it comes next."""
        found = not self.ended() and self._pattern[self.at] == character
        self.at += found
        return found

    def _wrong(self, expected: str, back: int = 0) -> PatternError:
        got = self._pattern[self.at - back :][:20]
        place = f"{got!r} at {self.at - back}" if got else "its end"
        return PatternError(f"got {place} of {self._pattern!r}, expected {expected}")
