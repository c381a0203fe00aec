"""Models of the Hugging Face hub, through the package huggingface_hub.

The cache, the token and the environment variables are those of the package: `HF_HOME`, `HF_HUB_CACHE`,
`HF_HUB_OFFLINE`, `HF_ENDPOINT` and `HF_TOKEN`.
"""

import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rocmforge.display.progress import Report, byte_bar
from rocmforge.errors import InvalidRequestError, ModelFileError
from rocmforge.hub.choice import RemoteFile, Variant, encoder, fitting, free_memory, named, preferred, variants

try:
    import httpx2
    from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )
    from huggingface_hub.file_download import repo_folder_name
    from tqdm import tqdm
except ModuleNotFoundError as missing:
    raise InvalidRequestError(
        f"model: got a name of the hub, for which the package {missing.name} is missing: pip install 'rocmforge[hub]'"
    ) from missing

NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?")
CHUNK_BYTES = 1 << 20


def cached(name: str) -> tuple[Path, Variant] | None:
    """Returns the cached file for `hf:OWNER/REPO[:QUANT]` and its variant; `None` if the cache has none.

    Raises:
        InvalidRequestError: The name does not have this format.
    """
    repo, wanted = _parsed(name)
    snapshot = _snapshot(repo)
    there = _cached_variants(snapshot) if snapshot else []
    candidates = named(there, wanted) if wanted else preferred(there)
    if snapshot is None or not candidates:
        return None
    return snapshot / candidates[0].files[0].path, candidates[0]


def cached_models() -> Iterator[tuple[str, Path, int]]:
    """Yields the name, the first file and the size in bytes of each model in the cache."""
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        # Names on the hub never contain two hyphens in a row.
        owner, _, name = folder.name.removeprefix("models--").partition("--")
        if not name or "--" in name:
            continue
        repo = f"{owner}/{name}"
        snapshot = _snapshot(repo)
        if snapshot is None:
            continue
        for one in _cached_variants(snapshot):
            yield f"hf:{repo}:{one.quant or one.name}", snapshot / one.files[0].path, one.size


def find_or_pull(name: str, say: Callable[[str], None], *, progress: bool, on_load: Report | None) -> Path:
    """Returns the file for `hf:OWNER/REPO[:QUANT]`, from the cache if possible, otherwise downloaded."""
    found = cached(name)
    if found is None:
        return pull(name, say, progress=progress, on_load=on_load)
    path, chosen = found
    say(f"model: {path} ({name}, {chosen.label()}, {chosen.size / 1e9:.2f} GB, from the cache)")
    return path


def pull(name: str, say: Callable[[str], None], *, progress: bool = True, on_load: Report | None = None) -> Path:
    """Looks up `hf:OWNER/REPO[:QUANT]` on the hub, downloads the missing files, and checks them.

    The repository's image encoder, if it has one, comes with the model.

    An interrupted download continues where it stopped. A file without the hub's checksum is removed.

    Raises:
        InvalidRequestError: The name does not have this format.
        FileNotFoundError: The repository does not exist, or has no GGUF file of that type.
        OutOfMemoryError: The name has no type, and no type fits into this machine.
        ModelFileError: A file has a wrong checksum.
        OSError: The hub cannot be reached or refuses, or the disk is full.
    """
    repo, wanted = _parsed(name)
    with _hub_errors(repo):
        info = HfApi().model_info(repo, files_metadata=True)
    files = [
        RemoteFile(one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else None) for one in info.siblings or []
    ]
    chosen, sees = _chosen(repo, variants(files), wanted, say), encoder(files)
    wanted_files = [*chosen.files, *([] if sees is None else [sees])]
    missing = sum(one.size for one in wanted_files if not _is_cached(repo, one.path))
    _check_disk(missing)
    with byte_bar("Downloading", enabled=progress, report=on_load) as report, _hub_errors(repo):
        meter = _meter(report, missing)
        paths = [Path(hf_hub_download(repo, one.path, tqdm_class=meter)) for one in wanted_files]
    for path, one in zip(paths, wanted_files, strict=True):
        _check_sum(path, one, progress=progress)
    if sees is not None:
        say(f"image encoder: {paths[-1]}")
    count = len(chosen.files)
    say(f"model: {paths[0]} ({count} {'file' if count == 1 else 'files'}, checksums as the hub's)")
    return paths[0]


