"""`rocmforge inspect`."""

from typing import Annotated, Any

import typer

from rocmforge._rocmforge import inspect_gguf
from rocmforge.cli.common import JsonOption, ModelArgument, model_path, print_json, print_table
from rocmforge.cli.summary import summarise

SHOWN_ITEMS = 4
SHOWN_CHARACTERS = 80


def inspect(
    model: ModelArgument,
    *,
    tensors: Annotated[
        bool | None, typer.Option("--tensors/--no-tensors", help="List the tensors; unset, in JSON alone.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show what a file holds: a summary, its metadata, and with --tensors its tensors."""
    path = model_path(model)
    report = inspect_gguf(path)
    if json_output:
        if tensors is False:
            report["tensors"] = []
        print_json(report)
        return
    summary = summarise(path, report)
    print_table("Model", ["property", "value"], [*summary.rows(), ("tensors", str(len(report["tensors"])))])
    typer.echo()
    rows = [("GGUF version", report["version"]), *((key, _short(value)) for key, value in report["metadata"].items())]
    print_table("Metadata", ["key", "value"], rows)
    if tensors:
        typer.echo()
        rows_of_tensors = [
            (tensor["name"], " x ".join(map(str, tensor["shape"])), tensor["type"], tensor["bytes"])
            for tensor in report["tensors"]
        ]
        print_table("Tensors", ["name", "shape", "type", "bytes"], rows_of_tensors)


def _short(value: Any) -> str:
    if isinstance(value, list):
        items = ", ".join(_short(item) for item in value[:SHOWN_ITEMS])
        return f"[{items}]" if len(value) <= SHOWN_ITEMS else f"[{items}, ... {len(value)} in all]"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... {len(text)} characters"
