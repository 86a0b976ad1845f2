"""Pictures behind URLs: fetched from where they may be, and no more than the limits say."""

import ssl
from collections.abc import Sequence

import anyio
import pytest

from config.settings import ImagesConfig
from gateway.answers.pictures import Address, Fetching, HostLookup, ImageRefused, system_resolver
from tests.gateway.answers.picture_hosts import (
    CERTIFICATE,
    RED,
    Lookups,
    answer,
    hosting,
    redirect,
)
from tests.hang import HANG

pytestmark = pytest.mark.anyio
PUBLIC = "127.0.0.1"  # stands for the internet in these tests
PRIVATE = "127.0.0.2"


def judge(address: Address) -> bool:
    return str(address) == PUBLIC


def fetching(
    resolver: HostLookup,
    limits: ImagesConfig = ImagesConfig(),
    tls: ssl.SSLContext | None = None,
) -> Fetching:
    return Fetching(limits, judge, resolver, tls)


async def test_a_picture_is_fetched_under_its_own_name() -> None:
    async with hosting({"/red.png?size=1": answer(RED)}) as host:
        url = f"http://pictures.example:{host.port}/red.png?size=1#top"
        assert await fetching(Lookups(pictures=[PUBLIC])).bytes_of(url) == RED
    assert host.header("host") == f"pictures.example:{host.port}"
    assert host.header("accept-encoding") == "identity"


async def test_tls_is_asked_for_and_verified_by_name() -> None:
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    lookups = Lookups(pictures=[PUBLIC], other=[PUBLIC])
    async with hosting({"/": answer(RED)}, secure=True) as host:
        fetched = fetching(lookups, tls=trusting).bytes_of(f"https://pictures.example:{host.port}/")
        assert await fetched == RED
        assert host.server_names == ["pictures.example"]
        with pytest.raises(ImageRefused, match="can't be reached"):
            await fetching(lookups, tls=trusting).bytes_of(f"https://other.example:{host.port}/")
        with pytest.raises(ImageRefused, match="can't be reached"):
            await fetching(lookups).bytes_of(f"https://pictures.example:{host.port}/")
    assert len(host.heads) == 1


async def test_a_name_is_looked_up_once_so_it_can_t_mean_something_else_later() -> None:
    lookups = Lookups(rebinding=[PUBLIC, PRIVATE])
    async with hosting({"/": answer(RED)}) as host:
        assert await fetching(lookups).bytes_of(f"http://rebinding.example:{host.port}/") == RED
    assert lookups.asked == ["rebinding.example"]


@pytest.mark.parametrize("addresses", [PRIVATE, f"{PUBLIC} {PRIVATE}", "::1", "::ffff:127.0.0.2"])
async def test_one_address_that_is_not_allowed_refuses_the_name(addresses: str) -> None:
    async with hosting({"/": answer(RED)}) as host:
        with pytest.raises(ImageRefused, match="not allowed") as caught:
            await fetching(Lookups(inner=[addresses])).bytes_of(
                f"http://inner.example:{host.port}/"
            )
    assert host.heads == []
    assert "127" not in str(caught.value)


@pytest.mark.parametrize(
    "written", ["127.0.0.2", "127.2", "0x7f000002", "2130706434", "[::1]", "[::ffff:7f00:2]"]
)
async def test_an_address_is_judged_however_it_is_written(written: str) -> None:
    with pytest.raises(ImageRefused, match=r"not allowed|unknown"):
        await fetching(system_resolver).bytes_of(f"http://{written}/")


async def test_redirects_are_followed() -> None:
    async with hosting({"/b/c.png": answer(RED), "/a": redirect("/b/c.png")}) as host:
        answers = {"/": redirect(f"http://second.example:{host.port}/a")}
        async with hosting(answers) as first:
            lookups = Lookups(first=[PUBLIC], second=[PUBLIC])
            url = f"http://first.example:{first.port}/"
            assert await fetching(lookups).bytes_of(url) == RED
    assert lookups.asked == ["first.example", "second.example", "second.example"]
    assert host.header("host") == f"second.example:{host.port}"


async def test_a_redirect_to_where_pictures_may_not_come_from_is_refused() -> None:
    async with hosting({"/": answer(RED)}, PRIVATE) as inner:
        async with hosting({"/": redirect(f"http://inner.example:{inner.port}/")}) as outer:
            lookups = Lookups(outer=[PUBLIC], inner=[PRIVATE])
            with pytest.raises(ImageRefused, match="not allowed"):
                await fetching(lookups).bytes_of(f"http://outer.example:{outer.port}/")
    assert inner.heads == []


