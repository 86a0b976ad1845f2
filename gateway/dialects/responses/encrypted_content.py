"""`encrypted_content`: reasoning that clients carry from one request to the next without reading
it.

OpenAI encrypts it, because its clients may not read it. Here it is returned as text anyway, so it
is only packed: clients that send back nothing else of a reasoning item lose none of it, and nothing
has to be stored.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error

PREFIX = "roundhouse-1."


def packed(text: str) -> str:
    """What `encrypted_content` is of a reasoning of `text`."""
    return PREFIX + urlsafe_b64encode(text.encode()).decode()


def unpacked(content: str) -> str | None:
    """The reasoning; None where it was packed elsewhere. Linear."""
    if not content.startswith(PREFIX) or not content.isascii():
        return None
    try:
        return urlsafe_b64decode(content.removeprefix(PREFIX)).decode()
    except (Error, UnicodeDecodeError):
        return None
