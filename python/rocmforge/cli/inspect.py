"""`rocmforge inspect`."""

from typing import Annotated, Any

import typer

from rocmforge._rocmforge import device_support, inspect_gguf
from rocmforge.cli.common import JsonOption, ModelArgument, model_path, print_json, print_table
from rocmforge.cli.summary import summarise
from rocmforge.reports import SupportReport

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
    """Show what a file holds and where it runs: a summary, its metadata, and with --tensors its tensors."""
    path = model_path(model)
    report, devices = inspect_gguf(path), device_support(path)
    if json_output:
        if tensors is False:
            report["tensors"] = []
        print_json({**report, "devices": devices})
        return
    summary = summarise(path, report)
    rows = [*summary.rows(), ("tensors", str(len(report["tensors"]))), ("runs on", _runs_on(devices))]
    print_table("Model", ["property", "value"], rows)
    typer.echo()
    keys = [("GGUF version", report["version"]), *((key, _short(value)) for key, value in report["metadata"].items())]
    print_table("Metadata", ["key", "value"], keys)
    if tensors:
        typer.echo()
        rows_of_tensors = [
            (tensor["name"], " x ".join(map(str, tensor["shape"])), tensor["type"], tensor["bytes"])
            for tensor in report["tensors"]
        ]
        print_table("Tensors", ["name", "shape", "type", "bytes"], rows_of_tensors)


def _runs_on(devices: SupportReport) -> str:
    """Names the devices, and says of the others why not."""
    if devices["cpu"] is None:
        return "cpu and gpu" if devices["gpu"] is None else f"cpu; not on a GPU: {devices['gpu']}"
    return f"no device: {devices['cpu']}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        items = ", ".join(_short(item) for item in value[:SHOWN_ITEMS])
        return f"[{items}]" if len(value) <= SHOWN_ITEMS else f"[{items}, ... {len(value)} in all]"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... {len(text)} characters"
