"""Bytes to pixels, with Pillow. Runs in a worker thread; knows no network.

Files are untrusted input to a decoder, so few formats are tried, and the size is checked before any
pixel is decoded.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from urllib.parse import unquote_to_bytes

from PIL import Image as Pillow
from PIL import ImageOps

from backends.protocol import Image
from gateway.pictures.quota import ImageRefused

# ----------------------------------------------------------------------------------------- data url
# `data:` URLs (RFC 2397): the bytes they carry. The media type is ignored: the first bytes decide.


# From the URL-safe alphabet to the usual one (RFC 4648, sections 5 and 4).
USUAL = bytes.maketrans(b"-_", b"+/")


def carried(url: str, max_bytes: int) -> bytes:
    """What a `data:` URL holds. Raises Refused for a broken one and for more than `max_bytes`."""
    head, comma, text = url.partition(",")
    if not comma:
        raise ImageRefused("is not a valid data: URL: it has no comma")
    if len(text) > 4 * max_bytes:  # the longest writing: base64 with every character escaped
        raise ImageRefused(f"is larger than {max_bytes:,} bytes")
    data = unquote_to_bytes(text)
    if head.lower().endswith(";base64"):
        data = _decoded(data)
    if len(data) > max_bytes:
        raise ImageRefused(f"is larger than {max_bytes:,} bytes")
    return data


def data_url(data: bytes) -> str:
    """A `data:` URL of a picture whose header has been read."""
    with Pillow.open(BytesIO(data), formats=FORMATS) as picture:
        kind = Pillow.MIME[picture.format or "PNG"]
    return f"data:{kind};base64,{b64encode(data).decode()}"


def _decoded(text: bytes) -> bytes:
    """Line breaks and missing padding are forgiven: clients send both."""
    packed = b"".join(text.split()).translate(USUAL).rstrip(b"=")
    try:
        return b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise ImageRefused("is not valid base64") from error


FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # what browsers and chat frontends send
DEEP = "I;16"  # modes of 16-bit grey begin so; converted directly, all but black would be white


def pixels_of(data: bytes, most: int) -> int:
    """The number of pixels by the header; none is decoded.

    Raises Refused for what is no picture, or has more than `most` pixels.
    """
    with _opened(data, most) as picture:
        return picture.width * picture.height


def decode(data: bytes, most: int) -> Image:
    """The picture as it is meant to be seen: upright, on white, of an animation the first frame.

    Raises Refused for what is no picture, is broken, or has more than `most` pixels.
    """
    with _opened(data, most) as picture:
        upright = ImageOps.exif_transpose(picture)
        flat = _on_white(upright)
        return Image(flat.width, flat.height, flat.tobytes())


@contextmanager
def _opened(data: bytes, most: int) -> Iterator[Pillow.Image]:
    """The picture with its header read. Raises Refused, also for what happens in the body."""
    try:
        with Pillow.open(BytesIO(data), formats=FORMATS) as picture:
            _refuse_large(picture, most)
            yield picture
    except ImageRefused:
        raise
    except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
        raise _large(most) from error
    except Exception as error:  # decoders of broken files raise nearly anything
        raise ImageRefused(
            f"is no picture that can be read (readable: {', '.join(FORMATS)})"
        ) from error


def _refuse_large(picture: Pillow.Image, most: int) -> None:
    if picture.width * picture.height > most:
        raise _large(most)


def _large(most: int) -> ImageRefused:
    return ImageRefused(f"has more than {most:,} pixels, all that are left for it")


def _on_white(picture: Pillow.Image) -> Pillow.Image:
    if picture.mode.startswith(DEEP):
        return picture.convert("I").point(lambda level: level / 256).convert("L").convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    sheet = Pillow.new("RGBA", picture.size, "white")
    sheet.alpha_composite(picture.convert("RGBA"))
    return sheet.convert("RGB")
