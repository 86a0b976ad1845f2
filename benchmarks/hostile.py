"""The gaps in one client's stream while others send what costs most, and what the server's memory
grows by.

    python -m benchmarks.hostile [--seconds 8] [--senders 2] [--only messages items ...]

A row is one kind of request, sent again and again by `--senders` clients, each as soon as it has
been answered. The first row has none of them. Gaps are between two pieces of the stream; the
memory is what the process had at most, beyond what it had before (Linux' /proc). What the last
column lists are the statuses of the answers.
"""

import argparse
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

import bundled
from benchmarks import report
from benchmarks.peers import Running, roundhouse

MEGABYTE = 1_000_000
FIRST_TEXT = b'content":"'  # before it the stream waits for its prompt, and its turn
SAMPLE = 0.02  # seconds between two readings of the memory
MODEL = "roundhouse-tiny"


class Attack(msgspec.Struct, frozen=True):
    """A request: `body` makes it."""

    path: str
    body: Callable[[], bytes]


def _filled(opening: str, item: str, count: int, closing: str) -> bytes:
    return f"{opening}{','.join([item] * count)}{closing}".encode()


def _chat(item: str, count: int) -> Callable[[], bytes]:
    return lambda: _filled(f'{{"model":"{MODEL}","max_tokens":1,"messages":[', item, count, "]}")


