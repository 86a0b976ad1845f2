"""The store from another process: beginnings of any size come whole or not at all, and an engine's
thread waits for none of them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from backends.contract.beginnings import (
    PIECE,
    SOON,
    Beginnings,
    Coming,
    Found,
    NothingKept,
    Taken,
    pieces,
)
from backends.contract.messages import (
    ComingThere,
    KeptAnswered,
    KeptAsked,
    KeptBytes,
    NothingThere,
    Offer,
    OfferedBytes,
    TakenHead,
)
from backends.engines.kept import AGAIN, BeginningsAfar
from backends.places.kept.desk import BeginningsDesk
from backends.places.kept.store import KeptStore
from tests.backends.places.kept.afar import from_afar
from tests.hang import HANG

SIZE = 2 * PIECE + 17  # of the whole: three pieces


def taken(seed: int = 1, owner: str = "somebody") -> Taken:
    dice = np.random.default_rng(seed)
    return Taken(
        owner=owner,
        tokens=tuple(int(one) for one in dice.integers(1, 999, 200)),
        cuts_from=150,
        buffers=(
            dice.integers(0, 256, SIZE, np.uint8),
            dice.integers(0, 256, PIECE, np.uint8),
            np.empty(0, np.uint8),
        ),
        places=(50, 70),
        conversation="railway",
        seconds=500.0,
    )


@contextmanager
def store(memory: int = 100 << 20) -> Iterator[KeptStore]:
    made = KeptStore(memory=memory)
    try:
        yield made
    finally:
        made.close()


def until_there(beginnings: Beginnings, owner: str, tokens: Sequence[int]) -> Found | None:
    end = time.monotonic() + HANG
    while isinstance(found := beginnings.longest(owner, tokens, 0), Coming):
        assert time.monotonic() < end
        time.sleep(SOON)
    return found


def test_what_is_kept_comes_back_byte_for_byte() -> None:
    with store() as kept:
        beginnings = from_afar(kept.beginnings("engine", "model"))
        one = taken()
        assert beginnings.wants(one.owner, one.tokens, one.size, one.seconds)
        beginnings.keep(one, 0.01)
        found = until_there(beginnings, one.owner, (*one.tokens, 5))
        assert found is not None
        assert (found.start, found.tier) == (len(one.tokens), "memory")
        assert (found.taken.whole == one.whole).all()
        assert [(cells, state.tobytes()) for cells, state in found.taken.parts] == [
            (cells, state.tobytes()) for cells, state in one.parts
        ]
        assert found.taken.conversation == "railway"
        beginnings.put_back(found, 200, 0.01)
        assert until_there(beginnings, "somebody else", (*one.tokens, 5)) is None
        beginnings.flush()
        (listed,) = kept.listed()
        assert (listed.owner, listed.tokens, listed.uses) == ("somebody", 200, 1)


def test_how_long_the_way_back_takes_counts() -> None:
    with store() as kept:
        beginnings = from_afar(kept.beginnings("engine", "model"))
        one, other = taken(), taken(2)
        kept.beginnings("engine", "model").keep(one, 0.01)
        assert beginnings.wants(other.owner, other.tokens, other.size, 1.0)
        for _ in range(20):  # the rate is a mean of many
            found = until_there(beginnings, one.owner, (*one.tokens, 5))
            assert found is not None
            beginnings.put_back(found, 200, 60.0)
        assert not beginnings.wants(other.owner, other.tokens, other.size, 1.0)


def test_no_more_is_sent_than_the_store_wants() -> None:
    with store(memory=PIECE) as kept:
        beginnings = from_afar(kept.beginnings("engine", "model"))
        one = taken()
        assert not beginnings.wants(one.owner, one.tokens, one.size, one.seconds)
        beginnings.keep(one, 0.01)
        beginnings.flush()
        assert kept.listed() == []


def test_jobs_that_left_keep_others_from_nothing() -> None:
    with store() as kept:
        beginnings = from_afar(kept.beginnings("engine", "model"))
        all_of_them = [taken(seed) for seed in range(5)]
        for one in all_of_them:
            kept.beginnings("engine", "model").keep(one, 0.01)
        for one in all_of_them:  # each leaves after it has looked
            beginnings.longest(one.owner, (*one.tokens, 5), 0)
            beginnings.longest(one.owner, (*one.tokens, 5), 0)
        for one in all_of_them:
            assert until_there(beginnings, one.owner, (*one.tokens, 5)) is not None


def test_jobs_that_wait_together_all_find_what_they_look_for() -> None:
    """None takes a job for gone that looked in the same step."""
    with store() as kept:
        beginnings = from_afar(kept.beginnings("engine", "model"))
        waiting = [taken(seed) for seed in range(5)]
        for one in waiting:
            kept.beginnings("engine", "model").keep(one, 0.01)
        end = time.monotonic() + HANG
        while waiting:
            assert time.monotonic() < end
            looked = [beginnings.longest(one.owner, (*one.tokens, 5), 0) for one in waiting]
            waiting = [
                one for one, found in zip(waiting, looked, strict=True) if isinstance(found, Coming)
            ]
            time.sleep(SOON)


def test_what_the_gateway_reads_from_disk_is_not_asked_for_at_every_look() -> None:
    def answer(asked: KeptAsked) -> None:
        times.append(time.monotonic())
        beginnings.answered(KeptAnswered(asked.number, ComingThere()))

    times: list[float] = []
    beginnings = BeginningsAfar(answer)
    one, end = taken(), time.monotonic() + HANG
    while len(times) < 3:
        assert time.monotonic() < end
        assert beginnings.longest(one.owner, (*one.tokens, 5), 0) == Coming()
    assert times[2] - times[0] >= 2 * AGAIN


def test_a_beginning_that_loses_a_piece_is_none() -> None:
    def without_pieces(answered: KeptAnswered) -> None:
        loses = lossy and isinstance(answered.answer, KeptBytes)
        far.answered(KeptAnswered(answered.number, NothingThere()) if loses else answered)

    with store() as kept:
        desk = BeginningsDesk(kept.beginnings("engine", "model"), without_pieces)
        far = BeginningsAfar(desk.ask)
        one, lossy = taken(), False
        kept.beginnings("engine", "model").keep(one, 0.01)
        assert until_there(far, one.owner, (*one.tokens, 5)) is not None
        lossy = True
        assert until_there(far, one.owner, (*one.tokens, 6)) is None


def test_pieces_of_an_offer_that_is_not_there_are_refused() -> None:
    answers: list[KeptAnswered] = []
    desk = BeginningsDesk(NothingKept(), answers.append)
    desk.ask(KeptAsked(1, OfferedBytes(7, np.zeros(3, np.uint8))))
    desk._thread.shutdown()  # noqa: SLF001 - when all is answered
    assert answers == [KeptAnswered(1, NothingThere())]


def test_an_offer_that_contradicts_itself_is_refused() -> None:
    with store() as kept:
        answers: list[KeptAnswered] = []
        desk = BeginningsDesk(kept.beginnings("engine", "model"), answers.append)
        head = msgspec.structs.replace(TakenHead.of(taken()), places=(50,))
        desk.ask(KeptAsked(1, Offer(head, 0.01)))
        desk.ask(KeptAsked(2, OfferedBytes(1, np.zeros(PIECE, np.uint8))))
        desk._thread.shutdown()  # noqa: SLF001 - when all is answered
        assert answers[-1] == KeptAnswered(2, NothingThere())


def test_where_nobody_answers_prompts_are_computed() -> None:
    beginnings = BeginningsAfar(lambda _: None, lost=0.0)
    one = taken()
    assert until_there(beginnings, one.owner, one.tokens) is None
    assert not beginnings.wants(one.owner, one.tokens, one.size, one.seconds)


def test_a_beginning_of_many_gigabytes_has_bounded_pieces() -> None:
    sizes = (5 << 30, 0, 3)
    found = [*pieces(np.broadcast_to(np.uint8(k), size) for k, size in enumerate(sizes))]
    assert max(map(len, found)) == PIECE
    assert sum(map(len, found)) == sum(sizes)
    assert found[-1].tolist() == [2, 2, 2]
