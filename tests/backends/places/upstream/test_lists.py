"""Lists of models and signs of life: a server that says nothing keeps nobody from the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from backends.contract.errors import LoadFailed
from backends.contract.remote import RemoteTarget
from backends.machine.supervision import Supervisor
from backends.places.upstream.fleet import Fleet, Roster
from backends.places.upstream.upstream import Upstream, client_of
from tests.backends.places.upstream.far import Asked, Far, Says, config, far, silent, with_status
from tests.hang import HANG

pytestmark = pytest.mark.anyio


def listing(*names: str) -> Says:
    return with_status(200, msgspec.json.encode({"data": [{"id": name} for name in names]}))


@asynccontextmanager
async def two(**options: Any) -> AsyncIterator[tuple[Far, Far, Upstream]]:
    """One that takes connections and never says a word, one that has a model."""
    async with far(silent) as hole, far(silent) as good:
        hole.lists, good.lists = silent, listing("there")
        settings = config(hole, good, **options)
        async with client_of(settings) as client, asyncio.timeout(HANG):
            yield hole, good, Upstream(settings, client)


async def test_a_silent_server_keeps_no_other_from_being_seen() -> None:
    async with two() as (_, _, upstream):
        fleet, heard = Fleet(Roster({"far": upstream})), asyncio.Event()
        watching = asyncio.ensure_future(fleet.watch(Supervisor(), heard.set))
        await heard.wait()
        assert set(fleet.roster.models()) == {"there"}
        watching.cancel()


async def test_nobody_waits_for_a_server_that_was_silent() -> None:
    async with two() as (hole, good, upstream):
        hole.lists = with_status(503, b"{}")
        await Fleet(Roster({"far": upstream})).refresh()
        assert [one.silent for one in upstream.balance.replicas] == [True, False]

        hole.lists = silent  # whoever asks it now waits for ever
        await Fleet(Roster({"far": upstream})).refresh(0.0)
        assert (hole.listed, good.listed) == (1, 2)


async def test_what_is_asked_for_after_a_load_is_no_list_from_before_its_end() -> None:
    async with far(silent) as one:
        begun, go = asyncio.Event(), asyncio.Event()
        settings = config(one)

        async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
            begun.set()
            await go.wait()
            await listing("before")(asked, writer)

        one.lists = slow
        async with client_of(settings) as client, asyncio.timeout(HANG):
            upstream = Upstream(settings, client)
            (replica,) = upstream.balance.replicas
            watching = asyncio.ensure_future(upstream.lists.refresh(replica, 2.0))
            await begun.wait()
            after = [asyncio.ensure_future(upstream.lists.refresh(replica)) for _ in range(3)]
            sharing = asyncio.ensure_future(upstream.lists.refresh(replica, 2.0))
            await asyncio.sleep(0)  # they wait
            one.lists = listing("after")
            go.set()
            await asyncio.gather(watching, sharing, *after)
            assert list(upstream.lists.offers or ()) == ["after"]
            assert one.listed == 2, "those who wait share one request"


async def test_a_silent_server_is_looked_at_again_until_it_tells() -> None:
    async with two(probe_interval=0.02, refresh=3600.0) as (hole, good, upstream):
        hole.lists = good.lists = with_status(503, b"{}")
        fleet, heard = Fleet(Roster({"far": upstream})), asyncio.Event()
        watching = asyncio.ensure_future(fleet.watch(Supervisor(), heard.set))
        while good.listed < 2:
            await asyncio.sleep(0.01)
        good.lists = listing("there")
        await heard.wait()
        watching.cancel()


@pytest.mark.parametrize(
    ("status", "lives"), [(404, True), (500, True), (401, False), (503, False)]
)
async def test_a_server_without_a_list_lives_all_the_same(status: int, lives: bool) -> None:
    async with two() as (hole, good, upstream):
        hole.lists = good.lists = with_status(status, b"{}")
        try:
            await upstream.lists.alive()
        except LoadFailed:
            assert not lives
        else:
            assert lives


async def test_one_sign_of_life_is_enough() -> None:
    async with two() as (_, _, upstream):
        fleet = Fleet(Roster({"far": upstream}))
        await fleet.load(RemoteTarget(upstream="far", model="there"), lambda _: None)