def _parsed(name: str) -> tuple[str, str | None]:
    match = NAME.fullmatch(name)
    if match is None:
        raise InvalidRequestError(f"model: got {name}, expected hf:OWNER/REPO or hf:OWNER/REPO:QUANT")
    return match["repo"], match["quant"]


def _chosen(repo: str, found: Sequence[Variant], wanted: str | None, say: Callable[[str], None]) -> Variant:
    if not found:
        raise FileNotFoundError(f"hf:{repo}: got a repository without a GGUF file, expected at least one")
    there = ", ".join(sorted(one.label() for one in found))
    if wanted is not None:
        matches = named(found, wanted)
        if not matches:
            raise FileNotFoundError(f"hf:{repo}: got {wanted}, expected one of the repository's types: {there}")
        if len(matches) > 1:
            names = ", ".join(one.name for one in matches)
            raise InvalidRequestError(f"model: got {wanted}, which matches several files of {repo}; name one: {names}")
        return matches[0]
    candidates = preferred(found)
    if not candidates:
        raise InvalidRequestError(
            f"model: got hf:{repo}, which has several files; name one as hf:{repo}:QUANT: {there}"
        )
    free, memory = free_memory()
    chosen = fitting(candidates, free, memory)
    say(
        f"hf:{repo}: {chosen.label()} ({chosen.size / 1e9:.2f} GB) is the first choice that fits into "
        f"{free / 1e9:.2f} GB ({memory}); there are {there}"
    )
    return chosen


def _snapshot(repo: str) -> Path | None:
    """Returns the folder of the newest cached snapshot of a repository."""
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    newest = folder / "refs" / "main"
    return folder / "snapshots" / newest.read_text(encoding="ascii").strip() if newest.is_file() else None


def _cached_variants(snapshot: Path) -> list[Variant]:
    files = [path for path in snapshot.rglob("*") if path.is_file()]
    return variants(RemoteFile(path.relative_to(snapshot).as_posix(), path.stat().st_size, None) for path in files)


def _is_cached(repo: str, path: str) -> bool:
    return isinstance(try_to_load_from_cache(repo, path), str)


def _check_disk(needed: int) -> None:
    folder = Path(constants.HF_HUB_CACHE)
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise OSError(
            f"{folder}: got {free / 1e9:.2f} GB of free disk space, expected {needed / 1e9:.2f} GB for the download; "
            "make room, or set HF_HOME to a folder on another disk"
        )


def _check_sum(path: Path, file: RemoteFile, *, progress: bool) -> None:
    if file.sha256 is None:
        return
    digest = hashlib.sha256()
    size = path.stat().st_size
    with byte_bar(f"Checking {path.name}", enabled=progress) as report, path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
            report(content.tell(), size)
    if digest.hexdigest() != file.sha256:
        # The cache entry is a symbolic link to the content.
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ModelFileError(
            f"{file.path}: got a download with SHA-256 {digest.hexdigest()}, expected {file.sha256}; "
            "it was removed, pull it again"
        )


def _meter(report: Report, total: int) -> type[tqdm]:
    """Returns a class for huggingface_hub's progress bars, which reports all files as one total."""
    done = 0

    def add(count: float) -> None:
        nonlocal done
        done += int(count)
        report(done, total)

    class Meter(tqdm):  # type: ignore[misc]
        """Draws nothing itself."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs | {"disable": True})
            add(kwargs.get("initial", 0))

        def update(self, n: float | None = 1) -> None:
            """Counts bytes."""
            add(n or 0)

    return Meter


@contextlib.contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Translates errors of huggingface_hub."""
    try:
        yield
    except GatedRepoError as error:
        raise PermissionError(
            f"hf:{repo}: the repository is gated: accept its terms on its page, then set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"hf:{repo}: the hub has no such repository, expected OWNER/REPO; a private repository needs HF_TOKEN"
        ) from error
    except OfflineModeIsEnabled as error:
        raise FileNotFoundError(
            f"hf:{repo}: it is not in the cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE forbids a download"
        ) from error
    except (HfHubHTTPError, httpx2.HTTPError, LocalEntryNotFoundError) as error:
        reason = str(error).partition("\n")[0]
        raise ConnectionError(
            f"hf:{repo}: {constants.ENDPOINT} cannot be reached or refuses ({reason}); pull again"
        ) from error
