"""Hot swap on the running server, with the bundled model under two names that don't fit together.

    python -m benchmarks.swapping [--output FILE]

- swap: from sending a request for the absent model to its first text, less the load time that the
  server tells in `x-roundhouse-load-time`.
- alternating: 200 requests for the two in turn, all sent at once; how many swaps it took. Beside it
  the same with `max_wait: 0`, which makes every waiting request's turn come first, so that they are
  served in the order they came.
- undisturbed: 50 streams of one model while another loads and unloads ten times; how many broke,
  and the gaps between their tokens beside those without loads.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import httpx
import msgspec

import bundled
from benchmarks.peers import Running, roundhouse
from benchmarks.report import machine

RESULT = Path(__file__).with_name("results") / "swapping.json"
NAMES = ("left", "right")
ONE_AT_A_TIME = 180_000_000  # bytes: room for one of the two, with its cache
SWAPS = 20
REQUESTS = 200
STREAMS = 50
LOADS = 10
LIMITS = httpx.Limits(max_connections=None)


class Swap(msgspec.Struct, frozen=True):
    """Seconds: the load as the server tells it, and all of the wait until the first text."""

    load: float
    first_text: float


class Alternating(msgspec.Struct, frozen=True):
    """`failures`: answers other than 200; `seconds` until the last one."""

    requests: int
    swaps: int
    failures: int
    seconds: float


class Undisturbed(msgspec.Struct, frozen=True):
    """Gaps are seconds between two events of a stream, p99 over all."""

    streams: int
    loads: int
    broken: int
    gap_p99_alone: float
    gap_p99_beside_loads: float


class Results(msgspec.Struct, frozen=True):
    """What is written."""

    machine: object
    swaps: tuple[Swap, ...]
    fair: Alternating
    first_come: Alternating
    undisturbed: Undisturbed


def config(folder: Path, **swap: object) -> Path:
    """A configuration file with the bundled model under both names."""
    model = folder / "tiny.gguf"
    if not model.exists():
        shutil.copy(bundled.GGUF, model)  # its file, so that a retraining doesn't pull it away
    path = folder / "roundhouse.yaml"
    settings = {
        "models": [{"name": name, "path": str(model)} for name in NAMES],
        "swap": {"min_stay": 0.0, **swap},
        "log": {"level": "warning"},
    }
    path.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
    return path


def client(running: Running) -> httpx.AsyncClient:
    """With as many connections as requests."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{running.port}", timeout=300, limits=LIMITS
    )


def body(model: str, tokens: int, *, stream: bool) -> dict[str, object]:
    """A request for exactly `tokens` tokens."""
    message = {"role": "user", "content": "Tell me a short story."}
    extra = {"ban_eos_token": True, "temperature": 0.8}
    return {"model": model, "messages": [message], "max_tokens": tokens, "stream": stream, **extra}


async def events(api: httpx.AsyncClient, model: str, tokens: int) -> AsyncIterator[float]:
    """When each event with text came. Raises ValueError for a stream that breaks."""
    request = body(model, tokens, stream=True)
    last = ""
    async with api.stream("POST", "/v1/chat/completions", json=request) as answer:
        async for line in answer.aiter_lines():
            if '"content":' in line or '"reasoning_content":' in line:
                yield time.perf_counter()
            last = line or last
    if last != "data: [DONE]":
        raise ValueError(last)


async def swaps(running: Running) -> tuple[Swap, ...]:
    """One after the other, the model that isn't there."""
    measured = []
    async with client(running) as api:
        for number in range(SWAPS + 2):
            request = body(NAMES[number % 2], 1, stream=True)
            sent = time.perf_counter()
            async with api.stream("POST", "/v1/chat/completions", json=request) as answer:
                async for line in answer.aiter_lines():
                    if "content" in line:
                        break
                load = float(answer.headers["x-roundhouse-load-time"])
                measured.append(Swap(load, time.perf_counter() - sent))
    return tuple(measured[2:])  # the first two read the template and the file for the first time


async def alternating(running: Running) -> Alternating:
    """All at once, in turn for one and the other."""
    async with client(running) as api:
        before, started = await loads(api), time.perf_counter()
        answers = await asyncio.gather(
            *(
                api.post("/v1/chat/completions", json=body(NAMES[n % 2], 20, stream=False))
                for n in range(REQUESTS)
            )
        )
        seconds = time.perf_counter() - started
        swapped = await loads(api) - before
    failures = sum(answer.status_code != httpx.codes.OK for answer in answers)
    return Alternating(REQUESTS, swapped, failures, seconds)


async def loads(api: httpx.AsyncClient) -> int:
    """How many loads there have been, by the server's own metrics."""
    text = (await api.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("roundhouse_load_seconds_count")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


async def undisturbed(running: Running) -> Undisturbed:
    """Long streams of one model; the other comes and goes."""
    async with client(running) as api:
        async for _ in events(api, NAMES[0], 20):  # load it
            pass
        alone, _ = await streams(api)
        tasks = asyncio.create_task(streams(api))
        for _ in range(LOADS):
            await api.post("/models/load", json={"model": NAMES[1]})
            await api.post("/models/unload", json={"model": NAMES[1]})
        beside, broken = await tasks
    return Undisturbed(STREAMS, LOADS, broken, p99(alone), p99(beside))


async def streams(api: httpx.AsyncClient) -> tuple[list[float], int]:
    """All gaps of all streams, and how many streams broke."""
    gaps: list[float] = []

    async def one() -> None:
        gaps.extend(
            late - early
            for early, late in pairwise([at async for at in events(api, NAMES[0], 600)])
        )

    ends = await asyncio.gather(*(one() for _ in range(STREAMS)), return_exceptions=True)
    return gaps, sum(isinstance(end, Exception) for end in ends)


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return quantiles(values, n=100)[98]


def measure() -> Results:
    """Everything, each on a fresh server."""
    tight = {"memory": {"cpu": ONE_AT_A_TIME}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with roundhouse("--config", str(config(folder, **tight))) as running:
            swapped = asyncio.run(swaps(running))
            fair = asyncio.run(alternating(running))
        with roundhouse("--config", str(config(folder, max_wait=0.0, **tight))) as running:
            first_come = asyncio.run(alternating(running))
        with roundhouse("--config", str(config(folder))) as running:
            calm = asyncio.run(undisturbed(running))
    return Results(machine(), swapped, fair, first_come, calm)


def table(results: Results) -> str:
    """For people."""
    over = [swap.first_text - swap.load for swap in results.swaps]
    load = median(swap.load for swap in results.swaps)
    fair, fifo, calm = results.fair, results.first_come, results.undisturbed
    return (
        f"swap: load {load * 1e3:.0f} ms, first text {median(over) * 1e3:.1f} ms later "
        f"(worst {max(over) * 1e3:.1f}); target 30\n"
        f"alternating: {fair.requests} requests, {fair.swaps} swaps, {fair.failures} failures, "
        f"{fair.seconds:.1f} s; target at most 6 and 0\n"
        f"  in the order they came: {fifo.swaps} swaps, {fifo.failures} failures, "
        f"{fifo.seconds:.1f} s\n"
        f"undisturbed: {calm.streams} streams beside {calm.loads} loads and unloads, "
        f"{calm.broken} broken; gap p99 {calm.gap_p99_beside_loads * 1e3:.1f} ms, "
        f"{calm.gap_p99_alone * 1e3:.1f} alone; target 0, and at most twice"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    results = measure()
    print(table(results))
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")


if __name__ == "__main__":
    main()
