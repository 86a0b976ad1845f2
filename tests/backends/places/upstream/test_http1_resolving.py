"""Names are looked up apart: what can't be resolved delays nothing else."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from backends.places.upstream.http1 import Http1Transport, Resolver
from tests.backends.places.upstream.far import far, with_status
from tests.hang import HANG

pytestmark = pytest.mark.anyio

SILENT = 12  # names; the event loop's own resolver has four threads


class NameServer:
    """Knows `localhost`; of other names nothing is heard until `over`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.over = threading.Event()

    def look_up(self, host: str) -> tuple[str, ...]:
        self.asked.append(host)
        if host == "localhost":
            return ("127.0.0.1",)
        self.over.wait(HANG)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture
def names() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.over.set()


async def test_names_that_hang_keep_no_other_waiting(names: NameServer) -> None:
    transport = Http1Transport(None, most=4, idle=30.0, resolver=Resolver(names.look_up))
    async with (
        far(with_status(200, b"{}")) as one,
        httpx.AsyncClient(transport=transport, timeout=HANG) as client,
        asyncio.TaskGroup() as tasks,
    ):
        hanging = [tasks.create_task(failing(client, f"http://{k}.invalid")) for k in range(SILENT)]
        while len(names.asked) < SILENT:
            await asyncio.sleep(0)
        got = await client.post(one.url.replace("127.0.0.1", "localhost"))
        assert got.status_code == 200
        assert not any(task.done() for task in hanging)
        names.over.set()


async def failing(client: httpx.AsyncClient, url: str) -> None:
    with pytest.raises(httpx.ConnectError) as caught:
        await client.get(url)
    assert isinstance(caught.value.__cause__, socket.gaierror)


async def test_a_name_is_looked_up_once_for_all_and_again_when_its_time_is_over(
    names: NameServer,
) -> None:
    now = [0.0]
    resolver = Resolver(names.look_up, lambda: now[0])
    for clock, looked_up in ((0.0, 1), (29.0, 1), (31.0, 2)):
        now[0] = clock
        found = await asyncio.gather(*(resolver.addresses("localhost") for _ in range(3)))
        assert found == [("127.0.0.1",)] * 3
        assert len(names.asked) == looked_up
    assert await resolver.addresses("::1") == ("::1",)


async def test_who_gives_up_leaves_the_look_up_to_the_others(names: NameServer) -> None:
    resolver = Resolver(names.look_up)
    one, other = (asyncio.ensure_future(resolver.addresses("x.invalid")) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    names.over.set()
    with pytest.raises(socket.gaierror):
        await other
    assert one.cancelled()
    assert names.asked == ["x.invalid"]


async def test_a_name_whose_servers_are_silent_is_an_error_in_time(names: NameServer) -> None:
    transport = Http1Transport(None, most=4, idle=30.0, resolver=Resolver(names.look_up))
    async with httpx.AsyncClient(transport=transport, timeout=0.01) as client:
        await failing(client, "http://x.invalid")
