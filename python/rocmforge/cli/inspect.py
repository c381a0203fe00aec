"""`rocmforge inspect`."""

from typing import Annotated, Any

import typer

from rocmforge._rocmforge import inspect_gguf
from rocmforge.cli.common import JsonOption, ModelArgument, print_json, print_table

SHOWN_ITEMS = 4
SHOWN_CHARACTERS = 80


def inspect(
    model: ModelArgument,
    *,
    tensors: Annotated[bool, typer.Option(help="List the tensors.")] = True,
    json_output: JsonOption = False,
) -> None:
    """Show what a file holds: its metadata and its tensors."""
    version, metadata, entries = inspect_gguf(model)
    listed = entries if tensors else []
    if json_output:
        keys = ("name", "shape", "type", "bytes")
        items = [dict(zip(keys, entry, strict=True)) for entry in listed]
        print_json({"version": version, "metadata": metadata, "tensors": items})
        return
    rows = [("GGUF version", version), *((key, _short(value)) for key, value in metadata.items())]
    print_table("Metadata", ["key", "value"], rows)
    if tensors:
        typer.echo()
        rows_of_tensors = [(name, " x ".join(map(str, shape)), kind, size) for name, shape, kind, size in listed]
        print_table("Tensors", ["name", "shape", "type", "bytes"], rows_of_tensors)


def _short(value: Any) -> str:
    if isinstance(value, list):
        items = ", ".join(_short(item) for item in value[:SHOWN_ITEMS])
        return f"[{items}]" if len(value) <= SHOWN_ITEMS else f"[{items}, ... {len(value)} in all]"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... {len(text)} characters"
