"""Finds the comments and docstrings of a source file, block by block, for the test of how they begin."""

import ast
import re
from pathlib import Path

_MARKERS = {
    **dict.fromkeys((".rs", ".hip", ".h", ".hpp"), re.compile(r"\s*(//[/!]?)(.*)")),
    **dict.fromkeys((".py", ".pyi", ".sh", ".toml"), re.compile(r"\s*(#)(?!!)(.*)")),
}
_NAMES = {"Makefile": ".sh", "run": ".sh"}  # files without a suffix
_CLAUSE = re.compile(r"(What|Of|As|Those|The same)\b")
_FIRST_SENTENCE = re.compile(r".*?[.?!](?=\s|$)", re.DOTALL)


def has_comments(path: Path) -> bool:
    """Whether this module can read the comments of a file, by its name."""
    return _NAMES.get(path.name, path.suffix) in _MARKERS


def comment_blocks(path: Path, text: str) -> list[tuple[int, str]]:
    """(first line's number, text without markers) of each docstring and each run of lines that are comments alone."""
    marker_of = _MARKERS[_NAMES.get(path.name, path.suffix)]
    blocks: list[tuple[int, str]] = []
    previous = (0, "")
    for number, line in enumerate(text.splitlines(), 1):
        if not (match := marker_of.match(line)):
            continue
        marker, words = match.group(1), match.group(2).strip()
        if blocks and previous == (number - 1, marker):
            blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]}\n{words}".lstrip())
        else:
            blocks.append((number, words))
        previous = (number, marker)
    return sorted(blocks + _docstrings(text)) if path.suffix in {".py", ".pyi"} else blocks


def _docstrings(text: str) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # The fields of a class and the constants of a module have docstrings, too: strings that are statements.
            values = (statement.value for statement in node.body if isinstance(statement, ast.Expr))
            constants = (value for value in values if isinstance(value, ast.Constant))
            found += [(one.lineno, one.value.strip()) for one in constants if isinstance(one.value, str)]
    return found


def clauses_without_sentence(path: Path, text: str) -> list[tuple[int, str]]:
    """(line, first sentence) of each block that begins with a word of `_CLAUSE`, unless it asks a question.

    Such a beginning makes a clause whose subject and verb the reader has to guess: "Of the batch.", "As above."
    """
    found = []
    for number, words in comment_blocks(path, text):
        sentence = match.group() if (match := _FIRST_SENTENCE.match(words)) else words
        if _CLAUSE.match(words) and not sentence.endswith("?"):
            found.append((number, sentence))
    return found
