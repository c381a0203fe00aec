"""`rocmforge list`."""

import typer

from rocmforge.cli.common import JsonOption, print_json, print_table
from rocmforge.hub.choice import free_memory
from rocmforge.hub.listing import local_models
from rocmforge.stats import byte_text


def list_models(*, json_output: JsonOption = False) -> None:
    """List local models: the demo model, models in the Hugging Face cache and Ollama models.

    `fits` says whether a model and its KV cache fit into the free memory.
    """
    models = local_models()
    free, memory = free_memory()
    if json_output:
        rows = [{"name": one.name, "bytes": one.size, "fits": one.fits(free), "path": str(one.path)} for one in models]
        print_json(rows)
        return
    cells = [(one.name, byte_text(one.size), "yes" if one.fits(free) else "no", one.path) for one in models]
    print_table(f"Models ({byte_text(free)}: {memory})", ["name", "size", "fits", "file"], cells)
    if not models:
        typer.echo("none yet; rocmforge pull demo gets a small one", err=True)
