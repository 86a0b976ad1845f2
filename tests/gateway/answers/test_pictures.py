"""All pictures of a conversation: in order, counted, and refused by the name of their part."""

import tracemalloc
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import anyio
import pytest

from backends.contract.protocol import Image
from config.settings import ImagesConfig
from gateway.answers.pictures import ImageLoader, Quota, images_in
from gateway.terms.errors import InvalidRequest, QueueFull
from gateway.terms.request import ImagePart, Message, TextPart
from tests.gateway.answers.picture_hosts import RED, Lookups, answer, encoded, hosting
from tests.hang import HANG

pytestmark = pytest.mark.anyio


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


def showing(*urls: str) -> tuple[Message, ...]:
    """A text and a picture in each message."""
    return tuple(
        Message(role="user", parts=(TextPart("See:"), ImagePart(url), TextPart("?")))
        for url in urls
    )


async def shown_by(pictures: ImageLoader, placed: Sequence[ImagePart]) -> Mapping[str, Image]:
    """All of them, fetched and decoded."""
    async with pictures.fetched(placed) as album, album.decoded() as images:
        return dict(images)


def test_pictures_are_found_in_order_and_by_name() -> None:
    first, second = showing("data:a", "data:b")
    both = Message(role="user", parts=(ImagePart("data:c"), ImagePart("data:d")))
    assert [(one.field, one.url) for one in images_in((first, both, second))] == [
        ("messages[0].content[1].image_url", "data:a"),
        ("messages[1].content[0].image_url", "data:c"),
        ("messages[1].content[1].image_url", "data:d"),
        ("messages[2].content[1].image_url", "data:b"),
    ]


async def test_pictures_come_from_wherever_they_are() -> None:
    async with hosting({"/": answer(encoded(size=(2, 2)))}) as host:
        urls = (
            data_url(encoded(size=(1, 1))),
            f"http://a.example:{host.port}/",
            data_url(encoded(size=(3, 3))),
        )
        pictures = ImageLoader(
            ImagesConfig(allow_private_addresses=True), resolver=Lookups(a=["127.0.0.1"])
        )
        images = await shown_by(pictures, images_in(showing(*urls)))
    assert [images[url].width for url in urls] == [1, 2, 3]


async def test_a_picture_shown_twice_is_fetched_once() -> None:
    async with hosting({"/": answer(RED)}) as host:
        pictures = ImageLoader(ImagesConfig(allow_private_addresses=True))
        images = await shown_by(
            pictures, images_in(showing(*2 * [f"http://127.0.0.1:{host.port}/"]))
        )
    assert len(images) == len(host.heads) == 1


async def test_private_addresses_are_refused_unless_allowed() -> None:
    async with hosting({"/": answer(RED)}) as host:
        placed = images_in(showing(f"http://127.0.0.1:{host.port}/"))
        with pytest.raises(InvalidRequest, match="address is not allowed"):
            await shown_by(ImageLoader(ImagesConfig()), placed)
        assert host.heads == []
        images = await shown_by(ImageLoader(ImagesConfig(allow_private_addresses=True)), placed)
    assert images[placed[0].url].rgb == b"\xff\x00\x00" * 12


@pytest.mark.parametrize(
    ("url", "limits", "reason"),
    [
        ("data:image/png;base64,%", ImagesConfig(), "The image is not valid base64."),
        (data_url(b"text"), ImagesConfig(), "is not a readable image"),
        (data_url(RED), ImagesConfig(max_bytes=10), "larger than 10 bytes"),
        (data_url(RED), ImagesConfig(max_count=1), "At most 1 images"),
        ("http://a.example/", ImagesConfig(allow_remote=False), "data: URLs only"),
        ("http://127.0.0.1/", ImagesConfig(), "not allowed"),
        ("http://", ImagesConfig(), "URL"),
    ],
)
async def test_a_refusal_names_the_part(url: str, limits: ImagesConfig, reason: str) -> None:
    good = data_url(encoded(size=(1, 1)) if limits.max_bytes > 1000 else b"")
    placed = images_in(showing(good, url) if limits.max_bytes > 1000 else showing(url))
    with pytest.raises(InvalidRequest, match=reason) as caught:
        await shown_by(ImageLoader(limits), placed)
    assert caught.value.param == placed[-1].field


