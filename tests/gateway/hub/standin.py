"""A stand-in for the hub on a real socket: one repository, and a log of what was asked for. It
answers huggingface_hub too, whose downloads make a cache (`into_cache`).
"""

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import SocketAttribute, SocketStream

COMMIT = "a" * 40


class StandIn:
    """Serves `files` of `org/small`. A file in `cut` stops after so many bytes, without an end."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.cut: dict[str, int] = {}
        self.sizes: dict[str, object] = {}  # that the listing gives, where they aren't the files'
        self.sent_cut = anyio.Event()
        self.troubles: dict[str, list[int]] = {}  # statuses that come first; 0: cut in the middle
        self.refusals: dict[str, tuple[int, str]] = {}  # by repository, status and the hub's code
        self.endless: set[str] = set()  # files that never end, whatever the listing says
        self.gone: set[str] = set()  # files that are listed and not there
        self.checksums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        self.ranges = True  # whether it knows them
        self.asked: list[str] = []  # path, and the range asked for
        self.tokens: list[str] = []
        self.url = ""
        self.listed: list[dict[str, object]] = []  # what a search finds, whatever the words

    def add(self, name: str, data: bytes) -> None:
        """One more file."""
        self.files[name] = data
        self.checksums[name] = hashlib.sha256(data).hexdigest()

    async def serve(self, stream: SocketStream) -> None:
        async with stream:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                try:
                    head += await stream.receive()
                except anyio.EndOfStream:
                    return
            method, path, _ = head.decode().split(" ", 2)
            fields = {
                name.lower(): value
                for name, value in re.findall(r"(?m)^([\w-]+): (.*?)\r$", head.decode())
            }
            self.tokens.append(fields.get("authorization", ""))
            self.asked.append(f"{method} {path} {fields.get('range', '')}".strip())
            if path.startswith("/api/models?"):
                await self._send(stream, "200 OK", msgspec.json.encode(self.listed))
            elif path.startswith("/api/models/org/small"):
                await self._send(stream, "200 OK", msgspec.json.encode(self._listing()))
            elif refusal := self.refusals.get(path.removeprefix("/api/models/").partition("?")[0]):
                status, code = refusal
                header = f"x-error-code: {code}\r\n" if code else ""
                await self._send(stream, f"{status} Refused", b'{"error": "no"}', header)
            elif path.startswith("/org/small/resolve/"):
                name = path.removeprefix("/org/small/resolve/").partition("/")[2]
                if name in self.gone:
                    await self._send(stream, "404 Not Found", b"")
                elif method == "HEAD":
                    await stream.send(
                        self._head("200 OK", len(self.files[name]), self._facts(name))
                    )
                else:
                    await self._file(stream, name, fields.get("range"))
            else:
                missing = "x-error-code: RepoNotFound\r\n"
                await self._send(stream, "404 Not Found", b'{"error": "no"}', missing)

    def _listing(self) -> dict[str, object]:
        siblings = [
            {
                "rfilename": name,
                "size": (size := self.sizes.get(name, len(data))),
                "lfs": {"sha256": self.checksums[name], "size": size, "pointerSize": 1},
            }
            for name, data in self.files.items()
        ]
        return {
            "id": "org/small",
            "sha": COMMIT,
            "siblings": siblings,
            "tags": [],
            "private": False,
        }

    async def _file(self, stream: SocketStream, name: str, span: str | None) -> None:
        data, status, more = self.files[name], "200 OK", self._facts(name)
        if span is not None and self.ranges:
            start, end = span.removeprefix("bytes=").split("-")
            more += f"content-range: bytes {start}-{end or len(data) - 1}/{len(data)}\r\n"
            last = int(end) + 1 if end else None
            data, status = data[int(start) : last], "206 Partial Content"
        if name in self.endless:
            await stream.send(f"HTTP/1.1 {status}\r\nconnection: close\r\n\r\n".encode())
            with suppress(anyio.BrokenResourceError):
                while True:
                    await stream.send(data)
            return
        if self.troubles.get(name):
            if trouble := self.troubles[name].pop(0):
                await self._send(stream, f"{trouble} Not now", b"", "retry-after: 0\r\n")
            else:
                await stream.send(self._head(status, len(data), more) + data[: len(data) // 2])
            return
        if name not in self.cut:
            await self._send(stream, status, data, more)
            return
        await stream.send(self._head(status, len(data), more) + data[: self.cut[name]])
        self.sent_cut.set()
        await anyio.sleep_forever()

    def _facts(self, name: str) -> str:
        """What huggingface_hub wants to know of a file before it puts it into its cache."""
        return f'x-repo-commit: {COMMIT}\r\netag: "{self.checksums[name]}"\r\n'

    async def _send(self, stream: SocketStream, status: str, data: bytes, more: str = "") -> None:
        with suppress(anyio.BrokenResourceError):  # who has enough of it leaves
            await stream.send(self._head(status, len(data), more) + data)

    def _head(self, status: str, length: int, more: str) -> bytes:
        return (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
            f"content-length: {length}\r\nconnection: close\r\n{more}\r\n"
        ).encode()


async def into_cache(hub: StandIn, cache: Path) -> Path:
    """`org/small` as huggingface_hub puts it into its cache; the snapshot's folder."""
    import huggingface_hub

    def download() -> list[str]:
        return [
            huggingface_hub.hf_hub_download(
                "org/small", name, endpoint=hub.url, cache_dir=cache, token=False
            )
            for name in hub.files
        ]

    paths = await to_thread.run_sync(download)
    return Path(paths[0].partition(COMMIT)[0], COMMIT)


@asynccontextmanager
async def standin(files: dict[str, bytes]) -> AsyncIterator[StandIn]:
    """The stand-in listens in the context."""
    hub = StandIn(files)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    hub.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hub.serve)
        yield hub
        tasks.cancel_scope.cancel()
