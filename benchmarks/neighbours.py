"""Tokens a second beside busy processes: the bare loop, fixed thread counts, `threads: auto`,
llama.cpp's and llama-cpp-python's server, in one run.

    python -m benchmarks.neighbours [--busy 0 1 2 4] [--streams 1 4] [--rounds 1] [--seconds 2]

A busy process is a shell that computes for ever. The candidates take turns beside the same ones.
Every measurement begins after a warm-up in which a server may find out what runs beside it. The
last column is the share that `auto` reaches of our server's best fixed count.
"""

import argparse
import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import bundled
from benchmarks import report
from benchmarks.peers import busy_processes, llama_cpp_python, llama_server, peer
from benchmarks.serving import (
    ENDLESS,
    NEVER,
    Plan,
    by_threads,
    end_tokens,
    model_context,
    over_http,
    raw,
)
from benchmarks.turns import Measure, taken
from config.engines import LlamaCppOptions

FIXED = (1, 2)  # thread counts
PEER = report.PEER


@contextlib.contextmanager
def candidates(plan: Plan) -> Iterator[Mapping[str, Measure]]:
    """All servers run from the start to the end; those that aren't measured are idle."""
    no_end = {"logit_bias": {str(token): NEVER for token in end_tokens(plan.model)}}
    with contextlib.ExitStack() as running:
        context, slots = model_context(plan.model), LlamaCppOptions().max_concurrent
        in_line = peer(running, PEER, llama_cpp_python(plan.model, context, interrupt=False))
        llama = peer(running, report.LLAMA_SERVER, llama_server(plan.model, context, slots))
        measures = {f"bare loop, {count}": raw(plan, count) for count in FIXED}
        measures |= by_threads(plan, FIXED, running)
        if in_line is not None:
            measures[PEER] = over_http(plan, in_line, no_end)
        if llama is not None:
            measures[report.LLAMA_SERVER] = over_http(plan, llama, ENDLESS)
        yield measures


def table(rows: Mapping[int, Sequence[report.Row]], streams: Sequence[int]) -> str:
    """Markdown: a line for each number of busy processes and of streams."""
    names = list(dict.fromkeys(row.candidate for each in rows.values() for row in each))
    head = f"| busy | streams | {' | '.join(names)} | auto of best |"
    lines = [head, "|--:|--:|" + "--:|" * (len(names) + 1)]
    for busy, measured in rows.items():
        for count in streams:
            speeds = report.speeds_at(measured, count)
            cells = " | ".join(f"{speeds[name]:,.0f}" for name in names)
            share = report.share_of_fixed(speeds, FIXED)
            lines.append(f"| {busy} | {count} | {cells} | {share:.0%} |")
    return "\n".join(lines)


def _stop(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt  # so that SIGTERM, too, ends what was started


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=bundled.GGUF)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warm-up", type=float, default=2.0)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)
    streams = tuple(options.streams)
    plan = Plan(options.model.resolve(), streams, options.rounds, options.seconds, options.warm_up)
    machine = report.machine()
    rows = {}
    with candidates(plan) as measures:
        for count in options.busy:
            print(f"beside {count} busy processes", flush=True)
            with busy_processes(count):
                rows[count] = taken(measures, plan.streams, plan.rounds)
    print(f"\n{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}\n")
    print(table(rows, streams))


if __name__ == "__main__":
    main()
