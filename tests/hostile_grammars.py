"""Forms that are made to cost much, for tests of the engine, of the server and of what goes on beside them."""

from typing import Any

_RULES = 60


def _doubling(rules: int, fan: int) -> str:
    """GBNF of rules each of which is the next one several times."""
    lines = [f"r{i} ::= {' '.join([f'r{i + 1}'] * fan)}" for i in range(rules)]
    return "\n".join(["root ::= r0", *lines, f'r{rules} ::= "a"'])


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "reference to itself": {"json": {"$ref": "#"}},
    "references to each other": {
        "json": {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
        }
    },
    "cycle of rules": {"grammar": "root ::= a\na ::= b\nb ::= a"},
    "cycle behind a text": {"grammar": 'root ::= "x" a\na ::= "y" a a'},
    "reference to itself in a grammar": {"grammar": 'start: %json {"$ref": "#"}'},
    "class of nothing": {"regex": r"[^\s\S]"},
}
"""Forms that no text fits."""

TOO_LARGE: dict[str, dict[str, Any]] = {
    "rules that double": {"grammar": _doubling(_RULES, 2)},
    "rules of 300 others": {"grammar": _doubling(9, 300)},
    "counts of counts": {"regex": "((a{100}){100}){100}"},
    "choice of 100,000 letters": {"choice": ["a" * 100_000]},
    "endless text": {"grammar": 'start: "a" start'},
}
"""Forms whose first text is longer than any may be."""

LATE: dict[str, dict[str, Any]] = {
    "rules that double behind a choice": {"grammar": _doubling(_RULES, 2).replace("root ::=", "root ::= [xy]")},
    "no way on behind a choice": {"grammar": 'start: ("x" | "y") a\na: "z" a a'},
}
"""Forms that fail behind the first token alone."""

COSTLY: dict[str, dict[str, Any]] = {
    "states that multiply": {"regex": "(.*[a-m].{40}){3}"},
    "nested counts": {"regex": "(a+)+b"},
    "ambiguous ways": {"regex": "(a|a)*b"},
    "long memory": {"regex": ".*a.{200}"},
    "fifty stars": {"regex": "(.*a){50}"},
    "long bounds": {"regex": ".{0,100000}"},
    "letters of all scripts": {"regex": r"\p{L}{5000}"},
    "ambiguous rules": {"grammar": 'start: s\ns: s s s | s s | "a" | "b"'},
    "hostile spaces": {"json": {"type": "object"}, "whitespace_pattern": r"(\s|\s\s)*"},
    "multiples of twelve numbers": {
        "json": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)]}
    },
}
"""Forms that may cost much at each token; each is served or refused."""

ALL = IMPOSSIBLE | TOO_LARGE | LATE | COSTLY
"""The fields of `StructuredOutputsParams` by name."""
