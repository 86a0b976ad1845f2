"""What is supervised fails for itself: it is counted, and begun again."""

import anyio
import pytest

from backends.machine.supervision import Supervisor
from tests.hang import HANG

pytestmark = pytest.mark.anyio


async def test_what_fails_is_begun_again_and_counted_until_it_ends() -> None:
    supervisor, begun = Supervisor(rest=0.0), list[int]()

    async def work(name: str) -> None:
        begun.append(len(begun))
        if len(begun) < 4:
            raise ExceptionGroup(name, [ValueError(name)])

    with anyio.fail_after(HANG):
        await supervisor.keep("disks", work, "one")
    assert (len(begun), supervisor.failures) == (4, {"disks": 3})


async def test_one_attempt_says_whether_it_went_well() -> None:
    supervisor = Supervisor()

    async def work(*, ok: bool) -> None:
        if not ok:
            raise OSError("no such device")

    assert await supervisor.attempt("disks", lambda: work(ok=True))
    assert not await supervisor.attempt("disks", lambda: work(ok=False))
    assert supervisor.failures == {"disks": 1}


async def test_who_is_cancelled_is_not_kept() -> None:
    supervisor = Supervisor(rest=0.0)
    with anyio.move_on_after(0.01) as over:
        await supervisor.keep("disks", anyio.sleep_forever)
    assert over.cancelled_caught
    assert not supervisor.failures.total()
