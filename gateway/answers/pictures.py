"""The pictures of a conversation: references in, decoded pictures out, under limits.

    loader = ImageLoader(config.images)
    placed = images_in(request.messages)
    async with loader.fetched(placed) as album:     # as they were sent: before a model is there
        async with album.decoded() as images:       # by URL: when it is

Both raise InvalidRequest, which names the part. No model is known here: whether it can see is
checked before.

Until their model is there pictures are kept as they were sent, which takes a hundredth of the
memory. What all requests together keep is bounded, encoded (in bytes) and decoded (in pixels).
Files are untrusted input to a decoder: few formats are tried, in a worker thread, and the size is
checked before any pixel is decoded.

Pictures behind URLs come from public addresses only, or a client could make the server fetch what
only the server reaches: other machines of its network, its loopback, a cloud's metadata
(server-side request forgery).
"""

import asyncio
import binascii
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from io import BytesIO
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from socket import SOCK_STREAM
from typing import TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

import anyio
import httpx
import msgspec
from anyio import to_thread
from PIL import Image as Pillow
from PIL import ImageOps

from backends.contract.protocol import Image, Pixels
from config.settings import ImagesConfig
from gateway.terms.errors import GatewayError, InvalidRequest, QueueFull
from gateway.terms.request import ImagePart, Message, Part
from gateway.terms.tasks import Signal

__all__ = ["Album", "ImageLoader", "images_in", "with_data"]

Address: TypeAlias = IPv4Address | IPv6Address
Judge: TypeAlias = Callable[[Address], bool]  # whether a picture may come from there

# Addresses that aren't public though IANA's registries of special-purpose addresses (RFC 6890), as
# Python has them, say nothing against them, or say that some protocol's are.
NOT_PUBLIC: Mapping[IPv4Network | IPv6Network, str] = {
    IPv4Network("168.63.129.16/32"): "Azure's wire server: metadata and DNS of a machine",
    IPv4Network("192.0.0.0/24"): "protocol assignments (RFC 6890); Oracle's metadata",
    IPv4Network("192.88.99.0/24"): "relays from IPv6 (RFC 7526)",
    IPv4Network("224.0.0.0/4"): "multicast (RFC 5771)",
    IPv6Network("2001::/23"): "protocol assignments (RFC 2928)",
    IPv6Network("3fff::/20"): "documentation (RFC 9637)",
}
# All that is assigned for global use (RFC 4291, section 2.4); the rest is special or unassigned.
GLOBAL_UNICAST = IPv6Network("2000::/3")

# What an IPv6-only network translates to IPv4: the last 32 bits (RFC 6052, section 2.1).
TRANSLATED = IPv6Network("64:ff9b::/96")
# The half of an IPv6 address before the IPv4 one, where ISATAP tunnels to it (RFC 5214, 6.1).
TUNNELLED = (0x0000_5EFE, 0x0200_5EFE)


def is_public(address: Address) -> bool:
    """Whether `address` is reachable from the public internet.

    An IPv6 address that carries IPv4 ones is as public as those.
    """
    if isinstance(address, IPv6Address):
        if carried := _carried(address):
            return all(map(is_public, carried))
        if address not in GLOBAL_UNICAST:
            return False
    return address.is_global and not any(address in network for network in NOT_PUBLIC)


def anywhere(address: Address) -> bool:  # noqa: ARG001 - the shape of a judge
    """For servers whose clients may fetch from private addresses."""
    return True


