"""The cost of a worker: the same model in the server's process, in one of its own, and in one
behind a TCP connection, as on another machine; here over loopback.

    python -m benchmarks.hosts [--models smollm2 tiny] [--streams 1 4 16] [--rounds 8] [--seconds 3]
        [--places process worker tcp]

The servers run from the start to the end and take turns; those that aren't measured are idle.
On two processors that takes about six minutes with the default rounds. To shorten it leave out
models or rounds. Targets: what a worker adds to the time to the first text, and its share of the
process' tokens per second. Over loopback the node's listener computes on the same processors.

Beside other work these differ from turn to turn by more than the places do. What the processors do
for a token differs less: CPU time of the server and its workers, the engine's threads included.
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import psutil

import bundled
from benchmarks import realistic, report
from benchmarks.answers import Figures
from benchmarks.peers import Running, roundhouse
from benchmarks.serving import ENDLESS, Plan, over_http
from benchmarks.turns import ROUNDS, Measure, taken
from tests.backends.places.nodes.process import listener
from tests.real import lab

PROCESS, WORKER, TCP = "process", "worker", "tcp"
VARIABLE = "ROUNDHOUSE_ENGINES_HOST"
MOST_ADDED = {WORKER: 0.001, TCP: 0.002}  # seconds to the first text, in the middle
SHARES = {1: 0.95, 4: 1.0, 16: 1.0}  # of tokens per second, by streams


Costs = Mapping[tuple[str, int], list[float]]  # CPU seconds a token, by place and streams


def measured(
    model: Path,
    places: Sequence[str],
    streams: Sequence[int],
    rounds: int,
    seconds: float,
) -> tuple[list[report.Row], Costs]:
    """A row for each place and number of streams. Raises DidNotStart, and what `run` raises."""
    plan = Plan(model, tuple(streams), rounds, seconds, seconds / 4)
    costs: dict[tuple[str, int], list[float]] = {}
    with contextlib.ExitStack() as running:
        measures: dict[str, Measure] = {}
        for name in places:
            server, others = running.enter_context(PLACES[name](model))
            measures[name] = counting(name, plan, server, others, costs)
            measures[name](1)
        costs.clear()
        return taken(measures, plan.streams, plan.rounds), costs


Place = tuple[Running, Sequence[int]]  # a server, and processes that compute for it


@contextlib.contextmanager
def here(model: Path, host: str) -> Iterator[Place]:
    """On this machine."""
    with roundhouse(str(model), environment={VARIABLE: host}) as server:
        yield server, ()


@contextlib.contextmanager
def on_a_node(model: Path) -> Iterator[Place]:
    """Behind TCP."""
    with listener() as node, tempfile.TemporaryDirectory() as folder:
        config = {
            "nodes": [{"name": "node", "address": node.address, "token": node.token}],
            "models": [{"name": model.stem, "path": str(model), "options": {"host": "node"}}],
        }
        path = Path(folder) / "roundhouse.yaml"
        path.write_text(json.dumps(config))
        with roundhouse("--config", str(path)) as server:
            yield server, (node.pid,)


PLACES: Mapping[str, Callable[[Path], contextlib.AbstractContextManager[Place]]] = {
    PROCESS: lambda model: here(model, "process"),
    WORKER: lambda model: here(model, "worker"),
    TCP: on_a_node,
}


def counting(
    name: str,
    plan: Plan,
    server: Running,
    others: Sequence[int],
    costs: dict[tuple[str, int], list[float]],
) -> Measure:
    """Measures over HTTP, and adds what a token cost to `costs`."""
    measure = over_http(plan, server, ENDLESS)

    def measured(streams: int) -> Figures:
        before = sum(map(processor_seconds, (server.pid, *others)))
        figures = measure(streams)
        tokens = figures.tokens_per_second * (plan.warm_up + plan.seconds)
        if tokens:
            spent = sum(map(processor_seconds, (server.pid, *others))) - before
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


def table(
    name: str, rows: Sequence[report.Row], costs: Costs, places: Sequence[str], count: int
) -> str:
    """Markdown: a line for each place."""
    lines = []
    first = row(rows, places[0], count).middle
    for place in places:
        there = row(rows, place, count).middle
        share = there.tokens_per_second / first.tokens_per_second
        spent = median(costs.get((place, count), [0.0]))
        lines.append(
            f"| {name}, {count} | {place} | {there.tokens_per_second:,.0f} | {share:.0%} "
            f"| {(there.ttft_p50 or 0) * 1000:.1f} ms | {spent * 1e6:.0f} µs |"
        )
    return "\n".join(lines)


HEAD = """\
| model, streams | place | tokens/s | share | TTFT | CPU a token |
|---|---|--:|--:|--:|--:|"""


def targets(
    name: str, rows: Sequence[report.Row], place: str, streams: Sequence[int]
) -> Iterator[report.Target]:
    """Of one beside the process, at each number of streams."""
    most = MOST_ADDED[place]
    for count in streams:
        here, there = row(rows, PROCESS, count).middle, row(rows, place, count).middle
        added = (there.ttft_p50 or 0.0) - (here.ttft_p50 or 0.0)
        promise = f"{name}, {place}, {count} streams: first text at most {most * 1000:g} ms later"
        yield report.Target(promise, f"{added * 1000:+.2f} ms", added <= most)
        share, least = there.tokens_per_second / here.tokens_per_second, SHARES.get(count, 1.0)
        promise = f"{name}, {place}, {count} streams: at least {least:.0%} of the process' tokens/s"
        yield report.Target(promise, f"{share:.1%}", share >= least)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=("smollm2", "tiny", *realistic.SIZES),
        default=("smollm2", "tiny"),
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured in each turn")
    parser.add_argument("--places", nargs="+", choices=tuple(PLACES), default=list(PLACES))
    options = parser.parse_args(argv)
    places = list(dict.fromkeys((PROCESS, *options.places)))  # the others are compared with it
    machine = report.machine()
    print(f"{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}\n")
    found: list[report.Target] = []
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = lab.smollm2() if name == "smollm2" else bundled.GGUF
            if name in realistic.SIZES:
                path = realistic.write(Path(folder) / f"{name}.gguf", realistic.SIZES[name])
            rows, costs = measured(path, places, options.streams, options.rounds, options.seconds)
            for count in options.streams:
                print(table(name, rows, costs, places, count), flush=True)
            for place in places[1:]:
                found += targets(name, rows, place, options.streams)
    print()
    report.tell(found)


if __name__ == "__main__":
    main()
