"""The options of every command that opens a device."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar

import typer

R = TypeVar("R")


class DeviceSettings(TypedDict):
    """The settings of an engine that the options stand for."""

    device: str
    num_threads: int | None
    batch_invariant: bool | None
    graphs: bool | None
    vendor_blas: bool | None


def _settings(
    *,
    device: Annotated[
        str, typer.Option(help="auto, cpu, or a GPU: gpu, gpu:1 (the second one), hip or rocm (AMD), cuda (NVIDIA).")
    ] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, help="CPU threads; one per core if unset.")
    ] = None,
    batch_invariant: Annotated[
        bool | None,
        typer.Option(
            "--batch-invariant/--no-batch-invariant",
            help="On a GPU, too, results do not depend on what a row was computed with; slower.",
            show_default=False,
        ),
    ] = None,
    graphs: Annotated[
        bool | None, typer.Option("--graphs/--no-graphs", help="Record decode steps on a GPU.", show_default=False)
    ] = None,
    vendor_blas: Annotated[
        bool | None,
        typer.Option(
            "--vendor-blas/--no-vendor-blas",
            help="Use the GPU vendor's matrix library for long prompts.",
            show_default=False,
        ),
    ] = None,
) -> DeviceSettings:
    """The options as typer reads them, and what they come to."""
    return {
        "device": device,
        "num_threads": threads,
        "batch_invariant": batch_invariant,
        "graphs": graphs,
        "vendor_blas": vendor_blas,
    }


def opens_device(command: Callable[..., R]) -> Callable[..., R]:
    """Gives a command the options of a device in place of its argument `settings`, in which it finds them."""
    options = inspect.signature(_settings).parameters

    @functools.wraps(command)
    def wrapper(**given: Any) -> R:
        settings = _settings(**{name: given.pop(name) for name in options})
        return command(settings=settings, **given)

    own = inspect.signature(command)
    parameters = [
        parameter
        for argument in own.parameters.values()
        for parameter in (options.values() if argument.name == "settings" else [argument])
    ]
    # What typer reads.
    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapper
