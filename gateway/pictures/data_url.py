"""`data:` URLs (RFC 2397): the bytes they carry. The media type is not believed: the bytes tell."""

import binascii
from base64 import b64decode
from urllib.parse import unquote_to_bytes

from gateway.pictures.refused import ImageRefused

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


def _decoded(text: bytes) -> bytes:
    """Line breaks and missing padding are forgiven: clients send both."""
    packed = b"".join(text.split()).translate(USUAL).rstrip(b"=")
    try:
        return b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise ImageRefused("is not valid base64") from error
