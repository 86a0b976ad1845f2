"""How vocabularies spell their tokens: byte-level BPE writes every byte as a printable character
(GPT-2's table), SentencePiece writes a space as "▁" and lone bytes as "<0x0A>".
"""

import re
from collections.abc import Mapping


def _bytes() -> str:
    """GPT-2's spelling of the bytes 0 to 255: printable ones are themselves, the others are moved
    to U+0100 and up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(moved)) for byte in range(256))


BYTES = _bytes()
_BYTE_OF: Mapping[str, int] = {spelled: byte for byte, spelled in enumerate(BYTES)}
_LONE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def from_bytes(spelled: str) -> bytes | None:
    """What `spelled` stands for in GPT-2's spelling; None: it isn't written so."""
    try:
        return bytes(_BYTE_OF[letter] for letter in spelled)
    except KeyError:
        return None


def from_pieces(spelled: str) -> bytes:
    """What it stands for in SentencePiece's. A lone surrogate becomes "?"."""
    if lone := _LONE_BYTE.fullmatch(spelled):
        return bytes.fromhex(lone[1])
    return spelled.replace("▁", " ").encode(errors="replace")
