"""Whether models are better kept together, by what was seen of them."""

import msgspec

from gateway.registry.protocol import Smaller
from gateway.registry.sharing import SEEN, Rival, agreed, turns

LOAD, ANSWER = 30.0, 2.0  # seconds
WAYS = tuple(
    Smaller({"cuda:0": part, "cpu": 80 - part}, 1 / (2 - part / 80)) for part in range(80, -1, -10)
)


def rival(name: str, arrivals: tuple[float, ...], seconds: float | None = ANSWER) -> Rival:
    return Rival(
        name=name, load_seconds=LOAD, seconds=seconds, slots=4, arrivals=arrivals, ways=WAYS
    )


ROOM = {"cuda:0": 100, "cpu": 1000}
IN_TURN = (
    rival("a", tuple(float(time) for time in range(0, 1000, 100))),
    rival("b", tuple(float(time) for time in range(50, 1000, 100))),
)


def test_nothing_is_judged_of_which_too_little_was_seen() -> None:
    first, second = IN_TURN
    assert agreed(IN_TURN, ROOM, stay=1.0, worth=3.0) is not None
    unknown = msgspec.structs.replace(second, seconds=None)
    assert agreed((first, unknown), ROOM, stay=1.0, worth=3.0) is None
    assert agreed((first,), ROOM, stay=1.0, worth=3.0) is None
    once = msgspec.structs.replace(second, arrivals=(1000.0,))
    assert agreed((first, once), ROOM, stay=1.0, worth=3.0) is None, "none came back yet"


def test_of_a_time_in_which_requests_are_forgotten_nothing_is_judged() -> None:
    often = rival("a", tuple(2000.0 + time for time in range(SEEN)))
    assert agreed((often, IN_TURN[1]), ROOM, stay=1.0, worth=3.0) is None


def test_turns_of_a_crowd_are_few_and_of_a_trickle_as_many_as_requests() -> None:
    crowd = [(0.0, number % 2) for number in range(100)]
    assert turns(IN_TURN, crowd, stay=1.0, worth=3.0)[0] == 2
    trickle = [(100.0 * number, number % 2) for number in range(10)]
    loads, seconds = turns(IN_TURN, trickle, stay=1.0, worth=3.0)
    assert (loads, seconds) == (10, 10 * (LOAD + ANSWER))


def test_where_more_is_asked_for_than_can_be_answered_so_slowly_they_take_turns() -> None:
    busy = tuple(
        rival(name, tuple(start + 1.0 * time for time in range(60)), 30.0)
        for name, start in (("a", 0.0), ("b", 0.5))
    )
    assert agreed(busy, ROOM, stay=1.0, worth=3.0) is None
