"""The cost of a worker: the same model in the server's process, and in one of its own.

    python -m benchmarks.hosts [--models tiny 27M] [--streams 1 4 16] [--rounds 8] [--seconds 3]

Both servers run from the start to the end and take turns; the one that isn't measured is idle. On
two processors that takes about four minutes with the default rounds. To shorten it leave out models
or rounds. Targets: what a worker adds to the time to the first text, and its share of the
process' tokens per second.

Beside other work these differ from turn to turn by more than the places do. What the processors do
for a token differs less: CPU time of the server and its workers, the engine's threads included.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import psutil

import bundled
from benchmarks import realistic, report
from benchmarks.answers import Figures
from benchmarks.peers import Running, roundhouse
from benchmarks.serving import ENDLESS, Plan, over_http
from benchmarks.turns import ROUNDS, Measure, taken

PROCESS, WORKER = "in the process", "in a worker"
VARIABLE = "ROUNDHOUSE_ENGINES_HOST"
MOST_ADDED = 0.001  # seconds to the first text, in the middle
SHARES = {1: 0.95, 4: 1.0, 16: 1.0}  # of tokens per second, by streams


Costs = Mapping[tuple[str, int], list[float]]  # CPU seconds a token, by place and streams


def measured(
    model: Path, streams: Sequence[int], rounds: int, seconds: float
) -> tuple[list[report.Row], Costs]:
    """A row for each place and number of streams. Raises DidNotStart, and what `run` raises."""
    plan = Plan(model, tuple(streams), rounds, seconds, seconds / 4)
    costs: dict[tuple[str, int], list[float]] = {}
    with contextlib.ExitStack() as running:
        measures: dict[str, Measure] = {}
        for name, host in {PROCESS: "process", WORKER: "worker"}.items():
            environment = {VARIABLE: host}
            server = running.enter_context(roundhouse(str(model), environment=environment))
            measures[name] = counting(name, plan, server, costs)
            measures[name](1)
        costs.clear()
        return taken(measures, plan.streams, plan.rounds), costs


def counting(
    name: str, plan: Plan, server: Running, costs: dict[tuple[str, int], list[float]]
) -> Measure:
    """Measures over HTTP, and adds what a token cost to `costs`."""
    measure = over_http(plan, server, ENDLESS)

    def measured(streams: int) -> Figures:
        before = processor_seconds(server.pid)
        figures = measure(streams)
        tokens = figures.tokens_per_second * (plan.warm_up + plan.seconds)
        if tokens:
            spent = processor_seconds(server.pid) - before
            costs.setdefault((name, streams), []).append(spent / tokens)
        return figures

    return measured


def processor_seconds(pid: int) -> float:
    """That a process and those below it have computed."""
    root = psutil.Process(pid)
    times = [one.cpu_times() for one in (root, *root.children(recursive=True))]
    seconds: float = sum(one.user + one.system for one in times)
    return seconds


def row(rows: Sequence[report.Row], name: str, streams: int) -> report.Row:
    """That of a place."""
    return next(one for one in rows if (one.candidate, one.streams) == (name, streams))


def table(name: str, rows: Sequence[report.Row], costs: Costs, streams: Sequence[int]) -> str:
    """Markdown: a line for each number of streams."""
    head = (
        f"| {name}, streams | tokens/s, process | worker | share | TTFT, process | worker | "
        "CPU a token, process | worker |"
    )
    lines = [head, "|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for count in streams:
        here, there = row(rows, PROCESS, count).middle, row(rows, WORKER, count).middle
        share = there.tokens_per_second / here.tokens_per_second
        times = " | ".join(f"{(one.ttft_p50 or 0) * 1000:.1f} ms" for one in (here, there))
        each = (median(costs.get((place, count), [0.0])) for place in (PROCESS, WORKER))
        spent = " | ".join(f"{seconds * 1e6:.0f} µs" for seconds in each)
        lines.append(
            f"| {count} | {here.tokens_per_second:,.0f} | {there.tokens_per_second:,.0f} "
            f"| {share:.0%} | {times} | {spent} |"
        )
    return "\n".join(lines)


def targets(
    name: str, rows: Sequence[report.Row], streams: Sequence[int]
) -> Iterator[report.Target]:
    """Of a worker, at each number of streams."""
    for count in streams:
        here, there = row(rows, PROCESS, count).middle, row(rows, WORKER, count).middle
        added = (there.ttft_p50 or 0.0) - (here.ttft_p50 or 0.0)
        promise = f"{name}, {count} streams: first text at most {MOST_ADDED * 1000:g} ms later"
        yield report.Target(promise, f"{added * 1000:+.2f} ms", added <= MOST_ADDED)
        share, least = there.tokens_per_second / here.tokens_per_second, SHARES.get(count, 1.0)
        promise = f"{name}, {count} streams: at least {least:.0%} of the process' tokens/s"
        yield report.Target(promise, f"{share:.1%}", share >= least)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", choices=("tiny", *realistic.SIZES), default=("tiny", "27M")
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured in each turn")
    options = parser.parse_args(argv)
    machine = report.machine()
    print(f"{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}\n")
    found: list[report.Target] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = bundled.GGUF
            if name != "tiny":
                path = realistic.write(Path(folder) / f"{name}.gguf", realistic.SIZES[name])
            rows, costs = measured(path, options.streams, options.rounds, options.seconds)
            print(table(name, rows, costs, options.streams), "\n", flush=True)
            found += targets(name, rows, options.streams)
    report.tell(found)


if __name__ == "__main__":
    main()
