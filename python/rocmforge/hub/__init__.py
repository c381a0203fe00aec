"""Models by name: `hf:OWNER/REPO[:QUANT]` of the Hugging Face hub, `ollama:NAME[:TAG]` of Ollama's store."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from rocmforge.progress import Report

HF = "hf:"
OLLAMA = "ollama:"


def is_name(model: str | os.PathLike[str]) -> bool:
    """Whether a model is meant by its name; anything else is a path."""
    return os.fspath(model).startswith((HF, OLLAMA))


def local_file(model: str | os.PathLike[str]) -> Path | None:
    """The file of a model that is on this machine, `None` for a name whose model is not; the network is not asked.

    Raises:
        InvalidRequestError: The name is not one, or the package huggingface_hub is missing.
        ModelFileError: Ollama's manifest of the model is broken.
    """
    name = os.fspath(model)
    if not is_name(model):
        return Path(model)
    if name.startswith(OLLAMA):
        from rocmforge.hub.ollama import find  # noqa: PLC0415

        with contextlib.suppress(FileNotFoundError):
            return find(name, lambda _: None)
        return None
    from rocmforge.hub.huggingface import cached  # noqa: PLC0415

    found = cached(name)
    return None if found is None else found[0]


def model_file(
    model: str | os.PathLike[str],
    say: Callable[[str], None] | None = None,
    *,
    progress: bool = True,
    on_load: Report | None = None,
) -> Path:
    """The file of a model (the first one, for a split model); what is not on this machine is downloaded.

    A model that is complete in a cache is taken from there without asking the network.

    Args:
        model: A name or a path; a path is returned as it is.
        say: Called with what was chosen, and why; by default that is logged.
        progress: Whether a download that takes long shows a bar.
        on_load: Called during a download with what is done and with the whole, in bytes; what it raises ends it.

    Raises:
        InvalidRequestError: The name is not one, or the package huggingface_hub is missing.
        FileNotFoundError: There is no such model.
        ModelFileError: What was downloaded has another checksum than the hub's.
        OSError: The hub cannot be reached or refuses, or the disk is full.
    """
    name = os.fspath(model)
    if not is_name(model):
        return Path(model)
    say = say or _log
    # A program that gives paths needs neither module.
    if name.startswith(OLLAMA):
        from rocmforge.hub.ollama import find  # noqa: PLC0415

        return find(name, say)
    from rocmforge.hub.huggingface import find_or_pull  # noqa: PLC0415

    return find_or_pull(name, say, progress=progress, on_load=on_load)


def _log(text: str) -> None:
    import logging  # noqa: PLC0415

    logging.getLogger("rocmforge.hub").info(text)
