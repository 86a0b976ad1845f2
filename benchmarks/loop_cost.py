"""What a streamed token costs the event loop's thread, and whether many streams keep their pace.

    python -m benchmarks.loop_cost [--seconds 4]

CPU time of the server's threads, which a busy machine changes less than the clock: Linux' schedstat
counts it in nanoseconds. The scripted engine with steps of 8 ms stands in for a card; each of its
tokens is one byte, and its text has no spaces: a space waits for what follows it, since a marker
would take it along, so that the next gap is two steps long. A stream's answer lasts longer than the
measurement, so that nothing but streaming is in the steps.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import bundled
from benchmarks import report
from benchmarks.answers import Figures
from benchmarks.apart import run
from benchmarks.load import Load
from benchmarks.peers import Running, roundhouse

STEP = 0.008  # seconds on the device
STREAMS = (1, 16, 64)
ANSWER_TOKENS = 400  # of the bundled model, in whole answers
WARM_UP = 1.0  # seconds
PATIENCE = 60.0  # seconds that a measurement may take longer than it should
COST = 20.0  # µs of the loop's CPU for a token at 16 streams
LONGER, LATE = 0.02, 1.5  # how much longer a step may be, and a gap's p99 in steps
ENVIRONMENT = {
    "ROUNDHOUSE_ENGINES_SCRIPTED_TOKENS_PER_SECOND": str(round(1 / STEP)),
    "ROUNDHOUSE_ENGINES_SCRIPTED_MAX_CONCURRENT": str(max(STREAMS)),
}


class LoopCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one number of streams. Microseconds of CPU for each token; requests are in them."""

    engine: str
    streams: int
    loop: float
    others: float  # all other threads of the server
    figures: Figures


def measured(seconds: float) -> Iterator[LoopCost]:
    """One after the other. Raises DidNotStart, and what `run` raises."""
    with scripted() as running:
        for streams in STREAMS:
            tokens = round((WARM_UP + seconds) / STEP)
            yield _cost("scripted", running, streams, seconds, tokens, {"model": "endless"})
    with roundhouse(str(bundled.GGUF)) as running:
        body = {"model": bundled.GGUF.stem, "temperature": 0.8, "ignore_eos": True}
        for streams in STREAMS[:2]:
            yield _cost("llama.cpp", running, streams, seconds, ANSWER_TOKENS, body)


@contextlib.contextmanager
def scripted() -> Iterator[Running]:
    """A server whose model `endless` says more than any answer is long."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "endless.script.json"
        script = {"context_length": 100_000, "lines": [{"say": "thequickbrownfox" * 600}]}
        path.write_bytes(msgspec.json.encode(script))
        with roundhouse(str(path), environment=ENVIRONMENT) as running:
            yield running


def _cost(
    engine: str,
    running: Running,
    streams: int,
    seconds: float,
    tokens: int,
    body: Mapping[str, Any],
) -> LoopCost:
    load = Load(
        port=running.port,
        streams=streams,
        seconds=seconds,
        warm_up=WARM_UP,
        max_tokens=tokens,
        body=dict(body),
    )
    run("benchmarks.load", msgspec.structs.replace(load, max_tokens=10, seconds=0.1), Figures, 60)
    before = cpu_times(running.pid)
    figures = run("benchmarks.load", load, Figures, WARM_UP + seconds + PATIENCE)
    after = cpu_times(running.pid)
    said = figures.completed * tokens
    spent = {thread: after[thread] - before.get(thread, 0) for thread in after}
    loop = spent.pop(running.pid)
    return LoopCost(
        engine=engine,
        streams=streams,
        loop=loop / said / 1000,
        others=sum(spent.values()) / said / 1000,
        figures=figures,
    )


def cpu_times(pid: int) -> dict[int, int]:
    """Nanoseconds on a CPU so far, by thread: Documentation/scheduler/sched-stats.rst."""
    times = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            times[int(thread.name)] = int((thread / "schedstat").read_text().split()[0])
    return times


def table(costs: Sequence[LoopCost]) -> str:
    """Markdown."""
    lines = [
        "| engine | streams | loop, µs a token | other threads, µs | gap p50, ms | p99, ms |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for cost in costs:
        gaps = (cost.figures.gap_p50, cost.figures.gap_p99)
        columns = " | ".join("" if gap is None else f"{gap * 1000:.2f}" for gap in gaps)
        cells = f"{cost.loop:.1f} | {cost.others:.1f} | {columns}"
        lines.append(f"| {cost.engine} | {cost.streams} | {cells} |")
    return "\n".join(lines)


def targets(costs: Sequence[LoopCost]) -> Iterator[report.Target]:
    """Loop cost at 16 streams; the pace of 64."""
    by_name = {(cost.engine, cost.streams): cost for cost in costs}
    for engine in ("scripted", "llama.cpp"):
        loop = by_name[engine, 16].loop
        promise = f"{engine}, 16 streams: at most {COST:g} µs of the loop a token"
        yield report.Target(promise, f"{loop:.1f} µs", loop <= COST)
    one, most = (by_name["scripted", streams].figures for streams in (1, max(STREAMS)))
    longer = one.tokens_per_second * max(STREAMS) / most.tokens_per_second - 1
    promise = f"{max(STREAMS)} streams: a step at most {LONGER:.0%} longer than one stream's"
    yield report.Target(promise, f"{longer:+.1%}", longer <= LONGER)
    late = (most.gap_p99 or 0.0) / STEP
    promise = f"{max(STREAMS)} streams: gap p99 under {LATE:g} steps"
    yield report.Target(promise, f"{late:.2f} steps", 0 < late < LATE)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    costs = list(measured(parser.parse_args(argv).seconds))
    print(table(costs), "\n")
    report.tell(targets(costs))


if __name__ == "__main__":
    main()
