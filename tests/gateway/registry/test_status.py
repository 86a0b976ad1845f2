"""What a watcher of the models' states reads."""

import anyio
import pytest

from gateway.registry.status import Changes, Watchers
from tests.hang import HANG

pytestmark = pytest.mark.anyio


async def test_a_slow_reader_finds_each_model_once() -> None:
    changes = Changes()
    for _ in range(1000):
        changes.note("a")
        changes.note("b")
    assert await changes.read() == {"a", "b"}
    changes.note("a")
    assert await changes.read() == {"a"}


async def test_the_end_comes_after_what_was_noted_and_for_who_comes_later() -> None:
    watchers = Watchers()
    with watchers.watching() as changes, anyio.fail_after(HANG):
        watchers.note("a")
        watchers.end()
        assert await changes.read() == {"a"}
        assert await changes.read() == frozenset()
    with watchers.watching() as late, anyio.fail_after(HANG):
        assert len(watchers) == 1
        assert await late.read() == frozenset()
    assert len(watchers) == 0