async def test_a_name_that_moves_between_redirects_is_judged_again() -> None:
    async with hosting({"/": redirect("/again"), "/again": answer(RED)}) as host:
        lookups = Lookups(moving=[PUBLIC, PRIVATE])
        with pytest.raises(ImageRefused, match="not allowed"):
            await fetching(lookups).bytes_of(f"http://moving.example:{host.port}/")
    assert len(host.heads) == 1


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("file:///etc/passwd", "not http: or https:"),
        ("ftp://a.example/", "not http: or https:"),
        ("data:,x", "doesn't answer as it should"),
        ("//[/", "unknown"),
    ],
)
async def test_a_redirect_leads_to_other_hosts_only(location: str, reason: str) -> None:
    async with hosting({"/": redirect(location)}) as host:
        with pytest.raises(ImageRefused, match=reason):
            await fetching(Lookups(a=[PUBLIC])).bytes_of(f"http://a.example:{host.port}/")


async def test_redirects_have_an_end() -> None:
    async with hosting({"/": redirect("/")}) as host:
        with pytest.raises(ImageRefused, match="more than 2 redirects"):
            await fetching(Lookups(a=[PUBLIC]), ImagesConfig(max_redirects=2)).bytes_of(
                f"http://a.example:{host.port}/"
            )
    assert len(host.heads) == 3


LONG = b"x" * 100_001
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n186a1\r\n" + LONG + b"\r\n0\r\n\r\n"
)
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n" + LONG  # its end is the end of the connection


@pytest.mark.parametrize(
    "sent", [answer(LONG), CHUNKED, ENDLESS], ids=["declared", "chunked", "open"]
)
async def test_the_size_is_counted_as_it_comes(sent: bytes) -> None:
    async with hosting({"/": sent}) as host:
        lookups, url = Lookups(a=[PUBLIC]), f"http://a.example:{host.port}/"
        enough = ImagesConfig(max_bytes=len(LONG))
        assert await fetching(lookups, enough).bytes_of(url) == LONG
        with pytest.raises(ImageRefused, match="larger than 100,000 bytes"):
            await fetching(lookups, ImagesConfig(max_bytes=100_000)).bytes_of(url)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (answer(b"", status="404 Not Found"), "answered 404"),
        (answer(b"", status="204 No Content"), "answered 204"),
        (answer(b"", "Content-Encoding: gzip"), "compressed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "broke off"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "doesn't answer as it should"),
    ],
)
async def test_hosts_that_don_t_give_a_picture(sent: bytes, reason: str) -> None:
    async with hosting({"/": sent}) as host:
        with pytest.raises(ImageRefused, match=reason):
            await fetching(Lookups(a=[PUBLIC])).bytes_of(f"http://a.example:{host.port}/")


async def test_a_silent_host_is_given_up() -> None:
    async with hosting({}) as host:
        with pytest.raises(ImageRefused, match=r"longer than 0\.05 seconds"):
            await fetching(Lookups(a=[PUBLIC]), ImagesConfig(timeout=0.05)).bytes_of(
                f"http://a.example:{host.port}/"
            )


async def test_a_slow_lookup_counts_too() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(ImageRefused, match="longer than"):
        await fetching(never, ImagesConfig(timeout=0.01)).bytes_of("http://a.example/")


async def test_the_next_address_is_tried() -> None:
    async with hosting({"/": answer(RED)}) as host:
        deaf = "127.0.0.3"  # the host listens on another one
        anywhere = Fetching(
            ImagesConfig(), lambda _: True, Lookups(a=[f"{deaf} {PUBLIC}"], b=[deaf]), None
        )
        assert await anywhere.bytes_of(f"http://a.example:{host.port}/") == RED
        with pytest.raises(ImageRefused, match="can't be reached"):
            await anywhere.bytes_of(f"http://b.example:{host.port}/")


async def test_an_unknown_name() -> None:
    for url in ("http://nowhere.example/", f"http://{'a' * 70}.example/"):
        with pytest.raises(ImageRefused, match=r"unknown|URL"):
            await fetching(Lookups()).bytes_of(url)


async def test_who_leaves_leaves_nothing_open() -> None:
    async with hosting({}) as host, anyio.create_task_group() as tasks:
        fetched = fetching(Lookups(a=[PUBLIC])).bytes_of
        tasks.start_soon(fetched, f"http://a.example:{host.port}/")
        await host.asked.wait()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.fail_after(HANG):
            await host.left.wait()
