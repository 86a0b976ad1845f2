"""What ends when a worker does: two models on two nodes of this machine, 16 streams on each, and
one fault after the other to the first of them.

    python -m benchmarks.faults [--times 3] [--kinds kill truncate stop lost]

`kill`: SIGKILL of its worker; `truncate`: its file is cut to half; `stop`: SIGSTOP of its worker;
`lost`: SIGSTOP of its node's listener, which then takes and answers nothing more. Each time is
counted how many streams of the other model broke (none may), how soon all of the first one's had
their error, and how long the next request for it took, its load included. At the end of each no
answer is in progress, no worker is left but those of the two models, and the listeners have as many
descriptors open as before.

A time takes 2 to 8 seconds: all four kinds 50 times about 15 minutes.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
import msgspec
import psutil

import bundled
from backends.worker.listening import Listening, listener
from benchmarks import report
from benchmarks.peers import roundhouse

STREAMS = 16  # on each model
TOKENS = 400  # of an answer
PATIENCE = 60.0  # seconds for whatever must happen
CHAT = "/v1/chat/completions"
FRAIL, SOUND = "frail", "sound"
DEATH, HANG = 0.05, 4.0  # seconds in which all streams have their error


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


class Cluster:
    """Two nodes, each with a model, and a server; `file` is the first model's."""

    def __init__(self, port: int, first: Listening, second: Listening, file: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.nodes = psutil.Process(first.pid), psutil.Process(second.pid)
        self.file = file

    def workers(self) -> list[list[int]]:
        """By node."""
        return [
            [worker.pid for launcher in node.children() for worker in launcher.children()]
            for node in self.nodes
        ]

    def descriptors(self) -> list[int]:
        """Open in each listener."""
        return [node.num_fds() for node in self.nodes]


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Until the context ends."""
    with listener() as first, listener() as second, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{FRAIL}.gguf"
        file.write_bytes(bundled.GGUF.read_bytes())
        nodes = [("a", first), ("b", second)]
        models = [(FRAIL, file, "a"), (SOUND, bundled.GGUF, "b")]
        config = {
            "nodes": [{"name": n, "address": at.address, "token": at.token} for n, at in nodes],
            "models": [
                {"name": name, "path": str(path), "options": {"host": node}}
                for name, path, node in models
            ],
            "swap": {"backoff": 0.0},
        }
        path = Path(folder) / "roundhouse.yaml"
        path.write_text(json.dumps(config))
        with roundhouse("--config", str(path)) as server:
            yield Cluster(server.port, first, second, file)


# ------------------------------------------------------------------------------------------ faults


def kill(there: Cluster) -> None:
    """SIGKILL of the worker."""
    os.kill(there.workers()[0][0], signal.SIGKILL)


def truncate(there: Cluster) -> None:
    """Of the file that it has mapped."""
    os.truncate(there.file, there.file.stat().st_size // 2)


def stop(there: Cluster) -> None:
    """SIGSTOP of the worker."""
    os.kill(there.workers()[0][0], signal.SIGSTOP)


def lose(there: Cluster) -> None:
    """The node takes and answers nothing more."""
    there.nodes[0].suspend()


def mend(there: Cluster) -> None:
    """What a fault has left: the file is whole, the node runs."""
    there.nodes[0].resume()
    if there.file.stat().st_size != bundled.GGUF.stat().st_size:
        whole = there.file.with_suffix(".whole")
        whole.write_bytes(bundled.GGUF.read_bytes())
        whole.replace(there.file)


FAULTS: dict[str, tuple[Callable[[Cluster], None], float]] = {
    "kill": (kill, DEATH),
    "truncate": (truncate, DEATH),
    "stop": (stop, HANG),
    "lost": (lose, HANG),
}


# ------------------------------------------------------------------------------------------ trials


async def read(client: httpx.AsyncClient, model: str, began: Callable[[], None]) -> Ended:
    """One stream, to its end."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Count!"}],
        "stream": True,
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    last, begun = "", False
    async with client.stream("POST", CHAT, json=body) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if '"error"' in line:
                return Ended(line, time.perf_counter())
            if not begun and "content" in line:
                begun = True
                began()
            last = line or last
    return Ended(None if last == "data: [DONE]" else f"cut off: {last}", time.perf_counter())


