"""How another server is reached: over TLS with its own certificates, by a proxy, over HTTP/2.

All on real sockets; openssl makes the certificates.
"""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

from backends.contract.errors import UpstreamError
from backends.places.upstream.upstream import UpstreamModel
from tests.backends.places.upstream import far as other
from tests.backends.places.upstream.far import Far, event, far, silent, streams, text
from tests.backends.places.upstream.test_relay import answer, asking, content
from tests.hang import HANG

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]


class Certified:
    """A server's certificate, which trusts itself, and the key to it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.ca_file = str(folder / "cert.pem")
        key = str(folder / "key.pem")
        order = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        names = ["-nodes", "-subj", "/CN=far", "-addext", f"subjectAltName={name}", "-days", "2"]
        files = ["-keyout", key, "-out", self.ca_file]
        subprocess.run([*order, *names, *files], check=True, capture_output=True)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(self.ca_file, key)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("right"), "IP:127.0.0.1")


@pytest.fixture(scope="module")
def certified_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """For another host."""
    return Certified(tmp_path_factory.mktemp("wrong"), "DNS:example.org")


# --------------------------------------------------------------------------------------------- TLS


async def test_certificates_of_the_configuration_are_trusted(certified: Certified) -> None:
    async with far(streams(*text("safe")), tls=certified.server) as one:
        async with asking(one, ca_file=certified.ca_file) as model:
            assert content(await answer(model)) == "safe"


async def test_others_are_not(certified: Certified) -> None:
    async with far(silent, tls=certified.server) as one, asking(one) as model:
        with pytest.raises(UpstreamError) as caught:
            await answer(model)

    assert caught.value.code == "upstream_unreachable"
    assert one.asked == []


async def test_nor_are_those_of_another_host(certified_elsewhere: Certified) -> None:
    async with far(silent, tls=certified_elsewhere.server) as one:
        async with asking(one, ca_file=certified_elsewhere.ca_file) as model:
            with pytest.raises(UpstreamError):
                await answer(model)

    assert one.asked == []


# ------------------------------------------------------------------------------------------- proxy


class Proxy:
    """Forwards one request a connection, or a tunnel."""

    def __init__(self) -> None:
        self.url = ""
        self.lines: list[str] = []  # the first line of each request
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        self.lines.append(line.decode())
        method, target, version = line.split(b" ")
        tunnel = method == b"CONNECT"
        url = urlsplit(f"//{target.decode()}" if tunnel else target.decode())
        far_reader, far_writer = await asyncio.open_connection(url.hostname, url.port)
        if tunnel:
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            far_writer.write(b" ".join((method, url.path.encode(), version)) + b"\r\n" + rest)
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.heard += data
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def proxying() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()


async def test_a_proxy_is_asked_to_forward() -> None:
    async with far(streams(*text("round"))) as one, proxying() as proxy:
        async with asking(one, proxy=proxy.url) as model:
            assert content(await answer(model)) == "round"

    assert proxy.lines == [f"POST {one.url}/chat/completions HTTP/1.1"]


async def test_what_is_encrypted_goes_through_a_tunnel_that_hears_nothing(
    certified: Certified,
) -> None:
    async with far(streams(*text("through")), tls=certified.server) as one, proxying() as proxy:
        settings = {"proxy": proxy.url, "ca_file": certified.ca_file, "key": "sk-secret-of-far"}
        async with asking(one, **settings) as model:
            assert content(await answer(model)) == "through"

    assert proxy.lines == [f"CONNECT {urlsplit(one.url).netloc} HTTP/1.1"]
    assert one.asked[0].headers["authorization"] == "Bearer sk-secret-of-far"
    assert proxy.heard
    assert b"sk-secret-of-far" not in proxy.heard


async def test_a_proxy_that_is_gone_is_not_passed_by() -> None:
    async with proxying() as proxy:
        pass
    async with far(silent) as one, asking(one, proxy=proxy.url) as model:
        with pytest.raises(UpstreamError) as caught:
            await answer(model)

    assert caught.value.code == "upstream_unreachable"
    assert one.asked == []


class LeavingProxy:
    """Answers itself, and closes a connection when the next request is on its way on it."""

    def __init__(self) -> None:
        self.connections = self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError):
            await self._read(reader)
            body = b"".join(map(event, text("here"))) + other.DONE
            kind = f"content-type: {other.STREAM}\r\ncontent-length: {len(body)}"
            writer.write(f"HTTP/1.1 200 OK\r\n{kind}\r\n\r\n".encode() + body)
            await self._read(reader)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = head.lower().partition(b"content-length: ")[2].split()[0]
        await reader.readexactly(int(size))
        self.asked += 1


async def test_a_connection_to_a_proxy_that_was_closed_while_it_was_kept_is_made_anew() -> None:
    proxy, place = LeavingProxy(), Far(silent)
    place.url = "http://far.example/v1"
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asking(place, proxy=url) as model:
        answers = [content(await answer(model)) for _ in range(2)]

    assert answers == ["here"] * 2
    assert (proxy.connections, proxy.asked) == (2, 3)


async def test_a_new_connection_to_a_proxy_that_is_closed_is_not_made_again() -> None:
    asked = []

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    place = Far(silent)
    place.url = "http://far.example/v1"
    server = await asyncio.start_server(leave, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asking(place, proxy=url) as model:
        with pytest.raises(UpstreamError):
            await answer(model)

    assert len(asked) == 1  # it may have been read


# ------------------------------------------------------------------------------------------ HTTP/2


class Http2Server:
    """Answers once several requests are there, so that all must come over one connection, or each
    at once, and closes the connection then. `resets`: it answers a connection's first one alone.
    """

    def __init__(self, together: int, *, resets: bool = False) -> None:
        self.url = ""
        self.connections = self.resets = 0
        self._resets = resets
        self._together = together
        self._waiting: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        while data := await reader.read(1 << 16):
            for happening in connection.receive_data(data):
                match happening:
                    case DataReceived(flow_controlled_length=int(size), stream_id=int(stream)):
                        connection.acknowledge_received_data(size, stream)
                    case StreamEnded(stream_id=int(stream)):
                        self._waiting.append(stream)
            is_answered = len(self._waiting) == self._together
            for stream in self._waiting if is_answered else ():
                self._answer(connection, stream)
            writer.write(connection.data_to_send())
            await writer.drain()
            if is_answered:
                self._waiting.clear()
                if self._together == 1 and not self._resets:
                    break
        writer.close()

    def _answer(self, connection: H2Connection, stream: int) -> None:
        if self._resets and stream > 1:
            self.resets += 1
            connection.reset_stream(stream)
            return
        connection.send_headers(stream, [(":status", "200"), ("content-type", other.STREAM)])
        for one in text("two", " of", " them"):
            connection.send_data(stream, event(one))
        connection.send_data(stream, other.DONE, end_stream=True)


@asynccontextmanager
async def speaking_http2(one: Http2Server, certified: Certified) -> AsyncIterator[UpstreamModel]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certified.ca_file, str(Path(certified.ca_file).with_name("key.pem")))
    tls.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, ssl=tls)
    place = Far(silent)
    place.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        async with asking(place, ca_file=certified.ca_file, http2=True) as model:
            yield model
    finally:
        server.close()


async def test_two_answers_share_a_connection_of_http2(certified: Certified) -> None:
    one = Http2Server(together=2)
    async with speaking_http2(one, certified) as model, asyncio.timeout(HANG):
        answers = await asyncio.gather(answer(model), answer(model))

    assert [content(each) for each in answers] == ["two of them"] * 2
    assert one.connections == 1


async def test_a_connection_of_http2_that_was_closed_while_it_was_kept_is_made_anew(
    certified: Certified,
) -> None:
    one = Http2Server(together=1)
    async with speaking_http2(one, certified) as model:
        answers = [content(await answer(model)) for _ in range(3)]

    assert answers == ["two of them"] * 3
    assert one.connections == 3


async def test_a_request_of_http2_that_is_reset_is_not_made_again(certified: Certified) -> None:
    one = Http2Server(together=1, resets=True)
    async with speaking_http2(one, certified) as model:
        assert content(await answer(model)) == "two of them"
        with pytest.raises(UpstreamError):
            await answer(model)

    assert one.resets == 1
