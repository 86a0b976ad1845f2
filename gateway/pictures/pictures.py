"""All pictures of a conversation: counted, fetched side by side, decoded when their model is there.

Until then they are kept as they were sent, which takes a hundredth of the memory. What all requests
together keep is bounded, encoded and decoded.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio
import msgspec

from backends.protocol import Image
from config.settings import ImagesConfig
from gateway.errors import GatewayError, InvalidRequest, QueueFull
from gateway.pictures.addresses import anywhere, is_public
from gateway.pictures.decoding import carried, data_url, decode, pixels_of
from gateway.pictures.fetching import Fetching, Resolver, system_resolver
from gateway.pictures.quota import ImageRefused, Quota
from gateway.request import ImagePart, Message, Part

S = TypeVar("S")
T = TypeVar("T")

DECODERS = 2  # pictures of all requests that are decoded side by side: each may take much memory
RETRY = 5.0  # seconds after which pictures that found no room may be sent again


class PlacedImage(msgspec.Struct, frozen=True):
    """A picture's reference, and the field of the request that holds it."""

    param: str
    url: str


def images_in(messages: Sequence[Message]) -> tuple[PlacedImage, ...]:
    """In the order in which the conversation shows them."""
    return tuple(
        PlacedImage(part.field or f"messages[{turn}].content[{place}].image_url", part.url)
        for turn, message in enumerate(messages)
        for place, part in enumerate(message.parts)
        if isinstance(part, ImagePart)
    )


def with_data(messages: Sequence[Message], data: Mapping[str, str]) -> tuple[Message, ...]:
    """`messages`, whose pictures are the `data:` URLs that stand for theirs."""

    def part(one: Part) -> Part:
        return ImagePart(data[one.url], one.field) if isinstance(one, ImagePart) else one

    return tuple(
        msgspec.structs.replace(message, parts=tuple(map(part, message.parts)))
        for message in messages
    )


class Fetched(msgspec.Struct, frozen=True):
    """A picture as it was sent, and the number of pixels by its header."""

    placed: PlacedImage
    data: bytes
    pixels: int


class Album:
    """The pictures of one request, fetched and not yet decoded."""

    def __init__(self, pictures: Sequence[Fetched], decoders: Executor, pixels: Quota) -> None:
        self._pictures = pictures
        self._decoders = decoders
        self._pixels = pixels

    async def as_data(self) -> Mapping[str, str]:
        """`data:` URLs by URL, for servers that can't fetch."""
        loop = asyncio.get_running_loop()
        return {
            one.placed.url: await loop.run_in_executor(self._decoders, data_url, one.data)
            for one in self._pictures
        }

    @asynccontextmanager
    async def decoded(self) -> AsyncIterator[Mapping[str, Image]]:
        """By URL, as long as the context lasts. Waits while others' pictures take all pixels.

        Raises InvalidRequest for a picture that is broken behind its header.
        """
        need = sum(one.pixels for one in self._pictures)
        await self._pixels.take(need)
        images: dict[str, Image] = {}
        last: Future[Image] | None = None
        try:
            for one in self._pictures:
                last = self._decoders.submit(decode, one.data, one.pixels)
                try:
                    images[one.placed.url] = await asyncio.wrap_future(last)
                except ImageRefused as refused:
                    raise _invalid(refused, one.placed) from refused
            yield images
        finally:
            images.clear()
            _when_ended(last, lambda: self._pixels.give_back(need))


class ImageLoader:
    """One per server; holds nothing open between requests."""

    def __init__(
        self,
        limits: ImagesConfig,
        resolver: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: whose certificates are trusted; None: the usual authorities'."""
        self._resolver, self._tls = resolver, tls
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="pictures")
        self._bytes = Quota(limits.max_held_bytes)
        self._pixels = Quota(limits.max_held_pixels)
        self.apply(limits)

    def apply(self, limits: ImagesConfig) -> None:
        """From the next picture on."""
        self._limits = limits
        judge = anywhere if limits.allow_private_addresses else is_public
        self._fetching = Fetching(limits, judge, self._resolver, self._tls)
        self._bytes.apply(limits.max_held_bytes)
        self._pixels.apply(limits.max_held_pixels)

    @asynccontextmanager
    async def fetched(self, placed: Sequence[PlacedImage]) -> AsyncIterator[Album]:
        """All of them, as long as the context lasts: a picture shown twice is fetched once.

        Their headers have been read: what is no picture or too large raises InvalidRequest, and
        then no more are fetched. Raises QueueFull where others' pictures leave no room.
        """
        self._refuse_many(placed)
        wanted = {one.url: one for one in reversed(placed)}.values()
        found: dict[str, Fetched] = {}
        failures: list[GatewayError] = []
        turn = anyio.Lock()
        held, left = 0, self._limits.max_pixels

        async def collect(one: PlacedImage) -> None:
            nonlocal held, left
            try:
                data = await self._data(one.url)
                if not self._bytes.take_now(len(data)):
                    raise _full(self._limits)
                held += len(data)
                async with turn:  # each has what the ones before left
                    pixels = await self._beside(pixels_of, data, left)
                    left -= pixels
                found[one.url] = Fetched(one, data, pixels)
            except ImageRefused as refused:
                failures.append(_invalid(refused, one))
                tasks.cancel_scope.cancel()
            except QueueFull as full:
                failures.append(full)
                tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                for one in wanted:
                    tasks.start_soon(collect, one)
            if failures:
                raise failures[0]
            yield Album(tuple(found.values()), self._decoders, self._pixels)
        finally:
            self._bytes.give_back(held)

    def _refuse_many(self, placed: Sequence[PlacedImage]) -> None:
        most = self._limits.max_count
        if len(placed) > most:
            raise InvalidRequest(
                f"At most {most} images are taken in one request, this one has {len(placed)}.",
                param=placed[most].param,
            )

    async def _data(self, url: str) -> bytes:
        if url.startswith("data:"):
            return await self._beside(carried, url, self._limits.max_bytes)
        if not self._limits.allow_remote:
            raise ImageRefused("can't be fetched: this server takes images as data: URLs only")
        return await self._fetching.bytes_of(url)

    async def _beside(self, work: Callable[[S, int], T], what: S, most: int) -> T:
        """In a thread of the decoders. A cancelled caller doesn't wait for it."""
        return await asyncio.wrap_future(self._decoders.submit(work, what, most))


def _invalid(refused: ImageRefused, placed: PlacedImage) -> InvalidRequest:
    return InvalidRequest(f"The image {refused}.", param=placed.param)


def _full(limits: ImagesConfig) -> QueueFull:
    return QueueFull(
        f"The images of all requests take more than {limits.max_held_bytes:,} bytes "
        "(images.max_held_bytes); try again later.",
        retry_after=RETRY,
    )


def _when_ended(last: Future[Image] | None, give_back: Callable[[], None]) -> None:
    """A thread whose caller has left still needs its memory until it ends."""
    if last is None or last.done():
        give_back()
        return
    loop = asyncio.get_running_loop()

    def ended(_: Future[Image]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the quota is not used any more
            loop.call_soon_threadsafe(give_back)

    last.add_done_callback(ended)
