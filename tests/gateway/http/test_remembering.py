"""The turns that a connection remembers, and what they hold."""

from gateway.http import remembering
from gateway.http.holding import Holdings, RequestHolding
from gateway.http.remembering import Memory
from gateway.keys.store import KeptTurn


def turn(previous: str | None, size: int = 10) -> KeptTurn:
    return KeptTurn(previous=previous, running=False, input=b"i" * size, output=b"")


def memory(total: int) -> tuple[Memory, Holdings]:
    holdings = Holdings(total, 0)
    return Memory(RequestHolding(holdings, lambda: "key")), holdings


def names(held: Memory, last: str) -> list[str]:
    return [name for name, _ in held.chain(last)]


def test_turns_are_found_in_their_order_and_may_fork() -> None:
    held, _ = memory(1 << 20)
    held.keep("a", turn("stored"))
    held.keep("b", turn("a"))
    held.keep("c", turn("a"))
    assert names(held, "b") == ["a", "b"]
    assert names(held, "c") == ["a", "c"]
    assert names(held, "stored") == []
    assert held.chain("b")[0][1].previous == "stored"


def test_what_finds_no_room_is_not_kept_and_all_is_given_back() -> None:
    held, holdings = memory(40)
    held.keep("a", turn(None, 15))
    held.keep("b", turn("a", 15))
    assert names(held, "b") == []
    held.clear()
    assert len(held) == 0
    holdings.take("key", 20)


def test_the_oldest_is_forgotten() -> None:
    held, _ = memory(1 << 20)
    for number in range(remembering.MOST_TURNS + 1):
        held.keep(str(number), turn(str(number - 1) if number else None))
    assert len(held) == remembering.MOST_TURNS
    assert names(held, "0") == []
    assert names(held, "1") == ["1"]