async def tried(there: Cluster, client: httpx.AsyncClient, kind: str) -> Trial:
    """One fault, while all streams of both models run, and what became of it."""
    await asked(client, FRAIL)
    await asked(client, SOUND)
    open_before = there.descriptors()
    running, count = asyncio.Event(), [0]

    def began() -> None:
        count[0] += 1
        if count[0] == 2 * STREAMS:
            running.set()

    streams = {
        name: [asyncio.create_task(read(client, name, began)) for _ in range(STREAMS)]
        for name in (FRAIL, SOUND)
    }
    async with asyncio.timeout(PATIENCE):
        await running.wait()
        fault, _ = FAULTS[kind]
        at = time.perf_counter()
        fault(there)
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


async def left(
    there: Cluster, client: httpx.AsyncClient, open_before: Sequence[int]
) -> tuple[str, ...]:
    """What is there too much, after a moment for what ends."""
    found: tuple[str, ...] = ()
    for _ in range(100):
        found = tuple(await surplus(there, client, open_before))
        if not found:
            break
        await asyncio.sleep(0.1)
    return found


async def surplus(
    there: Cluster, client: httpx.AsyncClient, open_before: Sequence[int]
) -> list[str]:
    """Answers in progress, workers and descriptors."""
    metrics = (await client.get("/metrics")).text
    busy = re.findall(r'roundhouse_(?:in_use|waiting)\{model="[^"]*"\} [1-9].*', metrics)
    workers = [f"{len(each)} workers" for each in there.workers() if len(each) != 1]
    now = there.descriptors()
    more = [f"{b} descriptors for {a}" for a, b in zip(open_before, now, strict=True) if b > a]
    return [*busy, *workers, *more]


async def trials(there: Cluster, kinds: Sequence[str], times: int) -> list[Trial]:
    """All of them, in turn."""
    limits = httpx.Limits(max_connections=4 * STREAMS)
    async with httpx.AsyncClient(base_url=there.url, limits=limits, timeout=PATIENCE) as client:
        return [await tried(there, client, kind) for _ in range(times) for kind in kinds]


def targets(found: Sequence[Trial], kinds: Sequence[str]) -> Iterator[report.Target]:
    """By kind."""
    for kind in kinds:
        each, most = [one for one in found if one.kind == kind], FAULTS[kind][1]
        broken, left_over = sum(one.broken for one in each), sum(bool(one.left) for one in each)
        yield report.Target(f"{kind}: no other stream breaks", str(broken), broken == 0)
        yield report.Target(f"{kind}: nothing is left", str(left_over), left_over == 0)
        seen = sorted(one.seen for one in each if one.seen)
        if seen:
            promise = f"{kind}: all of its streams know within {most:g} s"
            told = f"{median(seen):.3f} s in the middle, {seen[-1]:.3f} s at most"
            yield report.Target(promise, told, seen[-1] <= most)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=3, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=tuple(FAULTS), default=list(FAULTS))
    options = parser.parse_args(argv)
    with cluster() as there:
        found = asyncio.run(trials(there, options.kinds, options.times))
    for kind in options.kinds:
        back = [one.back for one in found if one.kind == kind]
        over = sum(one.over for one in found if one.kind == kind)
        first = median(one.first for one in found if one.kind == kind)
        print(
            f"{kind}: the first error after {first:.3f} s; back in {median(back):.2f} s; "
            f"{over} streams had ended before"
        )
    for one in found:
        for what in one.left:
            print(f"{one.kind}: left: {what}")
    report.tell([*targets(found, options.kinds)])


if __name__ == "__main__":
    main()
