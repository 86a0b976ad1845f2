"""Tool calls of servers with habits, in order."""

from typing import Any

import msgspec
import pytest

from backends.contract.errors import UpstreamError
from backends.places.upstream.reading import MOST_CALLS, CallOrder, StreamedCallWire


def wire(
    name: str | None = None, arguments: Any = None, *, id: str | None = None, index: int | None = 0
) -> StreamedCallWire:
    data = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    return msgspec.convert(data, StreamedCallWire)


def calls_of(*wires: StreamedCallWire, whole: bool = False) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call; made-up ids are told as "made"."""
    order, calls = CallOrder(), dict[int, list[str]]()
    for one in wires:
        call = order.take(one, whole=whole)
        if call is not None:
            if call.name:
                assert call.index == len(calls), "calls are counted from 0, each begins once"
                calls[call.index] = [call.id, call.name, ""]
            calls[call.index][2] += call.arguments
    return [
        ("made" if one.startswith("call_") else one, name, text)
        for one, name, text in calls.values()
    ]


CASES = {
    "as OpenAI": [
        wire("a", "", id="1"),
        wire(None, '{"x":'),
        wire(None, "1}"),
        wire("b", "", id="2", index=1),
        wire(None, '{"x":2}', index=1),
    ],
    "pieces of two calls by turns": [
        wire("a", "", id="1"),
        wire("b", "", id="2", index=1),
        wire(None, '{"x":'),
        wire(None, '{"x":2}', index=1),
        wire(None, "1}"),
    ],
    "counted from 1": [
        wire("a", '{"x":1}', id="1", index=1),
        wire("b", '{"x":2}', id="2", index=2),
    ],
    "all with the index 0": [wire("a", '{"x":1}', id="1"), wire("b", '{"x":2}', id="2")],
    "without indexes": [
        wire("a", "", id="1", index=None),
        wire(None, '{"x":1}', index=None),
        wire("b", '{"x":2}', id="2", index=None),
    ],
    "name and id in every piece": [
        wire("a", '{"x":', id="1"),
        wire("a", "1}", id="1"),
        wire("b", '{"x":2}', id="2", index=1),
    ],
    "id before the name": [
        wire(None, None, id="1"),
        wire("a", '{"x":1}'),
        wire("b", '{"x":2}', id="2", index=1),
    ],
    "arguments as an object": [wire("a", {"x": 1}, id="1"), wire("b", {"x": 2}, id="2", index=1)],
}


@pytest.mark.parametrize("case", CASES)
def test_calls_are_put_in_order(case: str) -> None:
    assert calls_of(*CASES[case]) == [("1", "a", '{"x":1}'), ("2", "b", '{"x":2}')]


def test_calls_without_ids_and_with_one_index_are_distinguished_by_whole_arguments() -> None:
    calls = calls_of(wire("a", '{"x":1}'), wire("a", '{"x":2}'))

    assert calls == [("made", "a", '{"x":1}'), ("made", "a", '{"x":2}')]


def test_in_one_body_every_entry_is_a_call() -> None:
    calls = calls_of(wire("a", "{}", index=None), wire("a", "{}", index=None), whole=True)

    assert calls == [("made", "a", "{}"), ("made", "a", "{}")]


def test_what_never_gets_a_name_is_no_call() -> None:
    assert calls_of(wire(None, '{"x":1}', id="1")) == []


def test_calls_without_end_are_refused() -> None:
    order = CallOrder()
    for number in range(MOST_CALLS):
        order.take(wire("a", "{}", id=str(number), index=number))

    with pytest.raises(UpstreamError, match="more than"):
        order.take(wire("a", "{}", id="more", index=MOST_CALLS))
