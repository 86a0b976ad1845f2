"""The handshake by which a gateway and a listener on another machine make sure of each other,
before any message:

    gateway ──▶ "RHW1", 32 random bytes
            ◀── "RHW1", 32 random bytes
            ──▶ proof: HMAC-SHA256 by the token; the version of this end and what its messages are
            ◀── the same; nothing, where the gateway's was wrong

A proof is over the name of its end, both random numbers, the fingerprint of the TLS certificate
that each end sees, and what follows it: so it can't be used again, handed back, or handed on over
another TLS connection. Who has no token learns nothing from the listener that it could try tokens
against. The token itself is never sent.

Without TLS only the beginning is proven: who can change what passes on the network can take over
the connection then.

Takes bytes and returns bytes; knows no socket. All of it has a fixed size, so nothing grows with
what a stranger sends.
"""

import hashlib
import hmac
import secrets
import struct
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec

from backends.contract.catalog import BACKENDS
from backends.contract.framing import WorkerCommand, WorkerEvent
from config.product import VERSION

End: TypeAlias = Literal["gateway", "worker"]
MAGIC = b"RHW1"
NONCE = 32
PROOF = struct.Struct("32s16s24s")  # the MAC, the digest of the messages, the version as text
SHOWN = 40  # bytes of a foreign protocol, in an error


class HandshakeFailed(Exception):
    """The other end isn't ours, or not of this version. The message says so, for people."""


class Peer(msgspec.Struct, frozen=True):
    """What an end says of itself. `digest`: of all messages that it can read and send."""

    version: str
    digest: bytes


class Handshake:
    """One end of it."""

    def __init__(self, end: End, token: str, *, ours: Peer | None = None) -> None:
        self._end = end
        self._token = token.encode()
        self._ours = ours or this()
        self._nonce = secrets.token_bytes(NONCE)
        self._theirs = b""  # their random number, once it is known
        self._certificate = b""
        self._rest = b""
        self.done = False

    def begin(self, certificate: bytes | None = None) -> bytes:
        """What is sent first. `certificate`: the listener's, as this end sees it, where there is
        TLS.
        """
        self._certificate = hashlib.sha256(certificate).digest() if certificate else b""
        return MAGIC + self._nonce if self._end == "gateway" else b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What is to be sent now, and what came after the end of it. Raises HandshakeFailed."""
        self._rest += data
        sent = b""
        while not self.done:
            size = PROOF.size if self._theirs else len(MAGIC) + NONCE
            if not self._theirs and not MAGIC.startswith(self._rest[: len(MAGIC)]):
                raise HandshakeFailed(_foreign(self._rest))
            if len(self._rest) < size:
                return sent, b""
            part, self._rest = self._rest[:size], self._rest[size:]
            sent += self._check(part) if self._theirs else self._greet(part)
        rest, self._rest = self._rest, b""
        return sent, rest

    def _greet(self, part: bytes) -> bytes:
        self._theirs = part[len(MAGIC) :]
        return self._proof() if self._end == "gateway" else MAGIC + self._nonce

    def _check(self, part: bytes) -> bytes:
        mac, digest, text = PROOF.unpack(part)
        other: End = "worker" if self._end == "gateway" else "gateway"
        peer = Peer(text.rstrip(b"\0").decode("ascii", "replace"), digest)
        if not hmac.compare_digest(mac, self._mac(other, digest, text)):
            raise HandshakeFailed("has another token")
        self.done = True
        # The other end is to hear of another version, too: it has the token.
        answer = self._proof() if self._end == "worker" else b""
        if digest != self._ours.digest:
            raise OtherVersion(self._ours, peer, answer)
        return answer

    def _proof(self) -> bytes:
        text = self._ours.version.encode("ascii", "replace")[:24].ljust(24, b"\0")
        return PROOF.pack(self._mac(self._end, self._ours.digest, text), self._ours.digest, text)

    def _mac(self, end: End, digest: bytes, text: bytes) -> bytes:
        mine, theirs = self._nonce, self._theirs
        nonces = mine + theirs if self._end == "gateway" else theirs + mine
        signed = b"".join((MAGIC, end.encode().ljust(8), nonces, digest, text, self._certificate))
        return hmac.digest(self._token, signed, "sha256")


class OtherVersion(HandshakeFailed):
    """`answer`: what is to be sent all the same, so that the other end can say it as well."""

    def __init__(self, ours: Peer, theirs: Peer, answer: bytes) -> None:
        super().__init__(
            f"runs Roundhouse {theirs.version}, and this is {ours.version}"
            + (" of other sources" if theirs.version == ours.version else "")
            + ": both ends must be of one version"
        )
        self.answer = answer


def _foreign(data: bytes) -> str:
    if data[:2] in (b"\x15\x03", b"\x16\x03"):  # an alert or a hello of TLS
        return "speaks TLS, and this end doesn't"
    return f"speaks another protocol: {data[:SHOWN]!r}"


def certificate_fingerprint(certificate: bytes) -> str:
    """As the configuration has it. `certificate`: in DER."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


@cache
def this() -> Peer:
    """This program. Its digest differs where a message of another version couldn't be read, or
    means something else.
    """
    options = (backend.options for backend in BACKENDS.values())
    kinds: tuple[Any, ...] = (WorkerCommand, WorkerEvent, *options)
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=lambda _: {"type": "string"}
    )
    text = msgspec.json.encode([schemas, components], order="sorted")
    return Peer(VERSION, hashlib.sha256(text).digest()[:16])
