"""Keeps what Jinja makes of the templates in jinja_cases.py, jinja_more_cases.py and jinja_small_cases.py.

Tests that have no Python read it. `python tests/jinja_golden.py` writes tests/data/templates/jinja.json.xz: pairs of a
template and its text, which is null where Jinja raises an error.
"""

import json
import lzma
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja_cases
from jinja_more_cases import MORE_CASES
from jinja_small_cases import FALSY_CASES, SMALL_CASES

CASES = jinja_cases.CASES + MORE_CASES + FALSY_CASES + SMALL_CASES
GOLDEN = Path(__file__).resolve().parent / "data" / "templates" / "jinja.json.xz"
MESSAGES = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "yy"}]


class Generation(jinja2.ext.Extension):
    """transformers' `{% generation %}`: its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    """Jinja, set up as transformers does."""

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment


def render(jinja, source):
    """The text of a template, None where it is an error."""
    context = {"messages": MESSAGES, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    try:
        return jinja.from_string(source).render(tools=None, **context)
    except Exception:
        return None


def golden():
    jinja = environment()
    return [[source, render(jinja, source)] for source in CASES]


if __name__ == "__main__":
    GOLDEN.write_bytes(lzma.compress(json.dumps(golden(), ensure_ascii=False).encode(), preset=9))
