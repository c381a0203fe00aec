"""Images for prompts: from what Python programs hold to the engine's `Image`, and out of the parts of messages."""

import base64
import binascii
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import Image
from rocmforge.errors import InvalidRequestError

NO_ENCODER = (
    "image: this model accepts only text; to read images, it needs the file of its image encoder: put mmproj-*.gguf of "
    "the same model beside it, or name the file with --mmproj (in Python: mmproj=...)"
)
ANY_IMAGE = "a picture of PIL, a numpy array, the bytes or the path of a file, or a data: URL"
# How rows and columns become those of the upright picture, by the value of EXIF's tag `Orientation`.
_ORIENTATION = 0x0112
_UPRIGHT: Mapping[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    2: lambda rows: rows[:, ::-1],
    3: lambda rows: rows[::-1, ::-1],
    4: lambda rows: rows[::-1],
    5: lambda rows: rows.swapaxes(0, 1),
    6: lambda rows: rows[::-1].swapaxes(0, 1),
    7: lambda rows: rows[::-1, ::-1].swapaxes(0, 1),
    8: lambda rows: rows[:, ::-1].swapaxes(0, 1),
}


@runtime_checkable
class PilImage(Protocol):
    """The part of `PIL.Image.Image` that is read here."""

    mode: str
    size: tuple[int, int]

    def convert(self, mode: str) -> "PilImage":
        """Returns the picture in another mode."""

    def tobytes(self) -> bytes:
        """Returns the bytes of all pixels."""


AnyImage: TypeAlias = Image | PilImage | NDArray[np.uint8] | bytes | bytearray | memoryview | str | os.PathLike[str]


def as_image(value: AnyImage) -> Image:
    """Returns a program's object as an image.

    Args:
        value: A picture of PIL, the bytes of a PNG, JPEG, WebP or GIF file, the path of one, or a `data:` URL. A numpy
            array of bytes has the shape `[height, width]`, or a third dimension of 3 or 4 channels.

    Raises:
        InvalidRequestError: It is no image that can be read.
        OSError: The file cannot be read.
    """
    if isinstance(value, Image):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return Image(value)
    if isinstance(value, np.ndarray):
        return _of_array(value)
    if isinstance(value, str) and is_url(value):
        return Image(data_bytes(value))
    if isinstance(value, str | os.PathLike):
        return Image(Path(value).read_bytes())
    if isinstance(value, PilImage):
        return _of_pil(value)
    raise TypeError(f"image: got {type(value)}, expected {ANY_IMAGE}")


def is_url(text: str) -> bool:
    """True if a text is a URL of a kind that may name an image, rather than a path."""
    return text[:8].lower().startswith(("data:", "http://", "https://"))


def data_bytes(url: str) -> bytes:
    """Returns the content of a `data:` URL.

    Raises:
        InvalidRequestError: It is another URL, of no image, or not in base64.
    """
    head, comma, content = url.partition(",")
    scheme, _, kind = head[:200].partition(":")
    if scheme.lower() != "data" or not comma:
        raise InvalidRequestError(
            f"image: got the URL {url[:40]!r}, expected data:image/...;base64,...; download the picture, and give its "
            "bytes"
        )
    media, *options = kind.lower().split(";")
    if not media.startswith("image/") or options[-1:] != ["base64"]:
        raise InvalidRequestError(f"image: got a URL that begins with {head[:60]!r}, expected data:image/...;base64,")
    return from_base64(content)


def from_base64(text: str) -> bytes:
    """Returns the bytes that a text in base64 holds.

    Raises:
        InvalidRequestError: It is not base64.
    """
    try:
        # Some programs break it into lines.
        return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError(
            f"image: got text that is not base64 ({error}), expected the bytes of a file"
        ) from error


def image_list(value: Any) -> tuple[Image, ...]:
    """Returns the images of a prompt: one, or a sequence of them."""
    given = value if isinstance(value, list | tuple) else [value]
    return tuple(as_image(each) for each in given)


def part_image(part: Mapping[str, Any]) -> Image | None:
    """Returns the image in a part of a message's content; `None` for a part of another type.

    A URL in `image_url` is what a client may have sent: it names no file.

    Raises:
        InvalidRequestError: It is no image that can be read.
    """
    kind = part.get("type")
    if kind in ("image_url", "input_image"):
        value = part.get("image_url")
        url = value.get("url") if isinstance(value, Mapping) else value
        if not isinstance(url, str):
            raise InvalidRequestError(f"image: got a part of type {kind} without a URL, expected image_url in it")
        return Image(data_bytes(url))
    return as_image(part.get(kind)) if kind in ("image", "image_pil") else None  # type: ignore[arg-type]


def with_images(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], tuple[Image, ...]]:
    """Returns messages as chat templates take them, and the images in their parts, in order.

    Raises:
        InvalidRequestError: A part has no image that can be read; the message names it.
    """
    images: list[Image] = []
    made: list[Mapping[str, Any]] = []
    if not isinstance(messages, list | tuple):
        # The engine names what is no conversation.
        return messages, ()  # type: ignore[return-value]
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple):
            made.append(message)
            continue
        parts = []
        for place, part in enumerate(content):
            try:
                image = part_image(part) if isinstance(part, Mapping) else None
            except (InvalidRequestError, TypeError) as error:
                detail = str(error).removeprefix("image: ")
                raise type(error)(f"messages[{index}].content[{place}]: {detail}") from error
            if image is not None:
                images.append(image)
            parts.append(part if image is None else {"type": "image"})
        made.append({**message, "content": parts})
    return made, tuple(images)


def _of_array(array: NDArray[Any]) -> Image:
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3, 4):
        raise InvalidRequestError(
            f"image: got an array of {array.dtype} with the shape {array.shape}, expected uint8 and [height, width], "
            "or that with 3 or 4 channels"
        )
    height, width = array.shape[:2]
    rows = array.reshape(height, width, channels)
    if channels == 1:
        rows = rows.repeat(3, axis=2)
    elif channels == 4:
        rows = _on_white(rows)
    return Image.from_rgb(width, height, rows.tobytes())


def _on_white(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns pixels with an alpha channel over a white background."""
    alpha = rows[:, :, 3:].astype(np.uint32)
    mixed = (rows[:, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255
    return mixed.astype(np.uint8)


def _of_pil(picture: PilImage) -> Image:
    width, height = picture.size
    if picture.mode.startswith("I;16"):
        # PIL itself would cut these values off at 255.
        order = ">u2" if picture.mode.endswith("B") else "<u2"
        values = np.frombuffer(picture.tobytes(), order).reshape(height, width)
        rows = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)[:, :, None].repeat(3, axis=2)
    elif picture.mode in ("I", "F"):
        raise InvalidRequestError(
            f"image: got a picture of mode {picture.mode}, expected 8 or 16 bits for each channel; convert it first"
        )
    else:
        has_alpha = picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in getattr(picture, "info", {})
        converted = picture.convert("RGBA" if has_alpha else "RGB")
        rows = np.frombuffer(converted.tobytes(), np.uint8).reshape(height, width, -1)
        rows = _on_white(rows) if has_alpha else rows
    orientation = picture.getexif().get(_ORIENTATION) if hasattr(picture, "getexif") else None
    turned = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return _of_array(rows if turned is None else turned(rows))