def _carried(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses inside: mapped (RFC 4291), 6to4 (RFC 3056), Teredo's server and client
    (RFC 4380), translated, tunnelled.
    """
    last = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in TRANSLATED or (int(address) >> 32) & 0xFFFF_FFFF in TUNNELLED:
        return (last,)
    return ()


class ImageRefused(Exception):
    """A picture can't be used. The message completes "The image …", and `ImageLoader` adds which
    one. A client reads it: it has nothing of our network.
    """


class Quota:
    """A number of bytes or pixels that all requests share. A request for more than is left waits in
    line; one for more than the whole quota, until all of it is free.
    """

    def __init__(self, total: int) -> None:
        self._total = self._left = total
        self._line = anyio.Lock()  # first come, first served
        self._given_back = Signal()

    def apply(self, total: int) -> None:
        """There is so much from now on; what was taken stays taken."""
        self._left += total - self._total
        self._total = total
        self._given_back.give()

    async def take(self, amount: int) -> None:
        """Returns when it is available. The caller gives back what it took."""
        if amount == 0:
            return
        async with self._line:
            while self._left < min(amount, self._total):
                await self._given_back.wait()
            self._left -= amount

    def take_now(self, amount: int) -> bool:
        """Whether there was so much left; nothing is taken otherwise."""
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def give_back(self, amount: int) -> None:
        """Without an await, so that no cancellation loses it."""
        self._left += amount
        self._given_back.give()


# `data:` URLs (RFC 2397): the bytes they carry. The media type is ignored: the first bytes decide.


# From the URL-safe alphabet to the usual one (RFC 4648, sections 5 and 4).
USUAL = bytes.maketrans(b"-_", b"+/")


def carried(url: str, max_bytes: int) -> bytes:
    """What a `data:` URL holds. Raises ImageRefused for a broken one, or more than `max_bytes`."""
    head, comma, text = url.partition(",")
    if not comma:
        raise ImageRefused("is not a valid data: URL: it has no comma")
    if len(text) > 4 * max_bytes:  # the longest writing: base64 with every character escaped
        raise ImageRefused(f"is larger than {max_bytes:,} bytes")
    data = unquote_to_bytes(text)
    if head.lower().endswith(";base64"):
        data = _decoded(data)
    if len(data) > max_bytes:
        raise ImageRefused(f"is larger than {max_bytes:,} bytes")
    return data


def data_url(data: bytes) -> str:
    """A `data:` URL of a picture whose header has been read."""
    with Pillow.open(BytesIO(data), formats=FORMATS) as picture:
        kind = Pillow.MIME[picture.format or "PNG"]
    return f"data:{kind};base64,{b64encode(data).decode()}"


def _decoded(text: bytes) -> bytes:
    """Line breaks and missing padding are forgiven: clients send both."""
    packed = b"".join(text.split()).translate(USUAL).rstrip(b"=")
    try:
        return b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise ImageRefused("is not valid base64") from error


FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # what browsers and chat frontends send
DEEP = "I;16"  # modes of 16-bit grey begin so; converted directly, all but black would be white


def pixels_of(data: bytes, most: int) -> int:
    """The number of pixels by the header; none is decoded.

    Raises ImageRefused for what is no picture, or has more than `most` pixels.
    """
    with _opened(data, most) as picture:
        return picture.width * picture.height


def decode(data: bytes, most: int) -> Image:
    """The picture as it is meant to be seen: upright, on white, of an animation the first frame.

    Raises ImageRefused for what is no picture, is broken, or has more than `most` pixels.
    """
    with _opened(data, most) as picture:
        upright = ImageOps.exif_transpose(picture)
        flat = _on_white(upright)
        return Image(flat.width, flat.height, Pixels(flat.tobytes()))


@contextmanager
def _opened(data: bytes, most: int) -> Iterator[Pillow.Image]:
    """The picture with its header read. Raises ImageRefused, also for what happens in the body."""
    try:
        with Pillow.open(BytesIO(data), formats=FORMATS) as picture:
            _refuse_large(picture, most)
            yield picture
    except ImageRefused:
        raise
    except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
        raise _large(most) from error
    except Exception as error:  # decoders of broken files raise nearly anything
        raise ImageRefused(f"is not a readable image (supported: {', '.join(FORMATS)})") from error


def _refuse_large(picture: Pillow.Image, most: int) -> None:
    if picture.width * picture.height > most:
        raise _large(most)


def _large(most: int) -> ImageRefused:
    return ImageRefused(f"has more than {most:,} pixels, all that are left for it")


def _on_white(picture: Pillow.Image) -> Pillow.Image:
    if picture.mode.startswith(DEEP):
        return picture.convert("I").point(lambda level: level / 256).convert("L").convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    sheet = Pillow.new("RGBA", picture.size, "white")
    sheet.alpha_composite(picture.convert("RGBA"))
    return sheet.convert("RGB")


SCHEMES = ("http", "https")
# `identity`: a compressed body could unpack to any size.
HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "roundhouse"}


# Resolves a host's name, for a port. Raises OSError where there is none.
HostLookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """The addresses as the machine knows them, best first."""
    found = await anyio.getaddrinfo(host, port, type=SOCK_STREAM)
    return tuple(dict.fromkeys(sockaddr[0] for *_, sockaddr in found))


class Fetching(msgspec.Struct):
    """Fetches one picture after the other; keeps no connection open.

    Every hop is resolved once, its addresses are checked, and the connection goes to an address
    that was checked: a name that means something else a moment later (DNS rebinding) gains nothing.
    The URL is rewritten to that address; the name stays in the Host header and in TLS, where it is
    verified. Proxies of the environment are not used: they would resolve names themselves.
    """

    limits: ImagesConfig
    judge: Judge
    resolver: HostLookup
    tls: ssl.SSLContext | None

    async def bytes_of(self, url: str) -> bytes:
        """Raises ImageRefused, also when the limits' `timeout` has passed."""
        try:
            with anyio.fail_after(self.limits.timeout):
                return await self._followed(_parsed(url))
        except TimeoutError as error:
            raise ImageRefused(
                f"took longer than {self.limits.timeout:g} seconds to arrive"
            ) from error

    async def _followed(self, url: httpx.URL) -> bytes:
        for _ in range(self.limits.max_redirects + 1):
            async with self._response(url) as response:
                if not response.has_redirect_location:
                    return await self._body(response)
                url = _parsed(response.headers["location"], url)
        raise ImageRefused(f"is behind more than {self.limits.max_redirects} redirects")

    @asynccontextmanager
    async def _response(self, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        """The answer to one GET, its body still to be read."""
        addresses = await self._addresses(url)
        patience = httpx.Timeout(None, connect=self.limits.timeout / len(addresses))
        if self.tls is None:  # once, beside the event loop: there are many certificates
            self.tls = await to_thread.run_sync(httpx.create_ssl_context)
        transport = httpx.AsyncHTTPTransport(verify=self.tls, trust_env=False)
        async with (
            httpx.AsyncClient(
                transport=transport, trust_env=False, timeout=patience, headers=HEADERS
            ) as client,
            aclosing(await _first_answer(client, url, addresses)) as response,
        ):
            try:
                yield response
            except httpx.HTTPError as error:
                raise ImageRefused("broke off while it was fetched") from error

    async def _addresses(self, url: httpx.URL) -> Sequence[Address]:
        """Where the host of `url` is. One address that is refused refuses them all: a legitimate
        name doesn't mix them.
        """
        host = _name(url)
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
            found = [ip_address(text) for text in await self.resolver(host, port)]
        except (OSError, ValueError, UnicodeError) as error:
            raise ImageRefused("can't be fetched: its host is unknown") from error
        if not found:
            raise ImageRefused("can't be fetched: its host is unknown")
        if not all(map(self.judge, found)):
            raise ImageRefused("can't be fetched: its address is not allowed")
        return found

    async def _body(self, response: httpx.Response) -> bytes:
        if response.status_code != httpx.codes.OK:
            raise ImageRefused(f"can't be fetched: its host answered {response.status_code}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ImageRefused("can't be fetched: its host sends it compressed")
        max_bytes, body = self.limits.max_bytes, bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                raise ImageRefused(f"is larger than {max_bytes:,} bytes")
        return bytes(body)


def _parsed(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """`text`, by itself or as `base` redirects to it."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        usable = url.scheme in SCHEMES and bool(url.raw_host)
    except (httpx.InvalidURL, ValueError) as error:
        raise ImageRefused("has no valid URL") from error
    if not usable:
        raise ImageRefused("can't be fetched: its URL is not http: or https:")
    return url


def _name(url: httpx.URL) -> str:
    """The host as DNS and TLS know it: ASCII, without brackets."""
    return url.raw_host.decode("ascii")


async def _first_answer(
    client: httpx.AsyncClient, url: httpx.URL, addresses: Sequence[Address]
) -> httpx.Response:
    """From the first address that accepts a connection."""
    failure: httpx.HTTPError | None = None
    for place in addresses:
        request = client.build_request(
            "GET",
            url.copy_with(host=str(place)),
            headers={"host": url.netloc.decode("ascii")},
            extensions={"sni_hostname": _name(url)},
        )
        try:
            return await client.send(request, stream=True, follow_redirects=False)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            failure = error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ImageRefused("can't be fetched: its host doesn't answer as it should") from error
    raise ImageRefused("can't be fetched: its host can't be reached") from failure


S = TypeVar("S")
T = TypeVar("T")

DECODERS = 2  # pictures of all requests that are decoded side by side: each may take much memory
RETRY = 5.0  # seconds after which pictures that found no room may be sent again


def images_in(messages: Sequence[Message]) -> tuple[ImagePart, ...]:
    """In the order in which the conversation shows them, each with the field that holds it."""
    return tuple(
        ImagePart(part.url, part.field or f"messages[{turn}].content[{place}].image_url")
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

    placed: ImagePart
    data: bytes
    pixels: int


class Album(msgspec.Struct, frozen=True):
    """The pictures of one request, fetched and not yet decoded."""

    pictures: Sequence[Fetched]
    decoders: Executor
    pixels: Quota

    async def as_data(self) -> Mapping[str, str]:
        """`data:` URLs by URL, for servers that can't fetch."""
        loop = asyncio.get_running_loop()
        return {
            one.placed.url: await loop.run_in_executor(self.decoders, data_url, one.data)
            for one in self.pictures
        }

    @asynccontextmanager
    async def decoded(self) -> AsyncIterator[Mapping[str, Image]]:
        """By URL, as long as the context lasts. Waits while others' pictures take all pixels.

        Raises InvalidRequest for a picture that is broken behind its header.
        """
        need = sum(one.pixels for one in self.pictures)
        await self.pixels.take(need)
        images: dict[str, Image] = {}
        last: Future[Image] | None = None
        try:
            for one in self.pictures:
                last = self.decoders.submit(decode, one.data, one.pixels)
                try:
                    images[one.placed.url] = await asyncio.wrap_future(last)
                except ImageRefused as refused:
                    raise _invalid(refused, one.placed) from refused
            yield images
        finally:
            images.clear()
            _when_ended(last, lambda: self.pixels.give_back(need))


class ImageLoader:
    """One per server; holds nothing open between requests."""

    def __init__(
        self,
        limits: ImagesConfig,
        resolver: HostLookup = system_resolver,
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
    async def fetched(self, placed: Sequence[ImagePart]) -> AsyncIterator[Album]:
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

        async def collect(one: ImagePart) -> None:
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
            except (ImageRefused, QueueFull) as error:
                failures.append(_invalid(error, one) if isinstance(error, ImageRefused) else error)
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

    def _refuse_many(self, placed: Sequence[ImagePart]) -> None:
        most = self._limits.max_count
        if len(placed) > most:
            raise InvalidRequest(
                f"At most {most} images are taken in one request, this one has {len(placed)}.",
                param=placed[most].field,
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


def _invalid(refused: ImageRefused, placed: ImagePart) -> InvalidRequest:
    return InvalidRequest(f"The image {refused}.", param=placed.field)


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
