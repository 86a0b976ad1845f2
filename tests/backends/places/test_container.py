"""What a mailbox promises whoever reads it, and whoever its pieces are offered to first."""

import asyncio
import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from weakref import ref

import anyio
import pytest

from backends.contract.errors import GenerationFailed
from backends.contract.messages import Failure
from backends.contract.protocol import Ended, Output, Piece
from backends.places.container import JobOutputs, Mailbox, Mailboxes

pytestmark = pytest.mark.anyio

ENDED = Ended(cause="end_token", prompt_tokens=1, cached_tokens=0, completion_tokens=3)


@contextmanager
def several(count: int) -> Iterator[tuple[Mailboxes, list[Mailbox]]]:
    """The mailboxes of the jobs 0, 1, ..."""
    mailboxes = Mailboxes()
    with ExitStack() as held:
        yield mailboxes, [held.enter_context(mailboxes.opened(key)) for key in range(count)]


class Reader:
    """Reads a mailbox to its end, and takes the pieces offered while it is `free`."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.free = True
        self.taken: list[str] = []
        self.sent: list[str] = []  # as much of it as is on its way
        self.read: list[str] = []
        self.said: list[str] = []  # both, in the order in which they came
        self._outputs = JobOutputs(mailbox, lambda: None)
        self._outputs.offer(self.take, self.flush)

    def take(self, piece: Piece) -> bool:
        if self.free:
            self.taken.append(piece.text)
            self.said.append(piece.text)
        return self.free

    def flush(self) -> None:
        self.sent = list(self.taken)

    async def run(self) -> None:
        async for output in self._outputs:
            if isinstance(output, Piece):
                self.read.append(output.text)
                self.said.append(output.text)


async def test_a_piece_is_offered_first_only_to_who_waits_and_comes_in_order() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    reader = Reader(mailbox)
    mailbox.put(Piece("a"))  # nobody waits yet
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await anyio.wait_all_tasks_blocked()
        mailbox.put(Piece("b"))
        mailbox.put(Piece("c"))
        reader.free = False
        mailbox.put(Piece("d"))
        reader.free = True
        mailbox.put(Piece("e"))  # "d" has not been read: it goes before
        await anyio.wait_all_tasks_blocked()
        mailbox.put(Piece("f"))
        mailbox.put(ENDED)
    assert reader.taken == ["b", "c", "f"]
    assert reader.read == ["a", "de"]
    assert "".join(reader.said) == "abcdef"


async def test_who_fails_to_take_a_piece_hears_of_it_alone() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    reader = Reader(mailbox)

    def broken(piece: Piece) -> bool:
        raise ZeroDivisionError(piece.text)

    mailbox.take = broken
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(ZeroDivisionError, match="a"):
                await reader.run()

        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        mailbox.put(Piece("a"))
        mailbox.put(Piece("b"))  # in the same step; the answer has a hole before it
        mailbox.put(ENDED)
    assert reader.said == []


async def test_what_is_taken_is_sent_when_all_of_the_step_is_there() -> None:
    with several(2) as (mailboxes, each):
        first, second = readers = [Reader(mailbox) for mailbox in each]
        unsent: list[tuple[str, ...]] = []

        def watched() -> None:
            unsent.append((*first.taken, *second.taken, *first.sent, *second.sent))
            first.flush()

        each[0].flush = watched
        async with anyio.create_task_group() as tasks:
            for reader in readers:
                tasks.start_soon(reader.run)
            await anyio.wait_all_tasks_blocked()
            mailboxes.deliver([*enumerate(map(Piece, "ab")), (0, ENDED), (1, ENDED)])
            assert unsent[0] == ("a", "b")
            assert [reader.sent for reader in readers] == [["a"], ["b"]]


async def test_what_comes_for_a_reader_that_is_gone_keeps_nothing_from_the_others() -> None:
    with several(1) as (mailboxes, (mailbox,)):
        reader = Reader(mailbox)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.run)
            await anyio.wait_all_tasks_blocked()
            mailboxes.deliver([(7, Piece("a")), (0, Piece("b")), (7, ENDED), (0, ENDED)])
        assert reader.sent == ["b"]


BROKEN = Failure.of(GenerationFailed("broken"))


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        pytest.param((), ZeroDivisionError, id="nothing"),
        pytest.param((ENDED,), ZeroDivisionError, id="the end"),
        pytest.param((Piece("z"), ENDED), ZeroDivisionError, id="what was not taken"),
        pytest.param((BROKEN,), GenerationFailed, id="another error"),
    ],
)
@pytest.mark.parametrize("place", range(3))
async def test_who_fails_to_send_hears_of_it_alone_whatever_else_the_step_brought(
    place: int, behind: Sequence[Output | Failure], told: type[Exception]
) -> None:
    with several(3) as (mailboxes, each):
        readers = [Reader(mailbox) for mailbox in each]
        broken, failing = each[place], readers[place]

        def flush() -> None:
            raise ZeroDivisionError

        broken.flush = flush
        broken.take = lambda piece: piece.text != "z" and failing.take(piece)

        async def run() -> None:
            with pytest.raises(told):
                await failing.run()

        async with anyio.create_task_group() as tasks:
            for reader in readers:
                tasks.start_soon(run if reader is failing else reader.run)
            await anyio.wait_all_tasks_blocked()
            step: list[Output | Failure] = [Piece("a"), *behind]
            sound = [key for key in range(3) if key != place]
            begun = [(key, Piece("a")) for key in sound]
            mailboxes.deliver([*begun[:place], *((place, one) for one in step), *begun[place:]])
            mailboxes.deliver([(key, Piece("b")) for key in sound])
            mailboxes.deliver([(key, ENDED) for key in sound])
        assert failing.read == []
        assert [reader.sent for reader in readers if reader is not failing] == [["a", "b"]] * 2


async def test_an_engine_s_error_comes_behind_what_was_said() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    reader = Reader(mailbox)
    mailbox.put(Piece("a"))
    mailbox.put(Failure.of(GenerationFailed("broken")))
    with pytest.raises(GenerationFailed):
        await reader.run()
    assert reader.said == ["a"]


@pytest.mark.parametrize("last", [ENDED, Failure("GenerationFailed", "it broke")])
async def test_the_end_of_a_job_keeps_nothing_of_its_reader(last: Output | Failure) -> None:
    """Which has all of an answer. Full collections of garbage are rare."""
    gc.disable()
    try:
        with several(1) as (mailboxes, (mailbox,)):
            reader = Reader(mailbox)
            mailboxes.deliver([(0, Piece("a")), (0, last)])
            if last is ENDED:
                await reader.run()
            else:
                with pytest.raises(GenerationFailed):
                    await reader.run()
        kept = ref(reader)
        del reader
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("beside", "tokens", "accepted", "pace"),
    [(False, 41, 0, 20.0), (False, 41, 20, 10.0), (True, 41, 0, None), (False, 10, 0, None)],
)
async def test_how_fast_a_model_is_tells_an_answer_that_was_computed_alone(
    beside: bool, tokens: int, accepted: int, pace: float | None
) -> None:
    """By its steps; those that are guessed take none."""
    ended = Ended(
        cause="max_tokens",
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=tokens,
        accepted_tokens=accepted,
        decode=2.0,
    )
    mailboxes = Mailboxes()
    with mailboxes.opened(1) as mailbox, ExitStack() as held:
        if beside:
            held.enter_context(mailboxes.opened(2))
        mailbox.put(ended)
    assert mailboxes.pace == pace
