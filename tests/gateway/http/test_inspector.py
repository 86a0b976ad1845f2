"""The store of the last requests: bounded in number and bytes, and each key's own."""

import pytest

from backends.contract.protocol import Piece
from config.settings import InspectorConfig
from gateway.http.inspector import Inspector
from gateway.http.request_record import MOST_BODY, RequestRecord
from gateway.keys.access import ADMIN, Access
from gateway.terms.errors import NotFound
from gateway.terms.events import Content

ONE, TWO = Access(owner="one"), Access(owner="two")


def begun(inspector: Inspector, number: int, owner: str, name: str = "") -> RequestRecord:
    record = RequestRecord(name or f"r{number}")
    record.asks("chat", "m", "m", Access(owner=owner), recording=inspector.recording())
    record.number = number
    inspector.began(record)
    return record


def enter(inspector: Inspector, number: int, owner: str, text: str = "", name: str = "") -> None:
    record = begun(inspector, number, owner, name)
    assert record.recording is not None
    record.recording.choice(0).add(Piece(text, (1,)), [Content(text)])
    record.recording.choices[0].seen()
    inspector.ended(record)


def kept(inspector: Inspector, numbers: range, access: Access) -> list[int]:
    found = []
    for number in numbers:
        try:
            found.append(inspector.find(str(number), access).number)
        except NotFound:
            continue
    return found


def test_each_key_keeps_its_last() -> None:
    inspector = Inspector(InspectorConfig(requests=2))
    for number in range(1, 4):
        enter(inspector, number, "one")
    enter(inspector, 4, "two")
    assert kept(inspector, range(1, 5), ONE) == [2, 3]
    assert kept(inspector, range(1, 5), TWO) == [4]
    assert kept(inspector, range(1, 5), ADMIN) == [2, 3, 4]


def test_who_holds_most_loses_its_oldest() -> None:
    inspector = Inspector(InspectorConfig(memory=40_000))
    enter(inspector, 1, "two", "a" * 1_000)
    for number in range(2, 6):
        enter(inspector, number, "one", "a" * 5_000)
    assert kept(inspector, range(1, 6), TWO) == [1]
    assert kept(inspector, range(1, 6), ONE) == [3, 4, 5]


def test_without_oversight_an_administrator_sees_its_own_alone() -> None:
    inspector = Inspector(InspectorConfig(oversight=False))
    enter(inspector, 1, "one")
    assert kept(inspector, range(2), ADMIN) == []
    assert kept(inspector, range(2), ONE) == [1]


def test_a_request_is_found_by_the_newest_of_its_name() -> None:
    inspector = Inspector(InspectorConfig())
    enter(inspector, 1, "one", name="mine")
    enter(inspector, 2, "one", name="mine")
    enter(inspector, 3, "two", name="mine")
    assert inspector.find("mine", ONE).number == 2
    enter(inspector, 4, "one", name="3")  # a name like another's number
    assert inspector.find("3", ONE).number == 4


def test_turned_off_it_forgets_all_at_once() -> None:
    inspector = Inspector(InspectorConfig())
    enter(inspector, 1, "one")
    running = begun(inspector, 2, "one")
    assert kept(inspector, range(3), ADMIN) == [1, 2]
    inspector.apply(InspectorConfig(enabled=False))
    inspector.ended(running)
    assert kept(inspector, range(3), ADMIN) == []
    assert inspector.recording() is None


def test_of_a_long_body_the_beginning_is_kept() -> None:
    record = RequestRecord("r")
    record.sent(b"a" * 3 * MOST_BODY)
    assert (record.body, record.body_bytes) == (b"a" * MOST_BODY, 3 * MOST_BODY)


@pytest.mark.parametrize("name", ["", "1" * 30, "٣", "no"])
def test_what_is_no_request_is_not_found(name: str) -> None:
    inspector = Inspector(InspectorConfig())
    enter(inspector, 1, "one")
    with pytest.raises(NotFound):
        inspector.find(name, ONE)
