"""`rocmforge doctor`."""

import typer

from rocmforge import LLM, __version__, _rocmforge
from rocmforge.cli.common import DeviceOption, JsonOption, ModelOption, ThreadsOption, print_json, print_table


def doctor(
    model: ModelOption = None,
    *,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show the devices, the instruction sets, and the kernel per tensor type; with --model, for that model."""
    report = {"version": __version__} | _rocmforge.doctor()
    if model is not None:
        with LLM(model, device=device, num_threads=threads, max_num_seqs=1) as llm:
            report["model"] = {"path": str(model), "runs_on": llm.describe(), "config": llm.config()}
    if json_output:
        print_json(report)
        return
    typer.echo(f"rocmforge {__version__}, {report['architecture']}, {report['num_cpus']} CPU threads\n")
    for device_report in report["devices"]:
        typer.echo(f"device {device_report['name']}: {device_report['detail']}")
    typer.echo()
    features = [(name, "yes" if available else "no") for name, available in report["cpu_features"].items()]
    print_table("CPU instruction sets", ["instruction set", "available"], features)
    typer.echo()
    print_table("Kernels", ["tensor type", "op", "kernel"], report["kernels"])
    if model is not None:
        typer.echo(f"\n{report['model']['runs_on']}")
