"""What ends when a worker does: two models in workers of this machine, then on two nodes behind
TCP, 16 streams on each, and one fault after the other to the first of them.

    python -m benchmarks.faults [--times 3] [--kinds kill segfault truncate stop lost]
        [--places worker node]

`kill`: SIGKILL of its worker; `segfault`: the pointers of its engine's library are overwritten;
`truncate`: its file is cut to half; `stop`: SIGSTOP of its worker; `lost`: SIGSTOP of its node's
listener, which then takes and answers nothing more. Each time is counted how many streams of the
other model broke (none may), how soon all of the first one's had their error, and how long the next
request for it took, its load included. At the end of each no answer is in progress, no slot is
taken, no worker is left but those of the two models, and the server and the listeners have as many
descriptors open as before; at the end of all as much memory, nearly: as in the middle, when what a
server keeps anyway (of the last requests and lines of its log) is full, after about 30 faults.

Streams are read on raw sockets, and what a fault is done to is sought before they begin: this
process must not be what is measured.

A time takes 1 to 5 seconds: all kinds 50 times in both places about twenty minutes.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias

import httpx
import msgspec
import psutil
import uvloop

import bundled
from backends.machine import prebuilt
from benchmarks import report
from benchmarks.answers import DONE, WITH_TEXT, Answer
from benchmarks.load import Connection, Load, request
from benchmarks.peers import Running, roundhouse
from tests.backends.places.nodes.process import listener

STREAMS = 16  # on each model
TOKENS = 400  # of an answer
PATIENCE = 60.0  # seconds for whatever must happen
ERROR = b'"error"'  # quotes in an answer's text are escaped
LAST = 200  # bytes of an answer that tell how it ended
CHAT = "/v1/chat/completions"
FRAIL, SOUND = "frail", "sound"
DEATH, HANG = 0.05, 4.0  # seconds in which all streams have their error
COMING_BACK = 2.0  # seconds besides its load in which a model is back
LOADS = 3  # without a fault, to compare with
LIBRARIES = ("libggml-cpu", prebuilt.LIBRARY)
NOWHERE = b"\1" * 8  # as a pointer


class Ended(msgspec.Struct, frozen=True):
    """How a stream did: with its error, and when that came, or well."""

    error: str | None
    at: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. Seconds until the first of its streams had its error (`first`), and all (`seen`);
    `broken`: streams of the other model; `over`: those of the first that had ended well before.
    """

    kind: str
    first: float
    seen: float
    broken: int
    over: int
    back: float
    left: tuple[str, ...]  # what was, that should not


class Place:
    """Two models in workers, and a server; `file` is the first model's. `hosts`: the processes that
    begin the workers, by launchers: the server, or the listeners of two nodes.
    """

    def __init__(self, server: Running, hosts: Sequence[int], file: Path) -> None:
        self.port = server.port
        self.hosts = [psutil.Process(pid) for pid in hosts]
        self.file = file
        self._all = {psutil.Process(pid) for pid in (server.pid, *hosts)}

    def workers(self) -> list[psutil.Process]:
        """Of both models."""
        launchers = [launcher for host in self.hosts for launcher in host.children()]
        workers: list[psutil.Process] = []
        for launcher in launchers:
            workers += launcher.children()
        return workers

    def frail(self) -> int:
        """The worker that has mapped the first model's file."""
        maps: dict[int, str] = {
            one.pid: Path(f"/proc/{one.pid}/maps").read_text() for one in self.workers()
        }
        return next(pid for pid, text in maps.items() if str(self.file) in text)

    def descriptors(self) -> int:
        """Open in all processes that stay."""
        counts: list[int] = [one.num_fds() for one in self._all]
        return sum(counts)

    def memory(self) -> int:
        """Bytes that these have."""
        sizes: list[int] = [one.memory_info().rss for one in self._all]
        return sum(sizes)


@contextmanager
def in_workers() -> Iterator[Place]:
    """Of the server's own machine."""
    with files() as (folder, file), server(folder, file, ["worker", "worker"]) as running:
        yield Place(running, [running.pid], file)


