"""All pictures of a conversation: counted, fetched side by side, decoded in threads."""

import ssl
from collections.abc import Mapping, Sequence

import anyio
import msgspec
from anyio import CapacityLimiter, to_thread

from backends.protocol import Image
from config.settings import ImagesConfig
from gateway.errors import InvalidRequest
from gateway.pictures.addresses import anywhere, is_public
from gateway.pictures.data_url import carried
from gateway.pictures.decoding import decode
from gateway.pictures.fetching import Fetching, Resolver, system_resolver
from gateway.pictures.refused import Refused
from gateway.request import ImagePart, Message

DECODERS = 2  # pictures of all requests that are decoded side by side: each may take much memory


class Placed(msgspec.Struct, frozen=True):
    """A picture's reference, and the field of the request that holds it."""

    param: str
    url: str


def pictures_in(messages: Sequence[Message]) -> tuple[Placed, ...]:
    """In the order in which the conversation shows them."""
    return tuple(
        Placed(f"messages[{turn}].content[{place}].image_url", part.url)
        for turn, message in enumerate(messages)
        for place, part in enumerate(message.parts)
        if isinstance(part, ImagePart)
    )


class Sheet:
    """The pixels one request may take. Its pictures come one after the other, each from what the
    ones before left.
    """

    def __init__(self, pixels: int, decoders: CapacityLimiter) -> None:
        self._left = pixels
        self._decoders = decoders
        self._turn = anyio.Lock()

    async def developed(self, data: bytes) -> Image:
        """Raises Refused."""
        async with self._turn:
            image = await to_thread.run_sync(decode, data, self._left, limiter=self._decoders)
            self._left -= image.width * image.height
            return image


class Pictures:
    """One per server; holds nothing open between requests."""

    def __init__(
        self,
        limits: ImagesConfig,
        resolver: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: whose certificates are trusted; None: the usual authorities'."""
        self._limits = limits
        judge = anywhere if limits.allow_private_addresses else is_public
        self._fetching = Fetching(limits, judge, resolver, tls)
        self._decoders = CapacityLimiter(DECODERS)

    async def of(self, placed: Sequence[Placed]) -> Mapping[str, Image]:
        """By URL: a picture shown twice is fetched once. Waits for hosts and threads.

        Raises InvalidRequest, and then fetches no more.
        """
        self._refuse_many(placed)
        images: dict[str, Image] = {}
        refusals: list[InvalidRequest] = []
        sheet = Sheet(self._limits.max_pixels, self._decoders)

        async def collect(one: Placed) -> None:
            try:
                images[one.url] = await sheet.developed(await self._data(one.url))
            except Refused as refused:
                refusals.append(InvalidRequest(f"The image {refused}.", param=one.param))
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for one in {one.url: one for one in reversed(placed)}.values():
                tasks.start_soon(collect, one)
        if refusals:
            raise refusals[0]
        return images

    def _refuse_many(self, placed: Sequence[Placed]) -> None:
        most = self._limits.max_count
        if len(placed) > most:
            raise InvalidRequest(
                f"At most {most} images are taken in one request, this one has {len(placed)}.",
                param=placed[most].param,
            )

    async def _data(self, url: str) -> bytes:
        if url.startswith("data:"):
            return await to_thread.run_sync(
                carried, url, self._limits.max_bytes, limiter=self._decoders
            )
        if not self._limits.allow_remote:
            raise Refused("can't be fetched: this server takes images as data: URLs only")
        return await self._fetching.bytes_of(url)