async def test_the_pictures_of_a_request_share_its_pixels() -> None:
    urls = (data_url(encoded(size=size)) for size in ((4, 3), (3, 4), (6, 2)))
    placed = images_in(showing(*urls))  # of 12 pixels each
    assert len(await shown_by(ImageLoader(ImagesConfig(max_pixels=36)), placed)) == 3
    with pytest.raises(InvalidRequest, match="more than 11 pixels, all that are left"):
        await shown_by(ImageLoader(ImagesConfig(max_pixels=35)), placed)


async def test_one_refusal_stops_the_other_fetches() -> None:
    async with hosting({}) as silent, hosting({"/": answer(b"text")}) as wrong:
        urls = (f"http://a.example:{silent.port}/", f"http://a.example:{wrong.port}/")
        pictures = ImageLoader(
            ImagesConfig(allow_private_addresses=True), resolver=Lookups(a=["127.0.0.1"])
        )
        with (
            anyio.fail_after(HANG),
            pytest.raises(InvalidRequest, match="not a readable image") as caught,
        ):
            await shown_by(pictures, images_in(showing(*urls)))
    assert caught.value.param == "messages[1].content[1].image_url"


async def test_what_is_broken_behind_its_header_is_refused_by_name() -> None:
    whole = encoded(size=(64, 64))
    placed = images_in(showing(data_url(RED), data_url(whole[: len(whole) - 40])))
    pictures = ImageLoader(ImagesConfig())
    async with pictures.fetched(placed) as album:
        with pytest.raises(InvalidRequest, match="not a readable image") as caught:
            async with album.decoded():
                pass
    assert caught.value.param == placed[1].field


async def test_pictures_of_waiting_requests_are_kept_as_they_were_sent() -> None:
    """A picture of 25 megapixels takes 75 MB when it is decoded, and a thousandth of it before."""
    huge = encoded(size=(5_000, 5_000), color="red")
    placed = images_in(showing(data_url(huge)))
    pictures = ImageLoader(ImagesConfig(max_held_pixels=1))  # decoded one at a time
    tracemalloc.start()
    try:
        async with AsyncExitStack() as waiting:
            for _ in range(12):
                await waiting.enter_async_context(pictures.fetched(placed))
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 70_000_000


async def test_decoded_pixels_are_shared_by_all_requests_in_turn() -> None:
    placed = images_in(showing(data_url(encoded(size=(4, 3)))))
    pictures = ImageLoader(ImagesConfig(max_held_pixels=24))
    shown = anyio.Event()

    async def third() -> None:
        await shown_by(pictures, placed)
        shown.set()

    async with AsyncExitStack() as first, anyio.create_task_group() as tasks:
        async with AsyncExitStack() as second:
            for held in (first, second):
                album = await held.enter_async_context(pictures.fetched(placed))
                await held.enter_async_context(album.decoded())
            tasks.start_soon(third)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert not shown.is_set()
        with anyio.fail_after(HANG):
            await shown.wait()


async def test_who_leaves_the_line_for_pixels_or_has_had_them_leaves_nothing_behind() -> None:
    placed = images_in(showing(data_url(encoded(size=(4, 3)))))
    pictures = ImageLoader(ImagesConfig(max_held_pixels=12))
    async with pictures.fetched(placed) as album:
        async with album.decoded():
            with anyio.move_on_after(0.01):
                await shown_by(pictures, placed)
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with album.decoded():
                pass
    with anyio.fail_after(HANG):
        assert len(await shown_by(pictures, placed)) == 1


async def test_more_bytes_than_all_requests_may_keep_are_refused_and_given_back() -> None:
    data = encoded(size=(4, 3))
    placed = images_in(showing(data_url(data)))
    pictures = ImageLoader(ImagesConfig(max_held_bytes=len(data)))
    for _ in range(2):
        async with pictures.fetched(placed):
            with pytest.raises(QueueFull, match="max_held_bytes") as full:
                await shown_by(pictures, placed)
            assert full.value.retry_after
    assert len(await shown_by(pictures, placed)) == 1


async def test_who_wants_more_than_there_is_waits_until_nobody_has_any() -> None:
    quota, order = Quota(10), []

    async def take(amount: int) -> None:
        await quota.take(amount)
        order.append(amount)

    await take(3)
    async with anyio.create_task_group() as tasks:
        for amount in (20, 1):  # the small one doesn't go first, or the large one never would
            tasks.start_soon(take, amount)
            await anyio.wait_all_tasks_blocked()
        assert order == [3]
        quota.give_back(3)
        await anyio.wait_all_tasks_blocked()
        assert order == [3, 20]
        quota.give_back(20)
    assert order == [3, 20, 1]
