"""Jinja set up as transformers does, the reference for chat templates."""

import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """transformers' `{% generation %}`: its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment(changes_lists=False):
    """Jinja, set up as transformers does, whose sandbox refuses changes of lists."""

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    sandbox = jinja2.sandbox.SandboxedEnvironment if changes_lists else jinja2.sandbox.ImmutableSandboxedEnvironment
    environment = sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment


def renderer(source):
    """Renders conversations by Jinja."""
    jinja = environment()
    jinja.globals["strftime_now"] = lambda _: "2026-01-01"
    compiled = jinja.from_string(source)

    def render(messages, tools, begins):
        context = {"bos_token": "<s>", "eos_token": "</s>", "tools": tools or None}
        try:
            return compiled.render(messages=messages, add_generation_prompt=begins, **context)
        except (jinja2.TemplateError, TypeError) as error:
            raise ValueError(str(error)) from error

    return render
