"""Models in Ollama's store: a manifest for each name, which names the blob of the weights by its digest."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from rocmforge.errors import InvalidRequestError, ModelFileError

NAME = re.compile(r"ollama:(?P<path>[\w.-]+(?:/[\w.-]+){0,3})(?::(?P<tag>[\w.-]+))?")
MODEL_LAYER = "application/vnd.ollama.image.model"
DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"


def store() -> Path:
    """The folder of Ollama's models."""
    configured = os.environ.get("OLLAMA_MODELS")
    return Path(configured) if configured else Path.home() / ".ollama" / "models"


def names() -> list[str]:
    """Lists the models of the store as `NAME:TAG`, without host and namespace where these are the usual ones."""
    manifests = store() / "manifests"
    found = []
    for file in manifests.rglob("*"):
        if file.is_file():
            *place, tag = file.relative_to(manifests).parts
            for usual in (DEFAULT_HOST, DEFAULT_NAMESPACE):
                if len(place) > 1 and place[0] == usual:
                    place = place[1:]
            found.append(f"{'/'.join(place)}:{tag}")
    return sorted(found)


def find(name: str, say: Callable[[str], None]) -> Path:
    """The file of `ollama:NAME[:TAG]`.

    Raises:
        InvalidRequestError: The name is not of that form.
        FileNotFoundError: Ollama has no such model.
        ModelFileError: The manifest has no weights in it.
    """
    match = NAME.fullmatch(name)
    if match is None or ".." in match["path"].split("/"):
        raise InvalidRequestError(f"model: got {name}, expected ollama:NAME[:TAG]")
    parts = match["path"].split("/")
    defaults = [DEFAULT_HOST, DEFAULT_NAMESPACE]
    manifests = store() / "manifests"
    manifest = manifests.joinpath(*defaults[: max(0, 3 - len(parts))], *parts, match["tag"] or "latest")
    if not manifest.is_file():
        there = sorted(":".join(map(str, (p.parent.name, p.name))) for p in manifests.rglob("*") if p.is_file())
        raise FileNotFoundError(
            f"{name}: {manifest} is not there, expected a model that Ollama has: {', '.join(there) or 'it has none'}"
        )
    file = store() / "blobs" / _digest(manifest).replace(":", "-")
    if not file.is_file():
        raise FileNotFoundError(f"{name}: {file}, which its manifest names, is not there; ollama pull it again")
    say(f"model: {file} ({name}, from Ollama's store)")
    return file


def _digest(manifest: Path) -> str:
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == MODEL_LAYER]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelFileError(f"{manifest}: got {error!r}, expected a manifest of Ollama's") from error
    if len(digests) != 1 or re.fullmatch(r"sha256:[0-9a-f]{64}", digests[0]) is None:
        raise ModelFileError(f"{manifest}: got {digests} as layers of weights, expected the digest of one")
    return digests[0]