MESSAGE = '{"role":"user","content":"a"}'
TOOL = (
    '{"type":"function","function":{"name":"call","description":"It calls.","parameters":'
    '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}'
)
ATTACKS: Mapping[str, Attack] = {
    "messages": Attack("/v1/chat/completions", _chat(MESSAGE, 60 * MEGABYTE // 30)),
    "parts": Attack(
        "/v1/chat/completions",
        lambda: _filled(
            f'{{"model":"{MODEL}","messages":[{{"role":"user","content":[',
            '{"type":"text","text":"a"}',
            60 * MEGABYTE // 27,
            "]}]}",
        ),
    ),
    "a text": Attack(
        "/v1/chat/completions",
        lambda: _filled(
            f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"',
            "a word, and another one",
            60 * MEGABYTE // 24,
            '"}]}',
        ),
    ),
    "1,000 messages": Attack("/v1/chat/completions", _chat(MESSAGE, 1_000)),
    "16,000 messages": Attack("/v1/chat/completions", _chat(MESSAGE, 16_000)),
    "tools": Attack(
        "/v1/chat/completions",
        lambda: _filled(
            f'{{"model":"{MODEL}","max_tokens":1,"messages":[{MESSAGE}],"tools":[',
            TOOL,
            10_000,
            "]}",
        ),
    ),
    "1,000 tools": Attack(
        "/v1/chat/completions",
        lambda: _filled(
            f'{{"model":"{MODEL}","max_tokens":1,"messages":[{MESSAGE}],"tools":[',
            TOOL,
            1_000,
            "]}",
        ),
    ),
    "choices": Attack(
        "/v1/completions",
        lambda: _filled(
            f'{{"model":"{MODEL}","max_tokens":4,"prompt":[', '"Hello there"', 256, "]}"
        ),
    ),
    "128 chats": Attack(
        "/v1/chat/completions",
        lambda: (
            b'{"model":"%s","max_tokens":4,"n":128,"messages":[%s]}'
            % (MODEL.encode(), MESSAGE.encode())
        ),
    ),
    "items": Attack(
        "/v1/responses",
        lambda: _filled(
            f'{{"model":"{MODEL}","max_output_tokens":1,"input":[', MESSAGE, 50_000, "]}"
        ),
    ),
    "kept items": Attack("/v1/conversations", lambda: _filled('{"items":[', MESSAGE, 50_000, "]}")),
    "detokenize": Attack(
        "/detokenize",
        lambda: _filled('{"tokens":[', "11", 20 * MEGABYTE // 3, "]}"),
    ),
    "1M tokens": Attack("/detokenize", lambda: _filled('{"tokens":[', "11", 1_000_000, "]}")),
    "decode": Attack(
        "/v1/token/decode",
        lambda: _filled('{"tokens":[', "11", 20 * MEGABYTE // 3, "]}"),
    ),
    "tokenize": Attack(
        "/tokenize", lambda: _filled('{"content":"', "a word", 20 * MEGABYTE // 7, '"}')
    ),
    "embed": Attack(
        "/v1/embeddings",
        lambda: _filled(f'{{"model":"{MODEL}","input":[', '"a"', 5 * MEGABYTE, "]}"),
    ),
    "names": Attack(
        "/v1/chat/completions",
        lambda: (
            f'{{"model":"{MODEL}","messages":[{MESSAGE}],'.encode()
            + b",".join(b'"x%d":1' % n for n in range(3 * MEGABYTE))
            + b"}"
        ),
    ),
}


class Row(msgspec.Struct, frozen=True):
    """What one kind of request did: gaps in seconds, memory in bytes."""

    name: str
    gaps: Sequence[float]
    memory: int
    statuses: Mapping[str, int]

    def at(self, share: float) -> float:
        """The gap that so many gaps are shorter than, weighed by their count."""
        ordered = sorted(self.gaps)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _request(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _gaps(port: int, over: threading.Event) -> list[float]:
    """Of one stream after the other, until `over`."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "stream": True}
    request = _request(
        "/v1/chat/completions", json.dumps({**body, "max_tokens": 400, "ignore_eos": True}).encode()
    )
    gaps: list[float] = []
    while not over.is_set():
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request)
            last = None
            while data := connection.recv(65_536):
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                if last is not None or FIRST_TEXT in data:
                    last = now
    return gaps


def _send(port: int, request: bytes, over: threading.Event, statuses: Counter[str]) -> None:
    while not over.is_set():
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.settimeout(120)
                connection.sendall(request)
                statuses[connection.recv(64)[9:12].decode() or "closed"] += 1
        except OSError as error:
            statuses[type(error).__name__] += 1


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096


def _watch(pid: int, over: threading.Event, found: list[int]) -> None:
    while not over.wait(SAMPLE):
        found[0] = max(found[0], _resident(pid))


def measured(server: Running, name: str, seconds: float, senders: int) -> Row:
    """One row."""
    over, statuses = threading.Event(), Counter[str]()
    before = _resident(server.pid)
    most, gaps = [before], []
    threads = [
        threading.Thread(target=lambda: gaps.extend(_gaps(server.port, over))),
        threading.Thread(target=_watch, args=(server.pid, over, most)),
    ]
    if attack := ATTACKS.get(name):
        request = _request(attack.path, attack.body())
        threads += [
            threading.Thread(target=_send, args=(server.port, request, over, statuses))
            for _ in range(senders)
        ]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    return Row(name, gaps, most[0] - before, statuses)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown."""
    yield "| beside | pieces | p50 ms | p99 ms | longest ms | memory MB | statuses |"
    yield "|---|--:|--:|--:|--:|--:|---|"
    for row in rows:
        times = " | ".join(f"{1000 * row.at(share):,.1f}" for share in (0.5, 0.99, 1.0))
        statuses = ", ".join(f"{count} × {status}" for status, count in row.statuses.items())
        yield (
            f"| {row.name} | {len(row.gaps):,} | {times} | {row.memory / MEGABYTE:,.0f} "
            f"| {statuses} |"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    options = parser.parse_args(argv)
    machine = report.machine()
    with roundhouse(str(bundled.GGUF)) as server:
        rows = []
        for name in ("nothing", *options.only):
            rows.append(measured(server, name, options.seconds, options.senders))
            print(*table(rows[-1:]), sep="\n", flush=True)
            time.sleep(1.0)
    print(f"\n{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}\n")
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main()
