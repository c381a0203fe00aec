"""The options of every command that opens a device."""

import json

import typer
from rocmforge.cli.app import app
from rocmforge.cli.common import print_json
from rocmforge.cli.device import DeviceSettings, opens_device
from typer.testing import CliRunner

OPTIONS = {"device", "threads", "batch_invariant", "graphs", "vendor_blas"}


def test_every_command_that_opens_a_device_has_the_options_of_a_device():
    names = {
        name: {parameter.name for parameter in command.params}
        for name, command in typer.main.get_command(app).commands.items()
    }
    having = {name for name, parameters in names.items() if parameters & OPTIONS}
    assert having == {"generate", "chat", "bench", "perplexity", "doctor"}
    assert all(names[name] >= OPTIONS for name in having)


def test_the_options_become_settings():
    program = typer.Typer()

    @program.command()
    @opens_device
    def show(text: str, *, settings: DeviceSettings, loud: bool = False) -> None:
        print_json({"text": text, "loud": loud, **settings})

    given = ["hi", "--loud", "--device", "gpu:1", "-t", "3", "--batch-invariant", "--no-graphs", "--vendor-blas"]
    settings = {"device": "gpu:1", "num_threads": 3, "batch_invariant": True, "graphs": False, "vendor_blas": True}
    shown = CliRunner().invoke(program, given)
    assert json.loads(shown.stdout) == {"text": "hi", "loud": True, **settings}
    shown = CliRunner().invoke(program, ["hi"])
    assert json.loads(shown.stdout) == {"text": "hi", "loud": False, "device": "auto"} | dict.fromkeys(
        ("num_threads", "batch_invariant", "graphs", "vendor_blas")
    )


def test_doctor_loads_a_model_with_the_settings(model):
    arguments = ["doctor", "-m", str(model), "-t", "1", "--device", "cpu", "--batch-invariant", "--json"]
    shown = CliRunner().invoke(app, arguments)
    assert json.loads(shown.stdout)["model"]["config"]["num_threads"] == 1
    assert CliRunner().invoke(app, ["doctor", "--test", "--batch-invariant"]).exit_code == 2
