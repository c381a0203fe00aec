"""`rocmforge inspect`."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from rocmforge._rocmforge import Tokenizer, device_support, inspect_gguf
from rocmforge.cli.common import JsonOption, ModelArgument, model_path, print_json, print_table
from rocmforge.cli.summary import summarise
from rocmforge.errors import RocmForgeError
from rocmforge.hub.choice import is_encoder
from rocmforge.parsing import ReplyFormat
from rocmforge.reports import SupportReport

SHOWN_ITEMS = 4
SHOWN_CHARACTERS = 80
# The parts of an engine, by the key or tensor that an error names. The first pattern that matches counts.
PARTS = (
    (r"general\.architecture", "architecture"),
    (r"general\.type", "kind of file"),
    (r"tokenizer\.chat_template.*", "chat template"),
    (r"tokenizer\..*", "tokenizer"),
    (r"[\w-]+\.rope\..*", "RoPE"),
    (r"[\w-]+\.expert.*", "experts"),
    (r".*\.(weight|bias)", "tensor"),
)


def inspect(
    model: ModelArgument,
    *,
    tensors: Annotated[
        bool | None,
        typer.Option("--tensors/--no-tensors", help="List the tensors. By default, only the JSON output lists them."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show a file's contents and the devices that can run it; with --tensors, also its tensors."""
    path = model_path(model)
    report, devices = inspect_gguf(path), device_support(path)
    unsupported = _unsupported(path, devices, report["metadata"])
    if unsupported:
        report["tasks"] = []
    if json_output:
        if tensors is False:
            report["tensors"] = []
        parts = [{"part": part, "problem": problem} for part, problem in unsupported]
        print_json({**report, "devices": devices, "unsupported": parts})
        return
    summary = summarise(path, report)
    rows = [*summary.rows(), ("tensors", str(len(report["tensors"])))]
    if summary.projector is None:
        rows.append(("can run on", _runs_on(devices)))
        if beside := sorted(file.name for file in path.parent.glob("*.gguf") if is_encoder(file.name)):
            rows.append(("image encoders beside it", ", ".join(beside)))
    rows += [(f"unsupported: {part}", _brief(problem)) for part, problem in unsupported]
    if "tokenizer.chat_template" in report["metadata"]:
        rows += _reply_format(path)
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


def _reply_format(path: Path) -> list[tuple[str, str]]:
    """Describes how the model writes tool calls and reasoning."""
    try:
        chat = ReplyFormat.of(Tokenizer(path)).chat
    except RocmForgeError as error:
        return [("tool calls", f"unknown: {_short(str(error))}")]
    reasoning = "none" if chat.thinking is None else f"{chat.thinking.open}…{chat.thinking.close}"
    return [("tool calls", chat.describe()), ("reasoning", "harmony" if chat.calls == "harmony" else reasoning)]


def _unsupported(path: Path, devices: SupportReport, metadata: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the parts for which no device runs the file, each with the problem.

    A load ends at the first problem, so the tokenizer is also tried by itself.
    """
    if devices["cpu"] is None:
        return []
    problems = [devices["cpu"]]
    if metadata.get("tokenizer.ggml.model") not in (None, "none", "no_vocab"):
        try:
            Tokenizer(path)
        except RocmForgeError as error:
            problems.append(str(error))
    named = (problem.removeprefix(f"{path}: ") for problem in problems)
    return list(dict.fromkeys((_part(problem), problem) for problem in named))


def _part(problem: str) -> str:
    """Names the part of an engine that a problem with a key or a tensor is about."""
    key = problem.partition(": ")[0]
    return next((part for pattern, part in PARTS if re.fullmatch(pattern, key)), "key")


def _brief(problem: str) -> str:
    """Leaves out the names of all architectures, which the documentation lists."""
    return problem.partition("; this version runs ")[0]


def _runs_on(devices: SupportReport) -> str:
    """Names the devices, and says of a GPU why not."""
    if devices["cpu"] is None:
        return "cpu and gpu" if devices["gpu"] is None else f"cpu; not on a GPU: {devices['gpu']}"
    return "no device"


def _short(value: Any) -> str:
    if isinstance(value, list):
        items = ", ".join(_short(item) for item in value[:SHOWN_ITEMS])
        return f"[{items}]" if len(value) <= SHOWN_ITEMS else f"[{items}, ... {len(value)} in all]"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... {len(text)} characters"
