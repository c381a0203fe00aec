"""The page at `/`: the files of the folder `page`, which need no key and hold no secret."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from rocmforge.server.errors import ApiError

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parent / "page"
# The types that the page consists of. The machine's own table of types may lack some or have others.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff": "font/woff",
    ".txt": "text/plain; charset=utf-8",
}
# Everything comes from this server, the HTML contains no script, and no text becomes HTML.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        # Images of messages are data: URLs.
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    # A browser asks each time whether its copy is still the server's, so that an update of the wheel is seen at once.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page, ready to send."""

    content: bytes
    headers: dict[str, str]
    etag: str


def _load(file: Path) -> StaticFile:
    content = file.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return StaticFile(content, {**HEADERS, "Content-Type": TYPES[file.suffix], "ETag": etag}, etag)


# They are few and small, and the same as long as the process lives.
FILES = {f"/page/{file.relative_to(FOLDER).as_posix()}": _load(file) for file in FOLDER.rglob("*.*")}
FILES["/"] = FILES.pop("/page/index.html")


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/page/{path:path}", methods=["GET", "HEAD"])
async def page(request: Request, path: str | None = None) -> Response:
    """One of the files, or 304 where the browser has it."""
    name = "/" if path is None else f"/page/{path}"
    file = FILES.get(name)
    if file is None:
        raise ApiError(404, f"{name}: there is no such path")
    if file.etag in (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers={**HEADERS, "ETag": file.etag})
    return Response(file.content, headers=file.headers)
