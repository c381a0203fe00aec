"""Decoded images of recent requests: each turn of a conversation sends its images again."""

import threading
from collections import OrderedDict

from rocmforge._rocmforge import Image

# Channels of a pixel, a byte each.
CHANNELS = 3
Key = tuple[str | None, str]
"""The salt of a client, and the digest of what it sent: how long an answer takes tells nothing of other clients."""


class KeptImages:
    """Keeps images up to a number of bytes; those used least recently go first. Safe to use from many threads.

    Args:
        max_bytes: Maximum bytes of all pixels; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._images: OrderedDict[Key, Image] = OrderedDict()
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        """The number of bytes in use."""
        return self._bytes

    def get(self, key: Key) -> Image | None:
        """Returns an image; `None` if it is not kept."""
        with self._lock:
            if key not in self._images:
                return None
            self._images.move_to_end(key)
            return self._images[key]

    def put(self, key: Key, image: Image) -> None:
        """Keeps an image, unless it is larger than the limit."""
        size = _size(image)
        if size > self._max_bytes:
            return
        with self._lock:
            if key not in self._images:
                self._images[key] = image
                self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= _size(self._images.popitem(last=False)[1])


def _size(image: Image) -> int:
    return image.width * image.height * CHANNELS
