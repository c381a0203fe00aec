"""Files of pictures for tests: whole ones of each kind, and twenty that are odd or bad in some way."""

import io
import struct
import zlib

import numpy as np
from PIL import Image as Pillow

# Chat templates of vision models, as short as can be.
_TEMPLATE = """\
{%- for message in messages %}{{ 'BEGIN' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{% if part.type == 'image' %}IMAGE
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ 'END\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'BEGINassistant\\n' }}{% endif %}"""


def _template(begin, end, image):
    return _TEMPLATE.replace("BEGIN", begin).replace("END", end).replace("IMAGE", image)


QWEN = _template("<|im_start|>", "<|im_end|>", "<|vision_start|><|image_pad|><|vision_end|>")
MISTRAL = _template("[INST]", "[/INST]", "[IMG]")
INTERNVL = _template("<|im_start|>", "<|im_end|>", "<IMG_CONTEXT>\\n")
LFM2 = _template("<|im_start|>", "<|im_end|>", "<image>")
GLM = _template("<|im_start|>", "<|im_end|>", "<|begin_of_image|><|image|><|end_of_image|>")
GEMMA4 = _template("<|turn>", "<turn|>", "<|image|>")
GEMMA = _template("<start_of_turn>", "<end_of_turn>", "<start_of_image>")


def drawn(width=64, height=48, seed=0):
    """The pixels of a picture: soft colours with a dark corner, so that no two orientations look the same."""
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([rows * 255 // height, columns * 255 // width, (rows + columns + 40 * seed) % 256], axis=2)
    pixels[: height // 4, : width // 4] = 0
    return pixels.astype(np.uint8)


def encoded(picture, form, **options):
    """A picture of Pillow, or its pixels, as a file."""
    picture = Pillow.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def png(width=64, height=48, seed=0):
    """A PNG file."""
    return encoded(drawn(width, height, seed), "PNG")


def chunk(kind, content):
    """A part of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def raw_png(width, height, depth=8, colour=2, rows=b""):
    """A PNG file with a header that may be anything."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def sixteen_bits():
    """A PNG file with 16 bits for each channel."""
    wide = drawn().astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in wide)
    return raw_png(64, 48, depth=16, rows=rows)


def huge_jpeg():
    """A small JPEG file whose header says 65,500 x 65,500 pixels."""
    file = bytearray(encoded(drawn(), "JPEG"))
    at = file.index(b"\xff\xc0")
    file[at + 5 : at + 9] = struct.pack(">HH", 65500, 65500)
    return bytes(file)


def rotated(orientation):
    """A JPEG file that has to be turned, by its EXIF data."""
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    return encoded(drawn(), "JPEG", quality=95, exif=exif)


def good_pictures():
    """Files that are read, by name, each with its size and whether its pixels are those of `drawn`."""
    pillow = Pillow.fromarray(drawn())
    see_through = pillow.convert("RGBA")
    see_through.putalpha(0)
    palette = Pillow.new("P", (64, 48), 1)
    palette.putpalette([0, 0, 0, 200, 10, 10])
    return {
        "png": (png(), (64, 48), True),
        "16 bits": (sixteen_bits(), (64, 48), True),
        "trailing bytes": (png() + b"more", (64, 48), True),
        "webp": (encoded(pillow, "WEBP", lossless=True), (64, 48), True),
        "jpeg": (encoded(pillow, "JPEG"), (64, 48), False),
        "progressive": (encoded(pillow, "JPEG", progressive=True), (64, 48), False),
        "cmyk": (encoded(pillow.convert("CMYK"), "JPEG"), (64, 48), False),
        "grey": (encoded(pillow.convert("L"), "PNG"), (64, 48), False),
        "one bit": (encoded(pillow.convert("1"), "PNG"), (64, 48), False),
        "palette": (encoded(palette, "PNG"), (64, 48), False),
        "transparent": (encoded(see_through, "PNG"), (64, 48), False),
        "animated": (
            encoded(pillow, "GIF", save_all=True, append_images=[Pillow.new("RGB", (64, 48))]),
            (64, 48),
            False,
        ),
        "turned": (rotated(6), (48, 64), False),
    }


def bad_pictures():
    """Files that are refused, by name, each with a part of the error."""
    whole = png()
    damaged = bytearray(whole)
    damaged[-20] ^= 255
    return {
        "empty": (b"", "expected a PNG, JPEG, WebP or GIF file"),
        "text": (b"<html>Not found</html>", "expected a PNG, JPEG, WebP or GIF file"),
        "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "expected a PNG, JPEG, WebP or GIF file"),
        "bmp": (encoded(drawn(), "BMP"), "expected a PNG, JPEG, WebP or GIF file"),
        "tiff": (encoded(drawn(), "TIFF"), "expected a PNG, JPEG, WebP or GIF file"),
        "truncated": (whole[: len(whole) // 2], "cannot be decoded"),
        "only a signature": (whole[:8], "(cannot be decoded|none of these formats)"),
        "wrong checksum": (bytes(damaged), "cannot be decoded"),
        "truncated webp": (encoded(drawn(), "WEBP", lossless=True)[:60], "cannot be decoded"),
        "gif without a frame": (b"GIF89a" + struct.pack("<HHBBB", 64, 48, 0, 0, 0) + b";", "cannot be decoded"),
        "no width": (raw_png(0, 48), ""),
        "no rows": (raw_png(64, 48), "cannot be decoded"),
        "bomb": (raw_png(30_000, 30_000, rows=bytes(1 << 20)), "pixels"),
        "huge": (raw_png(0x7FFFFFFF, 0x7FFFFFFF), ""),
        "huge jpeg": (huge_jpeg(), "pixels"),
    }
