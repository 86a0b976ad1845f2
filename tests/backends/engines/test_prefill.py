"""Whose prompt is read next, and how much of it."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from backends.engines.prefill import BLOCK, Prefill

SLOW, FAST = 0.01, 0.00001  # seconds a token


class Waiting(msgspec.Struct, eq=False):
    """A prompt with so many tokens left."""

    name: str
    left: int


def read(prompts: list[Waiting], reading: Prefill, pieces: int, cost: float = SLOW) -> list[str]:
    """Whose pieces are read one after the other; `prompts` are changed."""
    names = []
    for _ in range(pieces):
        first = reading.order([prompt for prompt in prompts if prompt.left])[0]
        count = reading.piece(first.left, 512, answering=False)
        reading.read(count, count * cost)
        first.left -= count
        names.append(first.name)
    return names


def settled(cost: float) -> Prefill:
    """What has measured that long prompts cost so much."""
    reading = Prefill()
    for _ in range(30):
        reading.read(512, 512 * cost)
    return reading


def test_a_short_prompt_is_read_next_whoever_reads_a_long_one() -> None:
    long, reading = Waiting("long", 6_000), settled(SLOW)
    assert set(read([long], reading, 5)) == {"long"}
    assert read([long, Waiting("short", 30)], reading, 3) == ["short", "long", "long"]


def test_shorter_prompts_go_first_as_long_as_the_oldest_takes_at_most_twice_as_long() -> None:
    page, work = Waiting("page", 640), Waiting("work", 1_280)
    assert read([work, page], settled(SLOW), 12) == ["page"] * 10 + ["work"] * 2
    short = [Waiting("short", 64) for _ in range(40)]
    names = read([Waiting("long", 1_280), *short], settled(SLOW), 60)
    assert names.index("long") == 1_280 // 64
    assert "short" not in names[names.index("long") :][: 1_280 // 192]


def test_what_went_ahead_of_one_prompt_is_not_held_for_the_next() -> None:
    reading = settled(SLOW)
    prompts = [Waiting("first", 640), *(Waiting("short", 64) for _ in range(20))]
    read(prompts, reading, 20)
    assert not prompts[0].left
    assert read([Waiting("second", 640), Waiting("short", 64)], reading, 1) == ["short"]


@given(st.integers(1, 5_000), st.booleans(), st.sampled_from([SLOW, FAST]))
def test_pieces_end_at_whole_blocks_and_leave_less_than_one_to_no_pass_of_its_own(
    left: int, answering: bool, cost: float
) -> None:
    """So each row is computed among at least as many however fast the machine is at the moment."""
    reading, sizes = settled(cost), []
    whole = left
    while left:
        sizes.append(reading.piece(left, 512, answering=answering))
        left -= sizes[-1]
    assert all(size % BLOCK == 0 for size in sizes[:-1])
    assert sizes == [whole] or min(sizes) >= BLOCK
    assert max(sizes) <= 512


def test_a_piece_is_one_block_where_that_takes_longer_than_others_wait() -> None:
    assert settled(SLOW).piece(6_000, 512, answering=True) == BLOCK
    assert settled(FAST).piece(6_000, 512, answering=True) == 512 - BLOCK


def test_answers_have_their_share_before_the_next_piece() -> None:
    reading, steps = settled(SLOW), 0
    reading.read(64, 0.64)
    while not reading.is_due:
        reading.answered(0.008)
        steps += 1
    assert steps == 8


def test_where_nobody_reads_nobody_is_next() -> None:
    reading = settled(SLOW)
    assert read([Waiting("long", 6_000), Waiting("short", 30)], reading, 1) == ["short"]
    assert reading.order([]) == []
