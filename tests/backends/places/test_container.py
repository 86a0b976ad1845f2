"""What a mailbox promises whoever reads it."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from weakref import ref

import anyio
import pytest

from backends.contract.errors import GenerationFailed
from backends.contract.messages import Failure
from backends.contract.protocol import Ended, Output, Piece
from backends.places.container import Mailbox, Mailboxes

pytestmark = pytest.mark.anyio

NOTHING: Callable[[], None] = lambda: None  # nobody is to be told to finish
ENDED = Ended(cause="end_token", prompt_tokens=1, cached_tokens=0, completion_tokens=3)


@contextmanager
def several(count: int) -> Iterator[tuple[Mailboxes, list[Mailbox]]]:
    """The mailboxes of the jobs 0, 1, ..."""
    mailboxes = Mailboxes()
    with ExitStack() as held:
        yield (
            mailboxes,
            [held.enter_context(mailboxes.opened(key, NOTHING)) for key in range(count)],
        )


class Reader:
    """Reads a mailbox to its end."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.said: list[str] = []
        self._mailbox = mailbox

    async def run(self) -> None:
        async for output in self._mailbox:
            if isinstance(output, Piece):
                self.said.append(output.text)


async def test_pieces_come_in_order_and_joined_where_nobody_waited() -> None:
    mailbox = Mailbox(asyncio.get_running_loop(), NOTHING)
    reader = Reader(mailbox)
    mailbox.put(Piece("a"))  # nobody waits yet
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await anyio.wait_all_tasks_blocked()
        mailbox.put(Piece("b"))
        await anyio.wait_all_tasks_blocked()
        mailbox.put(Piece("c"))
        mailbox.put(Piece("d"))
        mailbox.put(ENDED)
    assert reader.said == ["a", "b", "cd"]


async def test_what_comes_for_a_reader_that_is_gone_keeps_nothing_from_the_others() -> None:
    with several(1) as (mailboxes, (mailbox,)):
        reader = Reader(mailbox)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.run)
            await anyio.wait_all_tasks_blocked()
            mailboxes.deliver([(7, Piece("a")), (0, Piece("b")), (7, ENDED), (0, ENDED)])
        assert reader.said == ["b"]


async def test_an_engine_s_error_comes_behind_what_was_said() -> None:
    mailbox = Mailbox(asyncio.get_running_loop(), NOTHING)
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
    with mailboxes.opened(1, NOTHING) as mailbox, ExitStack() as held:
        if beside:
            held.enter_context(mailboxes.opened(2, NOTHING))
        mailbox.put(ended)
    assert mailboxes.pace == pace
