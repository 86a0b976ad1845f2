"""Items that are named instead of sent, and reasoning that is carried by its client."""

import pytest

from gateway.dialects.responses import items
from gateway.terms.errors import InvalidRequest, NotFound

HOME = "0123456789abcdef" * 2
ITEM = {"type": "message", "role": "user", "content": "Hi"}


def test_an_id_tells_where_its_item_is_kept() -> None:
    new_id = items.numbered(HOME)
    ids = [f"msg_{new_id()}" for _ in range(3)]
    assert len(set(ids)) == 3
    assert {items.home_of(one) for one in ids} == {HOME}
    for foreign in ("msg_1", "", f"msg_{HOME}", f"msg_{HOME}x", f"{HOME}00", "msg_" + "f" * 10**6):
        assert items.home_of(foreign) in (None, "f" * 32)


def test_references_are_replaced_and_what_is_missing_is_named() -> None:
    sent = [ITEM, {"type": "item_reference", "id": "a"}, {"id": "b"}]
    assert items.referred(sent) == ["a", "b"]
    found = {"a": {"n": 1}, "b": {"n": 2}}
    assert items.resolved(sent, found) == (ITEM, {"n": 1}, {"n": 2})
    with pytest.raises(NotFound) as missing:
        items.resolved(sent, {"a": ITEM})
    assert missing.value.param == "input[2].id"
    with pytest.raises(InvalidRequest) as wrong:
        items.referred([{"type": "item_reference"}])
    assert wrong.value.param == "input[0].id"


def test_what_is_packed_is_read_again_and_nothing_else_is() -> None:
    for text in ("", "Let me see.", "Überlegung 🧠\n" * 1000):
        assert items.unpacked(items.packed(text)) == text
    for foreign in ("", "gAAAAA", *(items.PREFIX + one for one in ("€", "x", "_w=="))):
        assert items.unpacked(foreign) is None
