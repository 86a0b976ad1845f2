"""A stream's writer and its comments share one connection: never at once, never after the end."""

import asyncio
from typing import Any

import anyio
import pytest

from gateway.http.sse import BARE, EventStream
from gateway.registry import Waiting
from tests.hang import HANG

pytestmark = pytest.mark.anyio
NEWS = Waiting(model="a", position=1, stage="queued")
NEVER = 1e9


class Client:
    """Takes messages as uvicorn does: in order, one at a time where `gate` is shut, none after the
    end.
    """

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.gate.set()
        self.taken: list[Any] = []
        self.sending = 0

    async def send(self, message: Any) -> None:
        assert not self.sending, "two messages at once"
        self.sending += 1
        await self.gate.wait()
        self.sending -= 1
        assert self.taken[-1:] != ["end"], "a message after the end"
        if message["type"] == "http.response.start":
            self.taken.append("start")
        elif message["body"]:
            self.taken.append(message["body"].decode().strip())
        if not message.get("more_body", True):
            self.taken.append("end")


async def turns() -> None:
    """Let everybody else run for a while."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def test_a_comment_never_comes_after_the_end() -> None:
    client = Client()
    events = EventStream(client.send, {}, 0.0, patience=0.0)
    async with anyio.create_task_group() as tasks:
        await events.begin()
        client.gate = anyio.Event()  # the client reads nothing for a while
        tasks.start_soon(events.end, b"data: [DONE]\n\n")
        events.wait(NEWS)
        async with events.with_comments():
            await turns()
            client.gate.set()
            await turns()
    assert client.taken == ["start", "data: [DONE]", "end"]


@pytest.mark.parametrize("began", [True, False])
async def test_what_comes_while_a_comment_is_sent_waits_for_it(began: bool) -> None:
    client = Client()
    events = EventStream(client.send, {}, NEVER, patience=0.0)
    async with anyio.create_task_group() as tasks:
        if began:
            await events.begin()
        client.gate = anyio.Event()
        events.wait(NEWS)

        async def answer() -> None:
            await events.begin()
            await events.write(b"one")
            await events.end(b"two")

        async with events.with_comments():
            await turns()
            tasks.start_soon(answer)
            await turns()
            client.gate.set()
            await turns()
    assert client.taken == ["start", ": queued for a, position 1", "one", "two", "end"]


async def test_news_of_the_wait_end_where_the_answer_begins() -> None:
    client = Client()
    events = EventStream(client.send, {}, NEVER, patience=0.0)
    events.wait(NEWS)
    await events.begin()
    async with events.with_comments():
        await turns()
    assert client.taken == ["start"]


async def test_no_task_for_comments_is_left_behind_an_answer() -> None:
    events = EventStream(Client().send, {}, NEVER)
    before = asyncio.all_tasks()
    async with events.with_comments():
        await turns()
    assert asyncio.all_tasks() == before
    events.wait(NEWS)  # harmless when it is over


async def test_a_report_of_the_wait_does_not_wait_for_the_first_comment() -> None:
    client = Client()
    events = EventStream(client.send, {}, NEVER, report_wait=lambda _news: b"loading")
    async with events.with_comments():
        events.wait(NEWS)
        await turns()
    assert client.taken == ["start", "loading"]


async def test_a_comment_that_the_client_does_not_read_is_given_up_with_the_answer() -> None:
    client = Client()
    client.gate = anyio.Event()
    events = EventStream(client.send, {}, NEVER, patience=0.0)
    events.wait(NEWS)
    with anyio.fail_after(HANG), anyio.CancelScope() as scope:
        async with events.with_comments():
            await turns()
            assert client.sending
            scope.cancel()
            await anyio.sleep_forever()
    assert not client.taken


async def test_a_silence_says_what_is_waited_for_where_that_is_known() -> None:
    client = Client()
    events = EventStream(client.send, {}, 0.0, patience=0.0)
    await events.begin()
    said = ["reading 6,614 tokens for another request", ""]
    events.says = lambda: said.pop(0) if said else ""
    async with events.with_comments():
        await turns()
    assert client.taken[:2] == ["start", ": reading 6,614 tokens for another request"]
    assert client.taken[2].startswith(":")
    assert "reading" not in client.taken[2]


async def test_a_comment_that_is_due_begins_no_stream_that_fails() -> None:
    """Whoever raises before the stream began answers with a status."""
    client = Client()
    events = EventStream(client.send, {}, NEVER, patience=NEVER, report_wait=lambda _news: b"wait")

    async def refuse() -> None:
        async with events.with_comments():
            await turns()
            events.wait(NEWS)
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        await refuse()
    assert not client.taken
    assert not events.began


async def test_a_stream_that_any_reader_may_get_has_no_comments() -> None:
    client = Client()
    events = EventStream(client.send, {}, 0.0, framing=BARE, patience=0.0)
    await events.begin()
    events.wait(NEWS)
    async with events.with_comments():
        await turns()
    assert client.taken == ["start"]


@pytest.mark.parametrize(("quiet", "taken"), [(0.0, ["start", ": still here"]), (NEVER, [])])
async def test_an_answer_that_does_not_begin_for_long_begins_with_a_comment(
    quiet: float, taken: list[str]
) -> None:
    client = Client()
    events = EventStream(client.send, {}, quiet, patience=0.0)
    async with events.with_comments():
        await turns()
    assert client.taken[:2] == taken
