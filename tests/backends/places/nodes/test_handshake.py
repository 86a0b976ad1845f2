"""Two ends make sure of each other, and nothing else gets through."""

import pytest

from backends.places.nodes.handshake import (
    MAGIC,
    NONCE,
    PROOF,
    Handshake,
    HandshakeFailed,
    OtherVersion,
    Peer,
)

TOKEN = "of-no-use-anywhere-else"
OURS = Peer("1.0", b"d" * 16)


def ends(token: str = TOKEN, theirs: Peer = OURS) -> tuple[Handshake, Handshake]:
    return Handshake("gateway", TOKEN, ours=OURS), Handshake("worker", token, ours=theirs)


def carry(gateway: Handshake, worker: Handshake, first: bytes, size: int = 1000) -> bytes:
    """All that passes, `size` bytes at a time; what came behind the end at the gateway."""
    to_worker, rest = first, b""
    while to_worker:
        to_gateway = b""
        for at in range(0, len(to_worker), size):
            to_gateway += worker.feed(to_worker[at : at + size])[0]
        to_worker = b""
        for at in range(0, len(to_gateway), size):
            sent, rest = gateway.feed(to_gateway[at : at + size])
            to_worker += sent
    return rest


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("certificate", [None, b"of the listener"])
def test_ends_with_one_token_agree_however_the_bytes_come(
    size: int, certificate: bytes | None
) -> None:
    gateway, worker = ends()
    first = gateway.begin(certificate)
    worker.begin(certificate)
    carry(gateway, worker, first, size)
    assert gateway.done
    assert worker.done


def test_what_comes_behind_the_end_is_handed_on() -> None:
    gateway, worker = ends()
    opening = worker.feed(gateway.begin())[0]
    proof = gateway.feed(opening)[0]
    assert worker.feed(proof + b"more")[1] == b"more"


def test_a_worker_says_nothing_of_its_token_to_who_has_another() -> None:
    gateway, worker = ends(token="another one altogether")
    opening = worker.feed(gateway.begin())[0]
    assert len(opening) == len(MAGIC) + NONCE
    with pytest.raises(HandshakeFailed, match="another token"):
        worker.feed(gateway.feed(opening)[0])
    assert not worker.done


def test_a_proof_is_of_no_use_twice_nor_to_who_sent_it() -> None:
    gateway, worker = ends()
    opening = worker.feed(gateway.begin())[0]
    proof = gateway.feed(opening)[0]
    with pytest.raises(HandshakeFailed, match="another token"):
        gateway.feed(proof)  # reflected
    another = Handshake("worker", TOKEN, ours=OURS)
    another.feed(MAGIC + b"n" * NONCE)
    with pytest.raises(HandshakeFailed, match="another token"):
        another.feed(proof)  # replayed


def test_a_proof_can_not_be_handed_on_over_another_certificate() -> None:
    gateway, worker = ends()
    first = gateway.begin(b"of somebody in between")
    worker.begin(b"of the listener")
    with pytest.raises(HandshakeFailed, match="another token"):
        carry(gateway, worker, first)


def test_another_version_is_said_at_both_ends() -> None:
    gateway, worker = ends(theirs=Peer("0.9", b"e" * 16))
    proof = gateway.feed(worker.feed(gateway.begin())[0])[0]
    with pytest.raises(OtherVersion, match=r"^runs Roundhouse 1\.0, and this is 0\.9:") as raised:
        worker.feed(proof)
    with pytest.raises(OtherVersion, match=r"^runs Roundhouse 0\.9, and this is 1\.0: both ends"):
        gateway.feed(raised.value.answer)


@pytest.mark.parametrize("end", ["gateway", "worker"])
def test_a_foreign_protocol_is_seen_in_its_first_bytes(end: str) -> None:
    one = ends()[0 if end == "gateway" else 1]
    with pytest.raises(HandshakeFailed, match=r"another protocol: b'H'"):
        one.feed(b"H")
    with pytest.raises(HandshakeFailed, match="speaks TLS, and this end doesn't"):
        ends()[0].feed(b"\x15\x03\x03\x00\x02")


def test_nothing_a_stranger_sends_is_kept_beyond_a_proof() -> None:
    worker = Handshake("worker", TOKEN, ours=OURS)
    worker.feed(MAGIC + b"n" * NONCE)
    with pytest.raises(HandshakeFailed):
        worker.feed(b"x" * PROOF.size + b"y" * 1_000_000)
