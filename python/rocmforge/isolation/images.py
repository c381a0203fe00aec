"""Images in calls to a child process: each image's pixels are sent once, and further calls name it by a number.

A number belongs to an `Image` object, not to its pixels. The server has separate objects for each client, so the time
of a call tells nothing of the images of other clients.
"""

import io
import itertools
import pickle
import threading
import weakref
from collections import OrderedDict
from typing import Any, TypeAlias

from rocmforge._rocmforge import Image

# Most bytes of pixels that a child keeps.
MAX_BYTES = 128 << 20
# Channels of a pixel, a byte each.
CHANNELS = 3
Pixels: TypeAlias = tuple[int, int, bytes]


class ImageGoneError(Exception):
    """The child does not keep an image that a call named."""


class SentImages:
    """The images that a child has got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._sent: weakref.WeakKeyDictionary[Image, int] = weakref.WeakKeyDictionary()

    def pickled(self, arguments: tuple[object, ...], *, with_pixels: bool) -> tuple[bytes, bool]:
        """Returns the arguments of a call as bytes, and whether they name an image without its pixels.

        Args:
            arguments: The arguments.
            with_pixels: True to send the pixels of all images, of which the child may keep none.
        """
        file = io.BytesIO()
        pickler = _Pickler(file, self, with_pixels=with_pixels)
        pickler.dump(arguments)
        return file.getvalue(), pickler.names_one

    def number(self, image: Image) -> tuple[int, bool]:
        """Returns the number of an image, and whether it is new."""
        with self._lock:
            number = self._sent.get(image)
            if number is not None:
                return number, False
            number = self._sent[image] = next(self._numbers)
            return number, True


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, sent: SentImages, *, with_pixels: bool) -> None:
        super().__init__(file)
        self._sent = sent
        self._with_pixels = with_pixels
        self.names_one = False

    def reducer_override(self, value: object) -> Any:
        """Pickles images in a way of their own."""
        if not isinstance(value, Image):
            return NotImplemented
        number, is_new = self._sent.number(value)
        if is_new or self._with_pixels:
            return _received, (number, (value.width, value.height, value.rgb()))
        self.names_one = True
        return _received, (number, None)


class ReceivedImages:
    """The images that a child keeps, up to a number of bytes; those used least recently go first.

    Args:
        max_bytes: Maximum bytes of all pixels.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._images: OrderedDict[int, Image] = OrderedDict()
        self._bytes = 0

    def receive(self, number: int, pixels: Pixels | None) -> Image:
        """Returns an image.

        Raises:
            ImageGoneError: It was named without pixels, and is not kept.
        """
        if pixels is None:
            if number not in self._images:
                raise ImageGoneError(f"image: got the number {number}, expected one that is kept; send its pixels")
            self._images.move_to_end(number)
            return self._images[number]
        image = Image.from_rgb(*pixels)
        self._drop(number)
        if _size(image) <= self._max_bytes:
            self._images[number] = image
            self._bytes += _size(image)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._images)))
        return image

    def _drop(self, number: int) -> None:
        image = self._images.pop(number, None)
        if image is not None:
            self._bytes -= _size(image)


def _size(image: Image) -> int:
    return image.width * image.height * CHANNELS


# A child process has one. Only the thread that reads its calls uses it.
_RECEIVED = ReceivedImages()


def _received(number: int, pixels: Pixels | None) -> Image:
    """Reads an image in a call; the other process's pickle names this function."""
    return _RECEIVED.receive(number, pixels)
