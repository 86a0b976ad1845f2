"""Hosts on loopback that answer what a test tells them to and remember what they were asked, and
the lookups that lead there.
"""

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from pathlib import Path

import anyio
from anyio.abc import AnyByteStream, Listener, SocketAttribute
from anyio.streams.tls import TLSListener
from PIL import Image as Pillow

# A key and a certificate for pictures.example that signs itself; nobody trusts it outside of tests.
CERTIFICATE = Path(__file__).with_name("certificate.pem")


def encoded(format: str = "PNG", size: tuple[int, int] = (4, 3), color: str = "red") -> bytes:
    file = BytesIO()
    Pillow.new("RGB", size, color).save(file, format)
    return file.getvalue()


RED = encoded()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def redirect(location: str) -> bytes:
    return answer(b"", f"Location: {location}", status="302 Found")


class Host:
    """`answers` by path. Any other path is met with silence, until the client leaves."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self.answers = answers
        self.heads: list[str] = []
        self.server_names: list[str] = []
        self.asked = anyio.Event()
        self.left = anyio.Event()  # the last client has gone, or was sent away
        self.port = 0

    async def talk(self, stream: AnyByteStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream):  # the client left
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await stream.receive()
                self.heads.append(head.decode())
                self.asked.set()
                if (answer := self.answers.get(head.split()[1].decode())) is not None:
                    await stream.send(answer)
                else:
                    await stream.receive()
            self.left.set()

    def header(self, name: str) -> str:
        """Of the last request."""
        lines = self.heads[-1].split("\r\n")[1:]
        return next(line.partition(": ")[2] for line in lines if line.lower().startswith(name))


@asynccontextmanager
async def hosting(
    answers: Mapping[str, bytes], address: str = "127.0.0.1", *, secure: bool = False
) -> AsyncIterator[Host]:
    host = Host(answers)
    listener: Listener[AnyByteStream] = await anyio.create_tcp_listener(local_host=address)
    host.port = listener.extra(SocketAttribute.local_port)
    if secure:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
        context.sni_callback = lambda _socket, name, _context: host.server_names.append(name)
        listener = TLSListener(listener, context, standard_compatible=False)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, host.talk)
        yield host
        tasks.cancel_scope.cancel()


class Lookups:
    """A resolver. Each lookup of a name takes the name's next answer; the last one stays."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self._answers = {name: list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if not (left := self._answers.get(host.partition(".")[0])):
            raise OSError("no such host")
        return left.pop(0).split() if len(left) > 1 else left[0].split()
