"""Whether Roundhouse is ahead of llama.cpp's own server: all of it in some twenty minutes.

    python -m benchmarks.ahead [--parts real idle busy loop prompt] [--rounds 8] [--quick]

real    tokens a second, first text and gaps beside llama-server and a bare loop, with SmolLM2 of
        the lab (tests/real). Eight minutes.
idle    the same with the bundled model. With a KV cache of q8_0, too: in builds for AVX-512
        llama.cpp computes f16 attention over heads of 32 (this model's) one by one, and
        llama-server's wheel is built for AVX2. Six minutes.
busy    the same beside a busy process. Two minutes.
loop    what a token costs the event loop; 64 streams
prompt  a long prompt

Candidates take turns (`turns.in_turn`), and each figure is the median of the turns. Prints Markdown
for the README. On a machine that does something else meanwhile it says little.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

import bundled
from benchmarks import long_prompt, loop_cost, report
from benchmarks.peers import busy_processes, llama_server, llamacpp_options, roundhouse
from benchmarks.serving import ENDLESS, Plan, model_context, over_http, raw
from benchmarks.turns import ROUNDS, Measure, taken
from config.engines import LlamaCppOptions
from tests.real import lab

ONE_THREAD = "Roundhouse, 1 thread"
SMALL_CACHE = "Roundhouse, q8_0 cache"
THEIR_SMALL_CACHE = "llama-server, q8_0 cache"
TIMES = 5.0  # as many tokens a second beside a busy process
PROMPTS = 4  # long ones, in each turn


class Effort(msgspec.Struct, frozen=True):
    """How many turns each candidate has, and how many seconds a turn measures."""

    rounds: int
    seconds: float


class Part(msgspec.Struct, frozen=True):
    """Of a run: Markdown, and what was promised."""

    table: str
    targets: Sequence[report.Target]


@contextlib.contextmanager
def candidates(
    plan: Plan, *, bare: bool = False, small: bool = False
) -> Iterator[Mapping[str, Measure]]:
    """All servers run from the start to the end; those that aren't measured wait. Each has answered
    once. `bare`: the bare loop, too; `small`: caches of q8_0.
    """
    slots, context, model = LlamaCppOptions().max_concurrent, model_context(plan.model), plan.model
    ours = {
        report.OURS: llamacpp_options(),
        ONE_THREAD: llamacpp_options(threads="1", threads_batch="1"),
    }
    theirs = {report.LLAMA_SERVER: "f16"}
    if small:
        ours[SMALL_CACHE] = llamacpp_options(cache_type_k="q8_0", cache_type_v="q8_0")
        theirs[THEIR_SMALL_CACHE] = "q8_0"
    with contextlib.ExitStack() as running:
        measures = {name: raw(plan, n) for n, name in report.RAW.items()} if bare else {}
        for name, environment in ours.items():
            server = running.enter_context(roundhouse(str(model), environment=environment))
            measures[name] = over_http(plan, server, ENDLESS)
        for name, cache in theirs.items():
            peer = llama_server(model, context, slots, cache_type=cache)
            measures[name] = over_http(plan, running.enter_context(peer), ENDLESS)
        for name in (*ours, *theirs):
            measures[name](1)
        yield measures


def real(effort: Effort) -> Part:
    """SmolLM2. Four times the seconds: an answer of 16 takes some."""
    plan = Plan(lab.smollm2(), (1, 4, 16), effort.rounds, 4 * effort.seconds, effort.seconds)
    with candidates(plan, bare=True) as measures:
        rows = taken(measures, plan.streams, plan.rounds)
    return Part(report.table(rows), report.targets(both(rows), None, ()))


def idle(effort: Effort) -> Part:
    """The bundled model."""
    plan = Plan(bundled.GGUF, (1, 4, 16), effort.rounds, effort.seconds, effort.seconds / 2)
    with candidates(plan, bare=True, small=True) as measures:
        rows = taken(measures, plan.streams, plan.rounds)
    return Part(report.table(rows), report.targets(both(rows), None, ()))


def busy(effort: Effort) -> Part:
    """The bundled model, beside a busy process, which a server may find out in the warm-up."""
    plan = Plan(bundled.GGUF, (1, 4), effort.rounds, effort.seconds, effort.seconds)
    with candidates(plan) as measures, busy_processes(1):
        rows = taken(measures, plan.streams, plan.rounds)
    return Part(report.table(rows), tuple(times_busy(rows)))


def loop(effort: Effort) -> Part:
    """CPU time, which has no turns: nobody else is measured."""
    costs = list(loop_cost.measured(2 * effort.seconds))
    return Part(loop_cost.table(costs), tuple(loop_cost.targets(costs)))


def prompt(effort: Effort) -> Part:
    """A long prompt by itself, and a stream beside it."""
    figures = long_prompt.measured(effort.rounds, PROMPTS)
    return Part(long_prompt.table(*figures), tuple(long_prompt.targets(*figures)))


PARTS: Mapping[str, Callable[[Effort], Part]] = {
    "real": real,
    "idle": idle,
    "busy": busy,
    "loop": loop,
    "prompt": prompt,
}


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


def arguments(argv: Sequence[str] | None) -> tuple[Sequence[str], Effort]:
    """The parts to measure, and how long."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each candidate")
    parser.add_argument("--quick", action="store_true", help="a minute, to see that it works")
    options = parser.parse_args(argv)
    return options.parts, Effort(1, 0.5) if options.quick else Effort(options.rounds, 1.0)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parts, effort = arguments(argv)
    machine = report.machine()
    print(f"{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}")
    for name in parts:
        part = PARTS[name](effort)
        print(f"\n{name}:\n\n{part.table}\n", flush=True)
        report.tell(part.targets)


if __name__ == "__main__":
    main()
