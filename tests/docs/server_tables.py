"""The tables of docs/server.md, made of the code: `python tests/docs/server_tables.py` writes them into the document.

Each table stands between two comments, `<!-- name -->` and `<!-- end -->`.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path

from rocmforge import AsyncLLM
from rocmforge.server import ServerConfig, create_app
from rocmforge.server.bodies import Body
from rocmforge.server.config import meanings

DOCUMENT = Path(__file__).parents[2] / "docs" / "server.md"
BLOCK = re.compile(r"<!-- (?P<name>[\w ]+) -->\n.*?<!-- end -->", re.DOTALL)


def table(headers, rows):
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def endpoints(description):
    rows = [
        [f"`{method.upper()} {path}`", operation["description"].split("\n")[0]]
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    return table(["endpoint", "what it does"], rows)


def bodies(description):
    """The schema of every request's body, and of a part that is too large for one line, by its name."""
    schemas = description["components"]["schemas"]
    operations = (operation for methods in description["paths"].values() for operation in methods.values())
    contents = (operation["requestBody"]["content"] for operation in operations if "requestBody" in operation)
    names = [content["application/json"]["schema"]["$ref"].rpartition("/")[2] for content in contents]
    return {name: schemas[name] for name in [*names, "OllamaOptions"]}


def ignored(name):
    """The fields that the bodies of an API ignore, with the reasons: those of the modules that its folder has."""
    rows = []
    for body in sorted(leaves(Body), key=lambda body: (body.__module__, body.__name__)):
        _, _, module = body.__module__.partition("rocmforge.server.")
        api = {"anthropic": "Anthropic", "ollama": "Ollama"}.get(module.partition(".")[0], "OpenAI")
        for reason in dict.fromkeys(body.ignored.values()) if api == name else ():
            fields = ", ".join(f"`{field}`" for field in sorted(body.ignored) if body.ignored[field] == reason)
            rows.append([body.__doc__.split("\n")[0].removesuffix("."), fields, reason])
    return table(["where", "fields", "why they change nothing"], sorted(map(list, {*map(tuple, rows)})))


def leaves(body):
    """The bodies of requests and their parts: the classes of which there are no others."""
    if not body.__subclasses__():
        return {body}
    return {leaf for below in body.__subclasses__() for leaf in leaves(below)}


def parameters(schema):
    rows = []
    for name, field in schema["properties"].items():
        default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        rows.append([f"`{name}`", default, field.get("description", "")])
    return table(["parameter", "default", "meaning"], rows)


def settings():
    rows = []
    for field in dataclasses.fields(ServerConfig):
        flag = "--" + field.name.replace("_", "-")
        default = "" if field.default in (None, (), "") else f"`{field.default}`"
        rows.append([f"`{flag}`", f"`ROCMFORGE_{field.name.upper()}`", default, meanings()[field.name]])
    return table(["flag", "variable", "default", "meaning"], rows)


def metrics(app):
    text = app.state.models.metrics.text().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    described = re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE)
    return table(
        ["metric", "kind", "meaning"],
        [[f"`{name}`", kinds[name], meaning] for name, meaning in described if not name.endswith("_created")],
    )


def written(model):
    """The document with its tables as the code has them."""
    with AsyncLLM(model, max_model_len=64, num_threads=1) as engine:
        app = create_app(engine)
        description = app.openapi()
        made = {"endpoints": endpoints(description), "settings": settings(), "metrics": metrics(app)}
        made |= {f"ignored {api}": ignored(api) for api in ("OpenAI", "Anthropic", "Ollama")}
        made |= {name: parameters(schema) for name, schema in bodies(description).items()}
    text = DOCUMENT.read_text(encoding="utf-8")
    names = [match["name"] for match in BLOCK.finditer(text)]
    assert sorted(names) == sorted(made), f"the document has tables for {names}, the code for {sorted(made)}"
    return BLOCK.sub(lambda match: f"<!-- {match['name']} -->\n{made[match['name']]}\n<!-- end -->", text)


if __name__ == "__main__":
    DOCUMENT.write_text(written(sys.argv[1]), encoding="utf-8")
