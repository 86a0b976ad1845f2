"""A server that says what a test says: the console's files, and its API with the answers given.

For states that no machine of the tests is in: several cards, a hundred models, hostile names.
"""

import json
import mimetypes
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from gateway.http.page import POLICY
from tests.hang import HANG

CONSOLE = Path(__file__).parents[2] / "gateway" / "console"
END = None  # of a stream

Stream: TypeAlias = "queue.Queue[tuple[str, Any] | None]"
Answers: TypeAlias = Mapping[tuple[str, str], Any]  # method and path without its query

# What pages ask for on every server.
ALWAYS: dict[tuple[str, str], Any] = {
    ("GET", "/v1/kept"): {"object": "list", "data": [], "counts": None, "engines": None},
    ("GET", "/v1/nodes"): {"nodes": []},
    ("GET", "/v1/upstreams"): [],
}


class Handler(BaseHTTPRequestHandler):
    """One request. What it may say stands in its server's `standin`."""

    server: "Listener"

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/ui/"):
            self._file(path.removeprefix("/ui/") or "index.html")
        elif path == "/v1/admin/events" and not self.server.standin.is_away:
            self._events()
        else:
            self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _file(self, name: str) -> None:
        path = CONSOLE / name
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        if path.is_file():
            self._send(200, path.read_bytes(), kind)
        else:
            self._send(404, b"", kind)

    def _answer(self) -> None:
        standin, path = self.server.standin, urlsplit(self.path).path
        sent = self._sent()
        standin.calls.append((self.command, self.path, sent))
        answer = standin.snapshot["me"] if path == "/v1/admin/me" else None
        answer = answer or (ALWAYS | dict(standin.answers)).get((self.command, path))
        match answer:
            case _ if standin.is_away:
                self._json(503, {"error": {"message": "away"}})
            case None:
                error = {"message": f"{self.command} {path} is not there", "code": "not_found"}
                self._json(404, {"error": error})
            case (int(status), body):
                self._json(status, body)
            case _ if callable(answer):
                self._stream(answer(sent))
            case _:
                self._json(200, answer)

    def _sent(self) -> Any:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        is_json = "json" in (self.headers.get("content-type") or "")
        return json.loads(data) if is_json else data

    def _json(self, status: int, body: object) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-security-policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()

    def _stream(self, chunks: Iterator[object]) -> None:
        """Chunks of an answer, each when it comes."""
        self._begin_stream()
        with suppress(OSError):  # who asked has left
            for chunk in chunks:
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

    def _events(self) -> None:
        self._begin_stream()
        stream = self.server.standin.listen()
        for number, (event, data) in enumerate(iter(stream.get, END), 1):
            text = f"id: {number}\nevent: {event}\ndata: {json.dumps(data)}\n\n"
            try:
                self.wfile.write(text.encode())
            except OSError:
                return


class Listener(ThreadingHTTPServer):
    """A thread for each request, because streams stay."""

    daemon_threads = True
    request_queue_size = 128  # a page asks for dozens of files at once

    def __init__(self, standin: "StandIn") -> None:
        self.standin = standin
        super().__init__(("127.0.0.1", 0), Handler)


class StandIn:
    """One server. `snapshot` is told at once, `tell` what comes later; `calls`: what was sent."""

    def __init__(self, snapshot: dict[str, Any], answers: Answers) -> None:
        self.snapshot = snapshot
        self.answers = dict(answers)
        self.calls: list[tuple[str, str, Any]] = []
        self.streams: list[Stream] = []
        self.is_away = False  # nothing but files can be had
        self.server = Listener(self)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server.server_port}/ui/"

    def listen(self) -> "Stream":
        """A further reader of the events."""
        stream: Stream = queue.Queue()
        stream.put(("snapshot", self.snapshot))
        self.streams.append(stream)
        return stream

    def tell(self, event: str, data: object) -> None:
        """Send an event to every page that listens."""
        for stream in self.streams:
            stream.put((event, data))

    def hang_up(self) -> None:
        """End every stream, as a server that stops does."""
        streams, self.streams = self.streams, []
        for stream in streams:
            stream.put(END)

    def sent(self, method: str, path: str) -> list[Any]:
        """The bodies that were sent there. Waits for the first: a click is no request yet."""
        wanted = (method, path)
        ends = time.monotonic() + HANG
        while True:
            calls = list(self.calls)
            found = [body for how, where, body in calls if (how, urlsplit(where).path) == wanted]
            if found:
                return found
            assert time.monotonic() < ends, f"nothing was sent: {method} {path}"
            time.sleep(0.01)


@contextmanager
def standing_in(snapshot: dict[str, Any], answers: Answers | None = None) -> Iterator[StandIn]:
    """The server runs in the context."""
    standin = StandIn(snapshot, answers or {})
    thread = threading.Thread(target=standin.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield standin
    finally:
        standin.hang_up()
        standin.server.shutdown()
        thread.join()
        standin.server.server_close()
