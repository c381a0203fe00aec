"""Images of the compiled module."""

from typing import Self, final

@final
class Image:
    """A decoded picture of 8-bit RGB pixels. Immutable.

    Args:
        data: A PNG, JPEG, WebP or GIF file; of an animation, the first frame is read. EXIF orientation is applied, and
            transparent pixels lie on white.
        max_bytes: Maximum bytes of the file.
        max_pixels: Maximum pixels of the picture, checked before any pixel is decoded.

    Raises:
        InvalidRequestError: The file has another format, is damaged, or exceeds a limit.
    """

    def __new__(
        cls, data: bytes | bytearray | memoryview, *, max_bytes: int = 33554432, max_pixels: int = 50000000
    ) -> Self: ...
    @staticmethod
    def from_rgb(width: int, height: int, rgb: bytes | memoryview) -> Image:
        """Makes an image of pixels, row by row, with a byte each for red, green and blue.

        Raises:
            InvalidRequestError: The number of bytes does not fit the size, or there is no pixel.
        """

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    def rgb(self) -> bytes:
        """Returns the bytes of all pixels, as `from_rgb` takes them."""

    def __reduce__(self) -> tuple[object, tuple[int, int, bytes]]: ...
