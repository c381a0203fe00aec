"""`rocmforge pull`."""

from typing import Annotated

import typer

from rocmforge import InvalidRequestError
from rocmforge.hub import HF


def pull(
    name: Annotated[str, typer.Argument(metavar="hf:OWNER/REPO[:QUANT]", help="A model of the hub.")],
) -> None:
    """Download a model from the Hugging Face hub into its cache, and print the path of its file.

    Without QUANT, the first of Q4_K_M and its like that fits into the free memory with its KV cache. A download whose
    connection is cut off goes on there; checksums are compared.
    """
    if not name.startswith(HF):
        raise InvalidRequestError(f"model: got {name}, expected hf:OWNER/REPO or hf:OWNER/REPO:QUANT")
    # The other commands do not need the packages of the extra `hub`.
    from rocmforge.hub import huggingface  # noqa: PLC0415

    path = huggingface.pull(name, lambda text: typer.echo(text, err=True))
    typer.echo(str(path))
