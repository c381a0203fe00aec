"""docs/reference/cli.md lists every command with its options, as the code has them."""

import typer.main
from cli_tables import DOCUMENT, row, written
from rocmforge.cli.app import app


def test_the_reference_is_that_of_the_code() -> None:
    """`python tests/docs/cli_tables.py` writes it anew."""
    assert written() == DOCUMENT.read_text(encoding="utf-8")


def test_every_option_is_listed() -> None:
    commands = typer.main.get_command(app).commands
    text = DOCUMENT.read_text(encoding="utf-8") + (DOCUMENT.parents[1] / "server.md").read_text(encoding="utf-8")
    parameters = [parameter for command in commands.values() for parameter in command.params]
    options = {option for parameter in parameters for option in parameter.opts if option.startswith("-")}
    assert {"--kv-cache-dtype", "--speculative-config", "--port"} <= options
    assert [option for option in sorted(options) if f"`{option}`" not in text] == []


def test_usage_lines_have_no_braces() -> None:
    """Braces around a required argument read as a choice."""
    commands = typer.main.get_command(app).commands
    usages = {
        name: command.get_usage(command.make_context(name, [], resilient_parsing=True))
        for name, command in commands.items()
    }
    assert usages["perplexity"].endswith("perplexity [OPTIONS] FILE")
    assert [usage for usage in usages.values() if "{" in usage] == []


def test_a_row_shows_the_default() -> None:
    repetitions = next(p for p in typer.main.get_command(app).commands["bench"].params if p.name == "reps")
    names, default, meaning = row(repetitions)
    assert names == "`--reps`, `-r`"
    assert default == f"`{repetitions.default}`"
    assert meaning
