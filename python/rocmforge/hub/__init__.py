"""Models by name: `hf:OWNER/REPO[:QUANT]` of the Hugging Face hub, `ollama:NAME[:TAG]` of Ollama's store."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from rocmforge.display.progress import Report

HF = "hf:"
OLLAMA = "ollama:"
DEMO = "demo"


def is_name(model: str | os.PathLike[str]) -> bool:
    """True if `model` is a name in a hub; anything else is a path."""
    return os.fspath(model).startswith((HF, OLLAMA))


def local_file(model: str | os.PathLike[str]) -> Path | None:
    """Returns the local file of a model; `None` for a name without a local file. Uses no network.

    Raises:
        InvalidRequestError: The name is malformed, or the package huggingface_hub is missing.
        ModelFileError: Ollama's manifest of the model is invalid.
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
    """Returns the file of a model; the first file of a split model. Missing files are downloaded.

    A model that is complete in a cache is used without network access.

    Args:
        model: A name or a path; a path is returned unchanged.
        say: Called with the chosen file and the reason; by default they are logged.
        progress: True to show a bar during a long download.
        on_load: Called during a download with the bytes done and the total. An exception that it raises ends the
            download.

    Raises:
        InvalidRequestError: The name is malformed, or the package huggingface_hub is missing.
        FileNotFoundError: There is no such model.
        ModelFileError: A downloaded file does not match the checksum of the hub.
        OSError: The hub cannot be reached or refuses, or the disk is full.
    """
    name = os.fspath(model)
    if not is_name(model):
        return Path(model)
    say = say or _log
    # A program that only uses paths needs neither module.
    if name.startswith(OLLAMA):
        from rocmforge.hub.ollama import find  # noqa: PLC0415

        return find(name, say)
    from rocmforge.hub.huggingface import find_or_pull  # noqa: PLC0415

    return find_or_pull(name, say, progress=progress, on_load=on_load)


def _log(text: str) -> None:
    import logging  # noqa: PLC0415

    logging.getLogger("rocmforge.hub").info(text)