@contextmanager
def on_nodes() -> Iterator[Place]:
    """Of two nodes, behind TCP."""
    with listener() as first, listener() as second, files() as (folder, file):
        nodes = [
            {"name": name, "address": at.address, "token": at.token}
            for name, at in (("a", first), ("b", second))
        ]
        with server(folder, file, ["a", "b"], nodes=nodes) as running:
            yield Place(running, [first.pid, second.pid], file)


@contextmanager
def files() -> Iterator[tuple[Path, Path]]:
    """A folder, and the first model's file in it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{FRAIL}.gguf"
        file.write_bytes(bundled.GGUF.read_bytes())
        yield Path(folder), file


@contextmanager
def server(folder: Path, file: Path, hosts: Sequence[str], **more: object) -> Iterator[Running]:
    """Of both models. No rest follows a fault: they come every few seconds here."""
    models = zip((FRAIL, SOUND), (file, bundled.GGUF), hosts, strict=True)
    config = {
        "models": [
            {"name": name, "path": str(path), "options": {"host": host}}
            for name, path, host in models
        ],
        "swap": {"backoff": 0.0},
        **more,
    }
    path = folder / "roundhouse.yaml"
    path.write_text(json.dumps(config))
    with roundhouse("--config", str(path)) as running:
        yield running


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "worker": in_workers,
    "node": on_nodes,
}


# ------------------------------------------------------------------------------------------ faults

Strike: TypeAlias = Callable[[], object]


def kill(there: Place) -> Strike:
    """SIGKILL of the worker."""
    return partial(os.kill, there.frail(), signal.SIGKILL)


def poke(there: Place) -> Strike:
    """All pointers of its engine's library lead nowhere: the next call of a function ends it."""
    process = Path("/proc") / str(there.frail())
    places = [*pointers((process / "maps").read_text())]

    def overwrite() -> None:
        with (process / "mem").open("r+b", buffering=0) as memory:
            for begin, end in places:
                memory.seek(begin)
                memory.write(NOWHERE * ((end - begin) // len(NOWHERE)))

    return overwrite


def pointers(maps: str) -> Iterator[tuple[int, int]]:
    """Where a library of the engine's has what its functions are found by (proc(5)): the writable
    part of what is mapped of it, and that which is so no more since it was filled (RELRO), right
    before.
    """
    lines = [line.split() for line in maps.splitlines()]
    for before, line in itertools.pairwise(lines):
        library = next((one for one in LIBRARIES if one in line[-1]), None)
        if library is None or not line[1].startswith("rw"):
            continue
        for place, *_ in (before, line) if library in before[-1] else (line,):
            begin, _, end = place.partition("-")
            yield int(begin, 16), int(end, 16)


def truncate(there: Place) -> Strike:
    """Of the file that it has mapped."""
    return partial(os.truncate, there.file, there.file.stat().st_size // 2)


def stop(there: Place) -> Strike:
    """SIGSTOP of the worker."""
    return partial(os.kill, there.frail(), signal.SIGSTOP)


def lose(there: Place) -> Strike:
    """The node takes and answers nothing more."""
    suspend: Strike = there.hosts[0].suspend
    return suspend


def mend(there: Place) -> None:
    """What a fault has left: the file is whole, the node runs."""
    there.hosts[0].resume()
    if there.file.stat().st_size != bundled.GGUF.stat().st_size:
        whole = there.file.with_suffix(".whole")
        whole.write_bytes(bundled.GGUF.read_bytes())
        whole.replace(there.file)


class Fault(msgspec.Struct, frozen=True):
    """`aim` finds what is struck. `most`: seconds in which all streams have their error."""

    aim: Callable[[Place], Strike]
    most: float
    places: tuple[str, ...] = tuple(PLACES)


FAULTS = {
    "kill": Fault(kill, DEATH),
    "segfault": Fault(poke, DEATH),
    "truncate": Fault(truncate, DEATH),
    "stop": Fault(stop, HANG),
    "lost": Fault(lose, HANG, places=("node",)),
}


# ------------------------------------------------------------------------------------------ trials


class Stream(Connection):
    """Tells when its first text has come."""

    def __init__(self, began: Callable[[], None]) -> None:
        super().__init__()
        self._began: Callable[[], None] | None = began

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._began is not None and WITH_TEXT.search(data):
            self._began()
            self._began = None


async def read(port: int, model: str, began: Callable[[], None]) -> Ended:
    """One stream, to its end."""
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(began), "127.0.0.1", port)
    body = {"model": model, "ignore_eos": True}
    load = Load(port=port, streams=1, seconds=0, warm_up=0, max_tokens=TOKENS, body=body)
    answer = await stream.exchange(request(load, "Count!"))
    stream.close()
    return ended(answer)


def ended(answer: Answer) -> Ended:
    """How it did."""
    data = b"".join(arrival.data for arrival in answer.arrivals)
    last = answer.arrivals[-1].at if answer.arrivals else answer.sent
    if (place := data.find(ERROR)) < 0:
        return Ended(None if DONE in data else f"cut off: {data[-LAST:]!r}", last)
    ends = list(itertools.accumulate(len(arrival.data) for arrival in answer.arrivals))
    index = bisect_left(ends, place + len(ERROR))
    return Ended(data[place : place + LAST].decode(errors="replace"), answer.arrivals[index].at)


async def tried(there: Place, client: httpx.AsyncClient, kind: str) -> Trial:
    """One fault, while all streams of both models run, and what became of it."""
    await asked(client, FRAIL)
    await asked(client, SOUND)
    open_before = there.descriptors()
    strike = FAULTS[kind].aim(there)
    running, count = asyncio.Event(), [0]

    def began() -> None:
        count[0] += 1
        if count[0] == 2 * STREAMS:
            running.set()

    streams = {
        name: [asyncio.create_task(read(there.port, name, began)) for _ in range(STREAMS)]
        for name in (FRAIL, SOUND)
    }
    async with asyncio.timeout(PATIENCE):
        await running.wait()
        at = time.perf_counter()
        strike()
        frail = await asyncio.gather(*streams[FRAIL])
        mend(there)
        sound = await asyncio.gather(*streams[SOUND])
    errors = [one.at - at for one in frail if one.error is not None]
    again = time.perf_counter()
    await asked(client, FRAIL)
    back = time.perf_counter() - again
    return Trial(
        kind=kind,
        first=min(errors, default=0.0),
        seen=max(errors, default=0.0),
        broken=sum(one.error is not None for one in sound),
        over=STREAMS - len(errors),
        back=back,
        left=await left(there, client, open_before),
    )


async def asked(client: httpx.AsyncClient, model: str) -> None:
    """A short answer, once the model gives one."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    async with asyncio.timeout(PATIENCE):
        for _ in itertools.count():
            answer = await client.post(CHAT, json=body)
            if answer.status_code == 200:
                return
            await asyncio.sleep(min(1.0, float(answer.headers.get("retry-after", 0.02))))


async def left(there: Place, client: httpx.AsyncClient, open_before: int) -> tuple[str, ...]:
    """What is there too much, after a moment for what ends."""
    found: tuple[str, ...] = ()
    for _ in range(100):
        found = tuple(await surplus(there, client, open_before))
        if not found:
            break
        await asyncio.sleep(0.1)
    return found


async def surplus(there: Place, client: httpx.AsyncClient, open_before: int) -> list[str]:
    """Answers in progress, slots, workers and descriptors."""
    metrics = (await client.get("/metrics")).text
    busy = re.findall(r'roundhouse_(?:in_use|waiting)\{model="[^"]*"\} [1-9].*', metrics)
    slots = (await client.get("/slots", params={"model": FRAIL})).json()
    busy += [f"slot {one['id']}" for one in slots if one["is_processing"]]
    count, more = len(there.workers()), there.descriptors() - open_before
    return [
        *busy,
        *([f"{count} workers"] if count != len((FRAIL, SOUND)) else []),
        *([f"{more} descriptors"] if more > 0 else []),
    ]


async def load_seconds(client: httpx.AsyncClient) -> float:
    """That the first model takes to come back where nothing happened."""
    seconds = []
    for _ in range(LOADS):
        await asked(client, FRAIL)
        (await client.post("/models/unload", json={"model": FRAIL})).raise_for_status()
        began = time.perf_counter()
        await asked(client, FRAIL)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one place. `grown`: bytes that the server and the listeners have more at the end than in
    the middle, for each fault; `worker`: that a worker has.
    """

    trials: tuple[Trial, ...]
    load: float
    grown: float
    worker: int


async def measured(there: Place, kinds: Sequence[str], times: int) -> Figures:
    """All of them, in turn."""
    limits = httpx.Limits(max_connections=4 * STREAMS)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{there.port}", limits=limits, timeout=PATIENCE
    ) as client:
        load = await load_seconds(client)
        order = [kind for _ in range(times) for kind in kinds]
        early, late = order[: len(order) // 2], order[len(order) // 2 :]
        found = [await tried(there, client, kind) for kind in early]
        worker, before = there.workers()[0].memory_info().rss, there.memory()
        found += [await tried(there, client, kind) for kind in late]
        grown = (there.memory() - before) / len(late)
    return Figures(trials=tuple(found), load=load, grown=grown, worker=worker)


def targets(place: str, figures: Figures, kinds: Sequence[str]) -> Iterator[report.Target]:
    """By kind."""
    for kind in kinds:
        name, most = f"{place}, {kind}", FAULTS[kind].most
        each = [one for one in figures.trials if one.kind == kind]
        broken, left_over = sum(one.broken for one in each), sum(bool(one.left) for one in each)
        yield report.Target(f"{name}: no other stream breaks", str(broken), broken == 0)
        yield report.Target(f"{name}: nothing is left", str(left_over), left_over == 0)
        seen = sorted(one.seen for one in each if one.seen)
        if seen:
            promise = f"{name}: all of its streams know within {most:g} s"
            yield report.Target(promise, _told(seen), seen[-1] <= most)
        back, within = sorted(one.back for one in each), figures.load + COMING_BACK
        promise = f"{name}: it is back in its load + {COMING_BACK:g} s ({within:.2f} s)"
        yield report.Target(promise, _told(back), back[-1] <= within)
    promise = f"{place}: of a worker's {figures.worker / 2**20:.0f} MiB a fault leaves no 100th"
    outcome = f"{figures.grown / 2**10:.0f} KiB"
    yield report.Target(promise, outcome, figures.grown <= figures.worker / 100)


def _told(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.3f} s in the middle, {seconds[-1]:.3f} s at most"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=3, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=tuple(FAULTS), default=list(FAULTS))
    parser.add_argument("--places", nargs="+", choices=tuple(PLACES), default=list(PLACES))
    options = parser.parse_args(argv)
    found: list[report.Target] = []
    for place in options.places:
        kinds = [kind for kind in options.kinds if place in FAULTS[kind].places]
        with PLACES[place]() as there:
            figures = uvloop.run(measured(there, kinds, options.times))
        tell(place, figures, kinds)
        found += targets(place, figures, kinds)
    report.tell(found)


def tell(place: str, figures: Figures, kinds: Sequence[str]) -> None:
    """Print what is no target."""
    for kind in kinds:
        each = [one for one in figures.trials if one.kind == kind]
        first, over = median(one.first for one in each), sum(one.over for one in each)
        print(
            f"{place}, {kind}: {len(each)} times; the first error after {first:.3f} s; "
            f"{over} streams had ended before",
            flush=True,
        )
    for one in figures.trials:
        for what in one.left:
            print(f"{place}, {one.kind}: left: {what}", flush=True)


if __name__ == "__main__":
    main()
