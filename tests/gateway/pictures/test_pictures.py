"""All pictures of a conversation: in order, counted, and refused by the name of their part."""

from base64 import b64encode

import anyio
import pytest

from config.settings import ImagesConfig
from gateway.errors import InvalidRequest
from gateway.pictures import Pictures, pictures_in
from gateway.request import ImagePart, Message, TextPart
from tests.gateway.pictures.hosts import RED, Lookups, answer, encoded, hosting

pytestmark = pytest.mark.anyio


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


def showing(*urls: str) -> tuple[Message, ...]:
    """A text and a picture in each message."""
    return tuple(
        Message(role="user", parts=(TextPart("See:"), ImagePart(url), TextPart("?")))
        for url in urls
    )


def test_pictures_are_found_in_order_and_by_name() -> None:
    first, second = showing("data:a", "data:b")
    both = Message(role="user", parts=(ImagePart("data:c"), ImagePart("data:d")))
    assert [(one.param, one.url) for one in pictures_in((first, both, second))] == [
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
        pictures = Pictures(
            ImagesConfig(allow_private_addresses=True), resolver=Lookups(a=["127.0.0.1"])
        )
        images = await pictures.of(pictures_in(showing(*urls)))
    assert [images[url].width for url in urls] == [1, 2, 3]


async def test_a_picture_shown_twice_is_fetched_once() -> None:
    async with hosting({"/": answer(RED)}) as host:
        pictures = Pictures(ImagesConfig(allow_private_addresses=True))
        images = await pictures.of(pictures_in(showing(*2 * [f"http://127.0.0.1:{host.port}/"])))
    assert len(images) == len(host.heads) == 1


async def test_private_addresses_are_refused_unless_allowed() -> None:
    async with hosting({"/": answer(RED)}) as host:
        placed = pictures_in(showing(f"http://127.0.0.1:{host.port}/"))
        with pytest.raises(InvalidRequest, match="address is not allowed"):
            await Pictures(ImagesConfig()).of(placed)
        assert host.heads == []
        images = await Pictures(ImagesConfig(allow_private_addresses=True)).of(placed)
    assert images[placed[0].url].rgb == b"\xff\x00\x00" * 12


@pytest.mark.parametrize(
    ("url", "limits", "reason"),
    [
        ("data:image/png;base64,%", ImagesConfig(), "The image is not valid base64."),
        (data_url(b"text"), ImagesConfig(), "is no picture"),
        (data_url(RED), ImagesConfig(max_bytes=10), "larger than 10 bytes"),
        (data_url(RED), ImagesConfig(max_count=1), "At most 1 images"),
        ("http://a.example/", ImagesConfig(allow_remote=False), "data: URLs only"),
        ("http://127.0.0.1/", ImagesConfig(), "not allowed"),
        ("http://", ImagesConfig(), "URL"),
    ],
)
async def test_a_refusal_names_the_part(url: str, limits: ImagesConfig, reason: str) -> None:
    good = data_url(encoded(size=(1, 1)) if limits.max_bytes > 1000 else b"")
    placed = pictures_in(showing(good, url) if limits.max_bytes > 1000 else showing(url))
    with pytest.raises(InvalidRequest, match=reason) as caught:
        await Pictures(limits).of(placed)
    assert caught.value.param == placed[-1].param


async def test_the_pictures_of_a_request_share_its_pixels() -> None:
    urls = (data_url(encoded(size=size)) for size in ((4, 3), (3, 4), (6, 2)))
    placed = pictures_in(showing(*urls))  # of 12 pixels each
    assert len(await Pictures(ImagesConfig(max_pixels=36)).of(placed)) == 3
    with pytest.raises(InvalidRequest, match="more than 11 pixels, all that are left"):
        await Pictures(ImagesConfig(max_pixels=35)).of(placed)


async def test_one_refusal_stops_the_other_fetches() -> None:
    async with hosting({}) as silent, hosting({"/": answer(b"text")}) as wrong:
        urls = (f"http://a.example:{silent.port}/", f"http://a.example:{wrong.port}/")
        pictures = Pictures(
            ImagesConfig(allow_private_addresses=True), resolver=Lookups(a=["127.0.0.1"])
        )
        with anyio.fail_after(10), pytest.raises(InvalidRequest, match="no picture") as caught:
            await pictures.of(pictures_in(showing(*urls)))
    assert caught.value.param == "messages[1].content[1].image_url"
