"""Answers that run in the background: read along by anybody at any time, and not too many; and
those that others poll while a request of their own runs.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from backends.machine.supervision import Supervisor
from gateway.http.detached import (
    BACKGROUND,
    POLLED,
    Abortable,
    BackgroundAnswer,
    Bounds,
    DetachedAnswers,
    Polled,
    PolledAnswer,
    PolledAnswers,
)
from gateway.terms.errors import QueueFull
from tests.hang import HANG

pytestmark = pytest.mark.anyio


def run(name: str = "r") -> BackgroundAnswer:
    return BackgroundAnswer("owner", name, lambda: b"{}")


def store(most: int = BACKGROUND.running) -> DetachedAnswers[BackgroundAnswer]:
    return DetachedAnswers(Bounds(BACKGROUND.kind, most))


async def test_readers_come_at_any_time_and_get_all_from_where_they_want() -> None:
    one, found = run(), {}

    async def read(start: int) -> None:
        place = await one.place_once_there(start)
        found[start] = b"".join([frames async for frames in one.read(place)])

    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, 0)
            one.take(b"data: 0\n\ndata: 1\n\n")
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(read, 1)
            await anyio.lowlevel.checkpoint()
            one.take(b"data: 2\n\n")
            one.end()
        await read(2)
        await read(9)
    everything = b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert found == {0: everything, 1: everything[9:], 2: everything[18:], 9: b""}
    assert one.sent() == everything


async def test_a_run_is_its_owners_and_gone_when_it_is_over() -> None:
    everything, one, going = store(), run(), anyio.Event()
    async with everything.running(Supervisor()):
        with everything.admitted(one):
            everything.begin(one, going.wait)
        assert everything.find("owner", "r") is one
        assert everything.find("other", "r") is None
        going.set()
        with anyio.fail_after(HANG):
            await one.ended.wait()
        assert everything.find("owner", "r") is None


async def test_no_more_than_so_many_and_a_failed_beginning_gives_its_place_back() -> None:
    everything = store(most=1)
    with pytest.raises(OSError, match="full"):
        with everything.admitted(run("a")):
            raise OSError("the disk is full")
    with everything.admitted(run("b")), pytest.raises(QueueFull):
        with everything.admitted(run("c")):
            pass


async def test_the_servers_end_ends_them() -> None:
    everything, one = store(), run()
    async with everything.running(Supervisor()):
        with everything.admitted(one):
            everything.begin(one, anyio.sleep_forever)
    assert one.ended.is_set()


async def leaves(wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Who waits so has come to no end, and is cancelled."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_reader_that_leaves_while_it_waits_takes_nothing_from_the_others() -> None:
    one, found = run(), []

    async def read() -> None:
        found.extend([frames async for frames in one.read(await one.place_once_there(1))])

    async def read_all() -> None:
        found.extend([frames async for frames in one.read()])

    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for wait in (one.begun, lambda: one.place_once_there(1), read_all):
                await leaves(wait)
            one.take(b"data: 0\n\n")
            one.take(b"data: 1\n\n")
            one.end()
    assert found == [b"data: 1\n\n"]


async def test_what_fails_before_it_begins_is_told_to_who_waits_for_it() -> None:
    one, everything = run(), store()

    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise OSError("the disk is full")

    async with everything.running(Supervisor()):
        everything.collect(one, broken)
        with anyio.fail_after(HANG), pytest.raises(OSError, match="full"):
            await one.begun()
    assert everything.find("owner", "r") is None


def polled(name: str, *texts: str, owner: str = "owner") -> PolledAnswer:
    return PolledAnswer(owner, name, lambda: Polled(texts, stop_reason=len(texts)))


async def test_the_newest_texts_that_are_over_are_kept() -> None:
    everything = PolledAnswers()
    for number in range(POLLED.over + 2):
        with everything.admitted(polled(f"{number}", f"text {number}")):
            pass
    assert everything.texts("owner", "1") == ()
    assert everything.texts("owner", "2") == ("text 2",)
    with everything.admitted(polled("long", "x" * POLLED.over_bytes)):
        assert everything.texts("owner", "2") == ("text 2",)
    assert everything.texts("owner", "2") == ()
    assert everything.texts("owner", "long") == ("x" * POLLED.over_bytes,)
    with everything.admitted(polled("long")):
        pass  # it said nothing: the text before is not its text
    assert everything.texts("owner", "long") == ()


async def test_of_a_shared_name_the_newest_is_read_and_all_are_ended() -> None:
    everything, both = PolledAnswers(), [polled("n", "first"), polled("n", "second")]
    with everything.admitted(both[0]), everything.admitted(both[1]):
        assert everything.texts("owner", "n") == ("second",)
        assert everything.texts("other", "n") == ()
        assert not everything.abort("other", "n")
        assert everything.abort("owner", "n")
        assert [one.scope.cancel_called for one in both] == [True, True]
    assert everything.texts("owner", "n") == ("first",)  # it ended last
    assert not everything.abort("owner", "n")
    assert everything.counts == {"owner": 2}
    assert everything.last("owner") == Polled(stop_reason=1)


async def test_whose_client_leaves_is_over_and_what_it_said_is_kept() -> None:
    everything, one = PolledAnswers(), polled("n", "so far")

    async def endless(_scope: Any, _receive: Any, _send: Any) -> None:
        await anyio.sleep_forever()

    answered = Abortable(endless, everything, one, bytes, media_type=b"")

    async def none(*_: Any) -> Any:
        raise AssertionError("nothing is sent to who has left")

    with anyio.fail_after(HANG):
        await leaves(lambda: answered({"type": "http"}, none, none))  # type: ignore[arg-type]
    assert one.ended.is_set()
    assert everything.texts("owner", "n") == ("so far",)
