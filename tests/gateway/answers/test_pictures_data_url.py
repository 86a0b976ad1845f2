"""`data:` URLs carry bytes in several spellings; broken and large ones are refused."""

from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest

from gateway.answers.pictures import ImageRefused, carried

DATA = bytes(range(256)) + b"!"
PACKED = b64encode(DATA).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{PACKED}",
        f"data:;base64,{PACKED}",
        f"data:image/png;charset=x;BASE64,{PACKED}",
        f"data:image/png;base64,{PACKED.rstrip('=')}",
        f"data:image/png;base64,{PACKED[:76]}\r\n{PACKED[76:]}",
        f"data:image/png;base64,{quote(PACKED, safe='')}",
        f"data:image/png;base64,{urlsafe_b64encode(DATA).decode()}",
        f"data:image/png,{quote(DATA)}",
    ],
)
def test_every_spelling_carries_the_same_bytes(url: str) -> None:
    assert carried(url, max_bytes=len(DATA)) == DATA


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,%%%", "base64"),
        ("data:image/png;base64,AAAAA", "base64"),
        ("data:image/png;base64,Grüße", "base64"),
        (f"data:image/png;base64,{PACKED}", "larger than 256 bytes"),
        (f"data:image/png,{quote(DATA)}", "larger than 256 bytes"),
        ("data:image/png;base64," + 2000 * " ", "larger than 256 bytes"),
    ],
)
def test_broken_and_large_ones_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ImageRefused, match=reason):
        carried(url, max_bytes=256)
