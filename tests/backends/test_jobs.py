"""What a mailbox promises whoever reads it, and whoever its pieces are offered to first."""

import asyncio
from collections.abc import Callable

import anyio
import pytest

from backends.engine_thread import Questions, question
from backends.errors import GenerationFailed
from backends.jobs import JobOutputs, Mailbox
from backends.protocol import Ended, Piece

pytestmark = pytest.mark.anyio

ENDED = Ended(cause="end_token", prompt_tokens=1, cached_tokens=0, completion_tokens=3)


class Reader:
    """Reads a mailbox to its end, and takes the pieces offered while it is `free`."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.free = True
        self.taken: list[str] = []
        self.read: list[str] = []
        self.said: list[str] = []  # both, in the order in which they came
        self._outputs = JobOutputs(mailbox, lambda: None)
        self._outputs.offer(self.take)

    def take(self, piece: Piece) -> bool:
        if self.free:
            self.taken.append(piece.text)
            self.said.append(piece.text)
        return self.free

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


async def test_an_engine_s_error_comes_behind_what_was_said() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    reader = Reader(mailbox)
    mailbox.put(Piece("a"))
    mailbox.put(GenerationFailed("broken"))
    with pytest.raises(GenerationFailed):
        await reader.run()
    assert reader.said == ["a"]


async def test_a_question_of_someone_who_left_is_not_carried_out() -> None:
    done: list[str] = []
    is_ready = False
    questions, loop = Questions(), asyncio.get_running_loop()

    def call(function: Callable[[], None]) -> None:
        loop.call_soon(function)

    def ask(name: str) -> "asyncio.Future[object]":
        asked, answer = question(loop, call, lambda: done.append(name), lambda: is_ready)
        questions.join(asked)
        return answer

    left, stays = ask("left"), ask("stays")
    questions.answer_ready()
    left.cancel()
    questions.answer_ready()
    assert done == []
    is_ready = True
    questions.answer_ready()
    await stays
    assert done == ["stays"]
    assert not questions
