"""The disk tier: an entry as a file, and a folder of them.

    magic, version | length and digest of the head | head | tokens | whole | parts | digest of all

The head is MessagePack. A file holds no text, only token ids, and only its user may read it. It is
written under another name and renamed when it is whole, so that whoever is ended meanwhile leaves
nothing that looks like one; what is torn, flipped or foreign has another digest. With a key all
behind the head is sealed in pieces (AES-GCM), and the head is part of each seal.

Several servers may use one folder: a name says what is in the file, so two of them write the same
under the same name.
"""

import errno
import os
import struct
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b, scrypt
from pathlib import Path
from shutil import disk_usage
from tempfile import NamedTemporaryFile
from typing import BinaryIO

import msgspec
import numpy as np
import structlog

from backends.contract.beginnings import PIECE, WORD, Bytes, Taken, TakenFacts, packed, pieces
from backends.machine.paths import UNFINISHED, replacing
from config.values import alike

log = structlog.get_logger(__name__)

MAGIC, VERSION = b"RHKEPT\r\n", 1
SUFFIX = ".kept"
SALT = "salt"  # of the key that files are encrypted with
PINNED = ".pinned"  # of an empty file beside one that is pinned
_FRONT = struct.Struct("<8sHI16s")  # magic, version, bytes and digest of the head
MOST_HEAD = 1 << 20  # bytes
DIGEST = 16  # bytes
SPARED = 256 << 20  # bytes of the disk that are left to others
ABANDONED = 3_600.0  # seconds after which a file that nobody finished is removed


class Head(TakenFacts, frozen=True, kw_only=True):
    """What is known of an entry without its bytes. `sizes`: of its buffers. `made`: Unix time.
    `sealed`: how it is encrypted; "": it isn't.
    """

    sizes: tuple[int, ...]
    identity: str
    model: str
    cells: int
    made: float
    sealed: str = ""
    nonce: bytes = b""

    @property
    def body(self) -> int:
        """Bytes behind the head, without seals and the digest."""
        return sum(_sizes(self))


class Unusable(Exception):
    """A file that is torn, or was changed."""


class Foreign(Unusable):
    """A file of another version, or that another server has encrypted. It is left alone."""


class Seal:
    """Encrypts pieces with AES-GCM; each becomes `over` bytes longer. Its key takes a tenth of a
    second to make, for whoever guesses at secrets, too. Raises ImportError where the package
    `cryptography` is missing.
    """

    name, over = "AES-256-GCM, scrypt", 16

    def __init__(self, secret: str, salt: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        key = scrypt(secret.encode(), salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32)
        self._cipher, self._invalid = AESGCM(key), InvalidTag

    def nonce(self) -> bytes:
        """For one file: the counted pieces have the rest of the twelve bytes."""
        return os.urandom(8)

    def close(self, nonce: bytes, number: int, piece: memoryview, head: bytes) -> bytes:
        """`head` is sealed with it."""
        sealed: bytes = self._cipher.encrypt(nonce + number.to_bytes(4), piece, head)
        return sealed

    def open(self, nonce: bytes, number: int, piece: memoryview, head: bytes) -> bytes:
        """Raises Unusable."""
        try:
            opened: bytes = self._cipher.decrypt(nonce + number.to_bytes(4), piece, head)
        except (self._invalid, ValueError) as error:
            raise Unusable("it was sealed with another key, or changed") from error
        return opened


def salt_in(folder: Path) -> bytes:
    """The salt of a folder's files, made by the server that comes first. Blocks. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder) as made:
        made.write(os.urandom(16))
        made.flush()
        with suppress(FileExistsError):
            os.link(made.name, folder / SALT)
    return (folder / SALT).read_bytes()


def name(head: Head, tokens: bytes) -> str:
    """Of the file, by what is in it: whoever writes it again writes the same."""
    facts = (head.identity, head.owner, head.cuts_from, head.places, head.sizes)
    digest = blake2b(msgspec.msgpack.encode(facts), digest_size=20)
    digest.update(tokens)
    return digest.hexdigest() + SUFFIX


def _check_name(path: Path, head: Head, tokens: bytes) -> None:
    """Raises Unusable where the file isn't the one that it is called: somebody has moved it."""
    if path.name != name(head, tokens):
        raise Unusable("it is another conversation's")


def write(path: Path, head: Head, taken: Taken, seal: Seal | None = None) -> None:
    """Raises OSError; leaves nothing behind then."""
    if seal is not None:
        head = msgspec.structs.replace(head, sealed=seal.name, nonce=seal.nonce())
    data = msgspec.msgpack.encode(head)
    with replacing(path) as file:
        digest = blake2b(data, digest_size=DIGEST)
        file.write(_FRONT.pack(MAGIC, VERSION, len(data), digest.digest()) + data)
        tokens = np.frombuffer(packed(taken.tokens), np.uint8)
        for number, plain in enumerate(pieces((tokens, *taken.buffers))):
            piece = np.ascontiguousarray(plain).data
            if seal is not None:
                piece = memoryview(seal.close(head.nonce, number, piece, data))
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())


def read(path: Path, seal: Seal | None = None) -> tuple[Head, Taken]:
    """Raises Unusable, OSError."""
    with path.open("rb", buffering=0) as file:
        head, data = _head(file, seal)
        tokens, *buffers = (np.empty(size, np.uint8) for size in _sizes(head))
        digest = blake2b(data, digest_size=DIGEST)
        for number, room in enumerate(pieces((tokens, *buffers))):
            digest.update(_fill(file, room, number, head, data, seal))
        if file.read(DIGEST) != digest.digest():
            raise Unusable("its digest is another")
    taken = alike(Taken, head)(tokens=array("q", tokens.tobytes()), buffers=tuple(buffers))
    return head, taken


