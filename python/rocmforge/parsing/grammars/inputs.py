"""Grammars of the inputs of custom tools, as they stand in a call: as plain text, or with JSON's escapes."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rocmforge.parsing.grammars.lark import UnsupportedCallsError, literal

# The parts of a grammar in the syntax of Lark: comments, texts, regular expressions, imports, and the rest.
_TEXT = r'"(?:[^"\\\n]|\\.)*"i?'
_REGEX = r"/(?:[^/\\\n]|\\.)+/[a-z]*"
_PART = re.compile(
    rf"""(?P<comment>//[^\n]*)|(?P<text>{_TEXT})|(?P<regex>{_REGEX})|(?P<imported>%import[^\n]*)|(?P<rest>[^"/%]+|.)""",
    re.DOTALL,
)
# A terminal with its definition, and the definitions that are a single text or regular expression.
_TERMINAL = re.compile(r"^[ \t]*_?[A-Z][A-Z0-9_]*[ \t]*:[ \t]*(.*(?:\n[ \t]*\|.*)*)", re.MULTILINE)
_SINGLE = re.compile(rf"(?:{_TEXT}|{_REGEX})\s*(?://.*)?")
_IMPORT = re.compile(r"%import\s+common\.(\w+)\s*(?:->\s*(\w+)\s*)?")
# Lark's common terminals that texts of tools are made of.
_COMMON = {
    "CR": r"\r",
    "DIGIT": "[0-9]",
    "INT": "[0-9]+",
    "LETTER": "[A-Za-z]",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "NUMBER": r"[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?",
    "WORD": "[A-Za-z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}
# The characters that JSON writes with a backslash and a letter.
_ESCAPES = {"\n": "n", "\t": "t", "\r": "r", "\f": "f", "\b": "b", '"': '"', "\\": r"\\"}
_PLAIN = r'[^"\\\x00-\x1f]'
# Characters by which a class shows that it has others than those.
_SAMPLES = "".join(map(chr, range(0x20, 0x7F))) + "é日😀"
_PIECE = re.compile(
    r"\\(?P<escaped>.)|(?P<set>\[\^?\]?(?:[^\]\\]|\\.)*\])|(?P<flags>\(\?(?!:))|(?P<other>.)", re.DOTALL
)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_CLASSES = "sSdDwW"


@dataclass(frozen=True, slots=True)
class InputGrammar:
    """The grammar that the input of a custom tool has to fit."""

    syntax: Literal["lark", "regex"]
    definition: str
    """The grammar; one of Lark's begins with the rule `start`."""

    def in_json(self) -> str:
        """Returns the grammar of the text between the quotes of a JSON string.

        Raises:
            UnsupportedCallsError: It has parts that cannot be told with JSON's escapes.
        """

        def regex(pattern: str, flags: str) -> str:
            return f"/{_escaped_regex(pattern, flags)}/"

        return self._written(_escaped_text, regex)

    def as_text(self, end: str) -> str:
        """Returns the grammar of the input as plain text.

        Args:
            end: The text that ends the input; empty for a control token.

        Raises:
            UnsupportedCallsError: Its regular expressions or terminals would read on across the end.
        """
        if end and self.syntax == "lark":
            for terminal in _TERMINAL.finditer(self.definition):
                if not _SINGLE.fullmatch(terminal[1]):
                    raise UnsupportedCallsError(
                        f"the grammar of an input has the terminal {terminal[0].strip()!r}, expected one text or "
                        "regular expression"
                    )

        def regex(pattern: str, flags: str) -> str:
            return _ending_regex(pattern, flags, end[:1])

        return self._written(lambda text: text, regex)

    def _written(self, text: Callable[[str], str], regex: Callable[[str, str], str]) -> str:
        """The grammar with its texts and regular expressions in another form; the latter with their slashes."""
        if self.syntax == "regex":
            return f"start: {regex(self.definition, '')}\n"
        made = []
        for part in _PART.finditer(self.definition):
            match part.lastgroup:
                case "comment":
                    pass
                case "text":
                    made.append(text(part[0]))
                case "regex":
                    pattern, _, flags = part[0][1:].rpartition("/")
                    made.append(regex(pattern, flags))
                case "imported":
                    made.append(_imported(part[0], regex))
                case _:
                    if part[0] == "%":
                        raise UnsupportedCallsError("the grammar of an input has directives other than %import common")
                    made.append(part[0])
        return "".join(made)


def _escaped_text(text: str) -> str:
    quoted, flag = text.removesuffix("i"), "i" if text.endswith("i") else ""
    try:
        value = json.loads(quoted)
    except ValueError as error:
        raise UnsupportedCallsError(f"the text {quoted} in the grammar of an input is none of JSON's") from error
    escaped = json.dumps(value, ensure_ascii=False)[1:-1]
    if flag and escaped != value:
        raise UnsupportedCallsError(f"the text {text} in the grammar of an input has escapes in any case")
    return literal(escaped) + flag


def _imported(line: str, regex: Callable[[str, str], str]) -> str:
    found = _IMPORT.fullmatch(line.strip())
    if found is None or found[1] not in _COMMON:
        raise UnsupportedCallsError(
            f"the grammar of an input has {line.strip()!r}, expected one of {', '.join(_COMMON)}"
        )
    return f"{found[2] or found[1]}: {regex(_COMMON[found[1]], '')}"


def _pieces(pattern: str, flags: str) -> "list[re.Match[str]]":
    """The characters, classes and signs of a regular expression."""
    if flags not in ("", "s"):
        raise UnsupportedCallsError(f"/{pattern}/{flags} in the grammar of an input has flags")
    pieces = list(_PIECE.finditer(pattern))
    if any(piece["flags"] for piece in pieces):
        raise UnsupportedCallsError(f"/{pattern}/ in the grammar of an input has groups with a question mark")
    for piece in pieces:
        if (letter := piece["escaped"]) is not None and letter.isalnum() and letter not in (*_CONTROLS, *_CLASSES):
            raise UnsupportedCallsError(f"/{pattern}/ in the grammar of an input has \\{letter}")
    return pieces


def _ending_regex(pattern: str, flags: str, end: str) -> str:
    """The regular expression itself, if it ends before the character `end`; empty where a control token ends it.

    An expression matches as much as it can. It would read the end as more of the input.
    """
    pieces = _pieces(pattern, flags)
    if end and len(pieces) > 1 and any(_matches(piece, end, flags) for piece in pieces):
        raise UnsupportedCallsError(f"/{pattern}/ in the grammar of an input would read on across its end")
    slashed = "".join(r"\/" if piece["other"] == "/" else _slashed(piece["set"] or piece[0]) for piece in pieces)
    return f"/{slashed}/{flags}"


def _matches(piece: "re.Match[str]", character: str, flags: str) -> bool:
    """True if a piece of a regular expression may match a character."""
    escaped = piece["escaped"]
    if piece["set"] or (escaped is not None and escaped in _CLASSES):
        return _class(piece[0]).fullmatch(character) is not None
    if piece["other"] == ".":
        return character != "\n" or "s" in flags
    return (piece["other"] if escaped is None else _CONTROLS.get(escaped, escaped)) == character


def _class(members: str) -> "re.Pattern[str]":
    try:
        # A bracket and an ampersand in a class are letters for Python.
        return re.compile(members)
    except re.error as error:
        raise UnsupportedCallsError(f"the class {members} in the grammar of an input: {error}") from error


def _slashed(members: str) -> str:
    """A class in which no slash ends the expression."""
    return re.sub(r"(?<!\\)/", r"\\/", members)


def _escaped_regex(pattern: str, flags: str) -> str:
    """The regular expression of the JSON form of the texts that one matches."""
    made = []
    for piece in _pieces(pattern, flags):
        character = piece["escaped"]
        if piece["set"]:
            made.append(_escaped_set(piece["set"]))
        elif character is not None and character in _CLASSES:
            made.append(_escaped_set(f"[\\{character}]"))
        elif piece["other"] == ".":
            made.append(_escaped_set(r"[\s\S]" if flags else r"[^\n]"))
        else:
            value = piece["other"] if character is None else _CONTROLS.get(character, character)
            same = r"\/" if value == "/" else piece[0]
            made.append(rf"(?:\\{_ESCAPES[value]})" if value in _ESCAPES else same)
    return "".join(made)


def _escaped_set(members: str) -> str:
    """The regular expression of the JSON form of one character of a class."""
    matches = _class(members)
    choices = [rf"\\{name}" for character, name in _ESCAPES.items() if matches.fullmatch(character)]
    if any(matches.fullmatch(sample) for sample in _SAMPLES if sample not in _ESCAPES):
        choices.insert(0, f"[{_slashed(members)}&&{_PLAIN}]")
    return f"(?:{'|'.join(choices)})"
