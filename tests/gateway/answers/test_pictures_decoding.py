"""Files become pixels as they are meant to be seen; what is no picture, or too much of one, is
refused.
"""

import struct
import zlib
from io import BytesIO

import pytest
from PIL import Image as Pillow

from backends.contract.protocol import Image
from gateway.answers.pictures import FORMATS, ImageRefused, decode
from tests.gateway.answers.picture_hosts import RED, encoded

PLENTY = 1_000_000
EXIF_ORIENTATION = 0x0112  # Exif 2.3, table 4


def saved(picture: Pillow.Image, format: str = "PNG", **options: object) -> bytes:
    file = BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def pixel(image: Image, x: int, y: int) -> tuple[int, ...]:
    start = (y * image.width + x) * 3
    return tuple(image.rgb[start : start + 3])


@pytest.mark.parametrize("format", FORMATS)
def test_all_formats_are_read(format: str) -> None:
    image = decode(encoded(format), PLENTY)
    assert (image.width, image.height, len(image.rgb)) == (4, 3, 36)
    red, green, blue = pixel(image, 3, 2)
    assert red > 250
    assert green < 5
    assert blue < 5


@pytest.mark.parametrize("orientation", [6, 8])
def test_a_photograph_is_turned_upright(orientation: int) -> None:
    lying = Pillow.new("RGB", (2, 1), "blue")
    lying.putpixel((0, 0), (255, 0, 0))
    exif = Pillow.Exif()
    exif[EXIF_ORIENTATION] = orientation
    image = decode(saved(lying, exif=exif), PLENTY)
    assert (image.width, image.height) == (1, 2)
    assert pixel(image, 0, 0 if orientation == 6 else 1) == (255, 0, 0)


@pytest.mark.parametrize(
    "clear",
    [
        Pillow.new("RGBA", (1, 1), (255, 0, 0, 0)),
        Pillow.new("LA", (1, 1), (0, 0)),
    ],
    ids=lambda picture: str(picture.mode),
)
def test_what_is_clear_becomes_white(clear: Pillow.Image) -> None:
    assert pixel(decode(saved(clear), PLENTY), 0, 0) == (255, 255, 255)


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_a_clear_colour_of_a_palette_becomes_white(format: str) -> None:
    painted = Pillow.new("P", (1, 1), 0)
    painted.putpalette([255, 0, 0])
    clear = saved(painted, format, transparency=0)
    assert pixel(decode(clear, PLENTY), 0, 0) == (255, 255, 255)


def test_half_clear_is_mixed_with_white() -> None:
    half = Pillow.new("RGBA", (1, 1), (255, 0, 0, 128))
    assert pixel(decode(saved(half), PLENTY), 0, 0) == (255, 127, 127)


def test_deep_grey_keeps_its_shades() -> None:
    deep = Pillow.new("I;16", (1, 1), 0x8000)
    assert pixel(decode(saved(deep), PLENTY), 0, 0) == (128, 128, 128)


def test_inks_become_light() -> None:
    inks = Pillow.new("CMYK", (8, 8), (0, 255, 255, 0))
    red, green, blue = pixel(decode(saved(inks, "JPEG"), PLENTY), 4, 4)
    assert red > 200
    assert green < 60
    assert blue < 60


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_an_animation_gives_its_first_frame(format: str) -> None:
    frames = [Pillow.new("RGB", (2, 2), color) for color in ("red", "blue", "green")]
    moving = saved(
        frames[0], format, save_all=True, append_images=frames[1:], duration=50, lossless=True
    )
    assert pixel(decode(moving, PLENTY), 0, 0) == (255, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"<html>not found</html>",
        saved(Pillow.new("RGB", (2, 2)), "TIFF"),
        encoded("JPEG", (64, 64))[:-200],
        RED[:40],
    ],
    ids=["nothing", "svg", "html", "tiff", "cut-jpeg", "cut-png"],
)
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(ImageRefused, match="not a readable image"):
        decode(data, PLENTY)


def test_the_most_pixels_are_taken_and_one_more_is_not() -> None:
    assert decode(encoded(size=(10, 10)), 100).width == 10
    with pytest.raises(ImageRefused, match="more than 100 pixels"):
        decode(encoded(size=(101, 1)), 100)


@pytest.mark.parametrize("side", [12_000, 60_000])  # Pillow warns of the first, fails at the other
def test_a_bomb_is_refused_by_its_header(side: int) -> None:
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = RED[:8] + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(ImageRefused, match="more than 1,000,000 pixels"):
        decode(bomb + RED[33:], PLENTY)
