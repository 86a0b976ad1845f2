"""A server with OpenAI's routes for chats, embeddings and ranking that does what a command must not
be trusted with. `python standin.py --port PORT [--FAULT ...]`; standard library alone.

It writes the number of each of its processes into `--pids FILE`, so that tests can see that none of
them is left. What a message says decides what becomes of its answer: `die` kills the server behind
some words, `die at once` before the first, `hold` goes on until the client leaves.
"""

import argparse
import itertools
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WORDS = ("Here ", "is ", "the ", "answer.")
TIDYING = 0.3  # seconds
PAUSE = 0.02  # seconds between two words of an answer without an end


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pids", type=Path, required=True)
    parser.add_argument("--health", default="/health")
    parser.add_argument("--model", default="inner")
    parser.add_argument("--key", default="", help="requests need it")
    parser.add_argument("--not-yet", type=int, default=0, help="answers 503 so often first")
    parser.add_argument("--never-up", action="store_true", help="it listens, and is never ready")
    parser.add_argument("--dies", default="", help="says that, and ends while it loads")
    parser.add_argument("--dies-once", type=Path, help="the same, where the file isn't there yet")
    parser.add_argument("--ignores-sigterm", action="store_true")
    parser.add_argument("--tidies", type=Path, help="writes it at SIGTERM, and takes its time")
    parser.add_argument("--forks", action="store_true", help="a child that leaves, one that stays")
    parser.add_argument("--prints", type=int, default=0, help="so many lines")
    parser.add_argument("--megabytes", type=int, default=0, help="of memory that it takes")
    return parser.parse_args()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def noted(pids: Path) -> None:
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\n")


def tidy(file: Path) -> None:
    time.sleep(TIDYING)
    file.write_text("done")
    os._exit(0)


def fork(options: argparse.Namespace, *, leaves: bool) -> None:
    """A process that does nothing until it is killed."""
    if os.fork() == 0:
        if leaves:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        noted(options.pids)
        while True:
            signal.pause()


class Standin(BaseHTTPRequestHandler):
    """`options`: see `arguments`."""

    options: argparse.Namespace
    health = itertools.count()
    sleeps = False
    held: bytearray = bytearray()
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        if self.path == self.options.health:
            is_up = next(self.health) >= self.options.not_yet and not self.options.never_up
            self._answer({"status": "ok" if is_up else "loading"}, 200 if is_up else 503)
        elif self.path == "/v1/models":
            self._answer({"object": "list", "data": [{"id": self.options.model}]})
        else:
            self._answer({"error": {"message": "no such route"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        if self.options.key and self.headers.get("authorization") != f"Bearer {self.options.key}":
            self._answer({"error": {"message": "a key is needed"}}, 401)
            return
        match self.path.partition("?")[0]:
            case "/v1/chat/completions":
                self._chat(body)
            case "/v1/embeddings":
                data = [{"index": k, "embedding": [1.0, 0.0]} for k in range(len(body["input"]))]
                self._answer({"data": data, "usage": {"prompt_tokens": 3}})
            case "/v1/rerank":
                ranks = [
                    {"index": k, "relevance_score": 1 / (k + 1)}
                    for k in range(len(body["documents"]))
                ]
                self._answer({"results": ranks})
            case "/sleep" | "/wake_up" as path:
                Standin.sleeps = path == "/sleep"
                Standin.held = bytearray(0 if Standin.sleeps else self.options.megabytes << 20)
                self._answer({})
            case "/told":
                self._answer({"path": self.path, "body": body, "headers": dict(self.headers)}, 202)
            case "/half":
                self.send_response(200)
                self.send_header("content-length", "100")
                self.end_headers()
                self.wfile.write(b"half")
                self.wfile.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                self._answer({"error": {"message": "no such route"}}, 404)

    def _answer(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chat(self, body: Any) -> None:
        said = body["messages"][-1]["content"]
        if Standin.sleeps:
            self._answer({"error": {"message": "it sleeps"}}, 500)
            return
        if said == "die at once":
            os.kill(os.getpid(), signal.SIGKILL)
        if said == "what":
            said = json.dumps(body)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for word in itertools.cycle(WORDS) if said == "hold" else (*WORDS, said):
                self._event({"delta": {"content": word}})
                if said == "hold":
                    time.sleep(PAUSE)
            if said == "die":
                say("CUDA error: an illegal memory access was encountered")
                os.kill(os.getpid(), signal.SIGKILL)
            self._event({"delta": {}, "finish_reason": "stop"})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:  # the client has left
            pass
        self.close_connection = True

    def _event(self, choice: dict[str, Any]) -> None:
        body = {"object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]}
        self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())
        self.wfile.flush()


def main() -> None:
    options = Standin.options = arguments()
    noted(options.pids)
    if options.ignores_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.tidies:
        signal.signal(signal.SIGTERM, lambda *_: tidy(options.tidies))
    if options.forks:
        fork(options, leaves=True)
        fork(options, leaves=False)
    Standin.held = bytearray(b"\1" * (options.megabytes << 20))
    for number in range(options.prints):
        say(f"line {number} of many")
    once: Path | None = options.dies_once
    if options.dies or (once is not None and not once.exists()):
        if once is not None:
            once.touch()
        sys.exit(options.dies or "not this time")
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Standin)
    server.daemon_threads = True
    say(f"listens, with {threading.active_count()} thread")
    server.serve_forever()


if __name__ == "__main__":
    main()
