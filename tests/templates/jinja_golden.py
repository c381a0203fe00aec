"""Keeps what Jinja makes of the templates in jinja_cases.py, jinja_more_cases.py and jinja_small_cases.py.

Tests that have no Python read it. `PYTHONPATH=tests python tests/templates/jinja_golden.py` writes
tests/data/templates/jinja.json.xz: pairs of a template and its text, which is null where Jinja raises an error.
"""

import json
import lzma
from pathlib import Path

import jinja_cases
from jinja_environment import environment
from jinja_more_cases import MORE_CASES
from jinja_small_cases import CHANGING_CASES, FALSY_CASES, SMALL_CASES

CASES = jinja_cases.CASES + MORE_CASES + FALSY_CASES + SMALL_CASES
GOLDEN = Path(__file__).resolve().parents[1] / "data" / "templates" / "jinja.json.xz"
MESSAGES = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "yy"}]


def render(jinja, source):
    """The text of a template, None where it is an error."""
    # A template may change the list.
    context = {"messages": list(MESSAGES), "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    try:
        return jinja.from_string(source).render(tools=None, **context)
    except Exception:
        return None


def golden():
    cases = [(environment(), CASES), (environment(changes_lists=True), CHANGING_CASES)]
    return [[source, render(jinja, source)] for jinja, sources in cases for source in sources]


if __name__ == "__main__":
    GOLDEN.write_bytes(lzma.compress(json.dumps(golden(), ensure_ascii=False).encode(), preset=9))
