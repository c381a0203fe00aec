"""docs/reference/cli.md, made of the code: `python tests/docs/cli_tables.py` writes it."""

import inspect
from pathlib import Path

import typer.main
from rocmforge.cli.app import app
from rocmforge.cli.serve import SERVER_PANEL

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
HEAD = """# Command line

This page is generated from the code, as `rocmforge COMMAND --help` shows it. [Usage](../usage.md#from-the-command-line)
explains what the commands have in common.
"""
# Options of the server have a table with their variables elsewhere.
SERVER = "[Settings](../server.md#settings) has the other options of the server.\n"


def written():
    root = typer.main.get_command(app)
    parts = [HEAD, table(root)]
    for name, command in root.commands.items():
        parts.append(f"## rocmforge {name}\n")
        parts += [f"{paragraph}\n" for paragraph in paragraphs(command.help)]
        # `run` is `chat` by another name.
        parts += [table(command)] if name != "run" else []
        parts += [SERVER] if name == "serve" else []
    return "\n".join(parts)


def paragraphs(text):
    return [" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n")]


def table(command):
    rows = [row(parameter) for parameter in command.params if is_shown(parameter)]
    lines = ["| option | default | meaning |", "|---|---|---|", *(f"| {' | '.join(cells)} |" for cells in rows)]
    return "\n".join(lines) + "\n"


def is_shown(parameter):
    panel = getattr(parameter, "rich_help_panel", None)
    return not getattr(parameter, "hidden", False) and panel != SERVER_PANEL and parameter.name != "help"


def row(parameter):
    # An argument has no dashes, and its name in the help.
    names = [parameter.metavar or parameter.name.upper()] if parameter.param_type_name == "argument" else None
    names = names or [*parameter.opts, *parameter.secondary_opts]
    default = parameter.default
    is_named = getattr(parameter, "show_default", False) and default not in (None, "", [], ())
    cells = [
        ", ".join(f"`{name}`" for name in names),
        f"`{getattr(default, 'value', default)}`" if is_named else "",
        " ".join((parameter.help or "").split()),
    ]
    return [cell.replace("|", "\\|") for cell in cells]


if __name__ == "__main__":
    DOCUMENT.write_text(written(), encoding="utf-8")
