"""Boxes that announce themselves: leases, by a clock that is set by hand."""

from typing import cast

import anyio
import pytest

from config.upstreams import UpstreamConfig
from gateway.reconfiguring.joining import MOST_BOXES, Announcement, Announcements, Boxes, checked
from gateway.reconfiguring.reloading import Reloader
from gateway.terms.errors import InvalidRequest, QueueFull

HERE = Announcement(url="http://here:8000/v1", name="joined", key="k" * 16)
THERE = Announcement(url="http://there:8000/v1", name="joined")


def test_boxes_of_a_name_are_replicas_with_their_keys() -> None:
    boxes = Boxes()
    assert boxes.announce(0.0, HERE)
    assert boxes.announce(1.0, THERE)
    (upstream,) = boxes.upstreams()
    assert (upstream.name, upstream.urls) == ("joined", (HERE.url, THERE.url))
    assert upstream.keys == ("k" * 16, "")
    assert boxes.announce(2.0, Announcement(url="http://far:1/v1", name="other"))
    assert [one.name for one in boxes.upstreams()] == ["joined", "other"]


def test_a_lease_is_renewed_by_the_same_call_and_ends_without() -> None:
    boxes = Boxes()
    boxes.announce(0.0, HERE)
    boxes.announce(0.0, THERE)
    assert not boxes.announce(20.0, HERE), "nothing has changed but its end"
    assert boxes.next_end() == 30.0
    assert boxes.end(29.9) == []
    assert boxes.end(30.0) == [THERE]
    assert [one.urls for one in boxes.upstreams()] == [(HERE.url,)]
    assert boxes.leases(40.0) == {("joined", HERE.url): 10.0}
    assert boxes.end(50.0) == [HERE]
    assert (boxes.upstreams(), boxes.next_end()) == ((), None)


def test_a_box_that_withdraws_is_gone_at_once() -> None:
    boxes = Boxes()
    boxes.announce(0.0, HERE)
    assert boxes.withdraw("joined", HERE.url)
    assert not boxes.withdraw("joined", HERE.url)
    assert boxes.upstreams() == ()


def test_another_key_is_a_change() -> None:
    boxes = Boxes()
    boxes.announce(0.0, HERE)
    assert boxes.announce(1.0, Announcement(url=HERE.url, name="joined", key="l" * 16))


def test_replicas_have_one_prefix() -> None:
    boxes = Boxes()
    boxes.announce(0.0, HERE)
    with pytest.raises(InvalidRequest, match="prefix"):
        boxes.announce(0.0, Announcement(url=THERE.url, name="joined", prefix="b/"))


def test_there_are_so_many_at_most() -> None:
    boxes = Boxes()
    for number in range(MOST_BOXES):
        boxes.announce(0.0, Announcement(url=f"http://box{number}/v1", name="joined"))
    with pytest.raises(QueueFull):
        boxes.announce(0.0, HERE)
    assert not boxes.announce(0.0, Announcement(url="http://box0/v1", name="joined"))


@pytest.mark.parametrize(
    ("param", "box"),
    [
        ("url", Announcement(url="ftp://here", name="a")),
        ("url", Announcement(url="http://user:secret@here", name="a")),
        ("url", Announcement(url="http://here?x", name="a")),
        ("url", Announcement(url="", name="a")),
        ("name", Announcement(url="http://here", name="")),
        ("name", Announcement(url="http://here", name="n" * 65)),
        ("prefix", Announcement(url="http://here", name="a", prefix="\n")),
        ("key", Announcement(url="http://here", name="a", key="env:HOME")),
        ("key", Announcement(url="http://here", name="a", key="x" * 20 + "\r\nhost: b")),
        ("lease", Announcement(url="http://here", name="a", lease=0.1)),
        ("lease", Announcement(url="http://here", name="a", lease=1e9)),
        ("lease", Announcement(url="http://here", name="a", lease=float("nan"))),
    ],
)
def test_what_can_t_be_announced_names_its_field(param: str, box: Announcement) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked(box)
    assert refused.value.param == param


def test_an_address_is_made_whole() -> None:
    assert checked(Announcement(url="http://here:9/", name="a")).url == "http://here:9/v1"


class SlowReloader:
    """Puts in force what it is given when it is let. Stands in for `Reloader`."""

    def __init__(self) -> None:
        self.asked, self.let = anyio.Event(), anyio.Event()
        self.in_force: tuple[UpstreamConfig, ...] = ()

    async def announce(self, upstreams: tuple[UpstreamConfig, ...]) -> None:
        self.asked.set()
        await self.let.wait()
        self.in_force = upstreams


@pytest.mark.anyio
async def test_a_box_that_leaves_while_it_is_put_in_force_is_in_force_all_the_same() -> None:
    reloader = SlowReloader()
    announcements = Announcements(cast(Reloader, reloader))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(announcements.announce, Announcement(url="http://a:1/v1", name="boxes"))
        await reloader.asked.wait()
        tasks.cancel_scope.cancel()
        reloader.let.set()
    assert [upstream.name for upstream in reloader.in_force] == ["boxes"]