def peek(path: Path, seal: Seal | None = None) -> tuple[Head, bytes]:
    """The head and the tokens of a file that is as long as it should be; its digest is compared
    when it is read. Raises Unusable, OSError.
    """
    with path.open("rb", buffering=0) as file:
        head, data = _head(file, seal)
        count = sum(-(-size // PIECE) for size in _sizes(head))
        sealed = count * seal.over if seal is not None else 0
        if os.fstat(file.fileno()).st_size != file.tell() + head.body + sealed + DIGEST:
            raise Unusable("it is not as long as it should be")
        tokens = np.empty(head.cells * WORD, np.uint8)
        for number, room in enumerate(pieces((tokens,))):
            _fill(file, room, number, head, data, seal)
    return head, tokens.tobytes()


class Folder(msgspec.Struct, frozen=True):
    """The files of a folder. Raises OSError where it can't be used."""

    _path: Path
    _seal: Seal | None = None

    def open(self) -> Iterator[tuple[Path, Head, bytes]]:
        """All that is there; what is no entry is removed if it is ours, and left out. Yields each
        file's head and tokens. Raises OSError.
        """
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(self._path.iterdir()):
            if path.suffix != SUFFIX:
                self._remove_abandoned(path)
                continue
            try:
                head, tokens = peek(path, self._seal)
                _check_name(path, head, tokens)
            except (Unusable, OSError) as error:
                self.discard(path, error)
                continue
            yield path, head, tokens

    def write(self, head: Head, taken: Taken) -> Path:
        """Raises OSError, also where others would have too little of the disk left."""
        if disk_usage(self._path).free < head.body + SPARED:
            raise OSError(errno.ENOSPC, f"{SPARED >> 20} MiB of the disk are left to others")
        path = self._path / name(head, packed(taken.tokens))
        write(path, head, taken, self._seal)
        return path

    def read(self, path: Path) -> Taken:
        """Raises Unusable, OSError."""
        head, taken = read(path, self._seal)
        _check_name(path, head, packed(taken.tokens))
        return taken

    def pin(self, path: Path, *, pinned: bool) -> None:
        """Remember that nothing is to push a file out, or something may."""
        mark = path.with_suffix(PINNED)
        try:
            if pinned:
                mark.touch(mode=0o600)
            else:
                mark.unlink(missing_ok=True)
        except OSError as error:
            log.warning("what is pinned is known until a restart alone", reason=str(error))

    def is_pinned(self, path: Path) -> bool:
        """See `pin`."""
        return path.with_suffix(PINNED).exists()

    def discard(self, path: Path, reason: Exception) -> None:
        """Remove a file that can't be used, and say so."""
        log.warning("a kept conversation is left out", file=path.name, reason=str(reason))
        if not isinstance(reason, Foreign):
            self.remove(path)

    def remove(self, path: Path) -> None:
        """It may be gone already, or not be ours to remove."""
        with suppress(OSError):
            path.unlink()
            path.with_suffix(PINNED).unlink(missing_ok=True)

    def _remove_abandoned(self, path: Path) -> None:
        """What a server that was ended has not finished."""
        with suppress(OSError):
            if path.suffix == PINNED and not path.with_suffix(SUFFIX).exists():
                path.unlink()
            is_ours = path.name.startswith(UNFINISHED) or SUFFIX in path.suffixes
            if is_ours and time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()


def _head(file: BinaryIO, seal: Seal | None) -> tuple[Head, bytes]:
    front = file.read(_FRONT.size)
    if len(front) < _FRONT.size:
        raise Unusable("it is too short")
    magic, version, length, digest = _FRONT.unpack(front)
    if magic != MAGIC or version != VERSION:
        raise Foreign("it is no file of this version")
    data = file.read(length) if length <= MOST_HEAD else b""
    if blake2b(data, digest_size=DIGEST).digest() != digest:
        raise Unusable("the digest of its head is another")
    try:
        head = msgspec.msgpack.decode(data, type=Head)
    except msgspec.DecodeError as error:
        raise Unusable(str(error)) from error
    if head.sealed != (seal.name if seal is not None else ""):
        raise Foreign("it is not encrypted as this server's files are")
    if head.cells < 1 or len(head.sizes) != 1 + len(head.places) or min(head.sizes) < 1:
        raise Unusable("its head contradicts itself")
    if head.body > os.fstat(file.fileno()).st_size:
        raise Unusable("it is not as long as it should be")
    return head, data


def _sizes(head: Head) -> tuple[int, ...]:
    """Of what lies behind the head: the tokens, and the buffers."""
    return head.cells * WORD, *head.sizes


def _fill(
    file: BinaryIO, target: Bytes, number: int, head: Head, data: bytes, seal: Seal | None
) -> memoryview:
    """Read a piece; returns it as it stands in the file."""
    if seal is None:
        if file.readinto(target.data) != len(target):  # type: ignore[attr-defined]
            raise Unusable("it is torn")
        return target.data
    piece = file.read(len(target) + seal.over)
    target[:] = np.frombuffer(seal.open(head.nonce, number, memoryview(piece), data), np.uint8)
    return memoryview(piece)
