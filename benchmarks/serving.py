"""The command: Roundhouse, the raw loop and other servers side by side, in one run.

    python -m benchmarks.serving [--streams 1 4 16] [--rounds 3] [--seconds 4] [--busy 0]
                                 [--peers llama-server llama-cpp-python] [--output FILE]

`--busy` runs so many busy processes beside all of it.

The candidates take turns within every round, so that what the machine does meanwhile hits all
alike; the table shows the middle of the rounds. Everybody computes answers of the same length, with
the same model, context and sampling.
"""

import argparse
import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import bundled
from backends.engines.llamacpp.gguf import read_header
from backends.engines.llamacpp.layout import context_length
from backends.engines.llamacpp.recognition import recognise
from benchmarks import report
from benchmarks.answers import Figures
from benchmarks.apart import run
from benchmarks.conversation import converse
from benchmarks.conversation import table as turns_table
from benchmarks.footprint import weigh
from benchmarks.load import Load
from benchmarks.peers import (
    Running,
    busy_processes,
    llama_cpp_python,
    llama_server,
    llamacpp_options,
    peer,
    roundhouse,
)
from benchmarks.raw_loop import RawLoad, RawSpeed
from benchmarks.turns import Measure, taken
from config.engines import LlamaCppOptions

ANSWER_TOKENS = 200
TEMPERATURE = 0.8
UNTRUNCATED = {"temperature": TEMPERATURE, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
NEVER = -100.0  # the logit bias that bans a token
ENDLESS = {"ignore_eos": True}  # how a server is asked never to end by itself
PATIENCE = 30.0  # seconds that a measurement may take longer than it should
RESULTS = Path(__file__).parent / "results" / "serving.json"


class Plan(msgspec.Struct, frozen=True):
    """What to measure for how long."""

    model: Path
    streams: tuple[int, ...]
    rounds: int
    seconds: float
    warm_up: float
    peers: tuple[str, ...] = tuple(report.PEERS)
    busy: int = 0  # processes that want a core each
    answer_tokens: int = ANSWER_TOKENS


def compare(plan: Plan) -> list[report.Row]:
    """Measure all candidates, taking turns.

    Raises DidNotStart where Roundhouse doesn't, and TimeoutExpired.
    """
    with busy_processes(plan.busy), candidates(plan) as measures:
        return taken(measures, plan.streams, plan.rounds)


@contextlib.contextmanager
def candidates(plan: Plan) -> Iterator[Mapping[str, Measure]]:
    """All servers run from the start to the end; the one that isn't measured is idle."""
    with contextlib.ExitStack() as running:
        ours = running.enter_context(roundhouse(str(plan.model)))
        yield {
            **{name: raw(plan, threads) for threads, name in report.RAW.items()},
            report.OURS: over_http(plan, ours, ENDLESS),
            **{
                name: measure
                for other in plan.peers
                for name, measure in PEERS[other](plan, running).items()
            },
        }


def _llama_server(plan: Plan, running: contextlib.ExitStack) -> Mapping[str, Measure]:
    slots = LlamaCppOptions().max_concurrent
    server = llama_server(plan.model, model_context(plan.model), slots)
    started = peer(running, report.LLAMA_SERVER, server)
    return {} if started is None else {report.LLAMA_SERVER: over_http(plan, started, ENDLESS)}


def _llama_cpp_python(plan: Plan, running: contextlib.ExitStack) -> Mapping[str, Measure]:
    context = model_context(plan.model)
    no_end = {"logit_bias": {str(token): NEVER for token in end_tokens(plan.model)}}
    measures = {}
    for name, interrupt in {report.PEER: True, report.PEER_IN_LINE: False}.items():
        server = llama_cpp_python(plan.model, context, interrupt=interrupt)
        if (started := peer(running, name, server)) is not None:
            measures[name] = over_http(plan, started, no_end)
    return measures


PEERS = {report.LLAMA_SERVER: _llama_server, report.PEER: _llama_cpp_python}


def over_http(plan: Plan, running: Running, no_end: Mapping[str, Any]) -> Measure:
    """Streams to a server; `no_end` is how it is asked never to end by itself. A server that
    doesn't get done has no tokens: beside busy processes that happens.
    """

    def measure(streams: int) -> Figures:
        load = Load(
            port=running.port,
            streams=streams,
            seconds=plan.seconds,
            warm_up=plan.warm_up,
            max_tokens=plan.answer_tokens,
            body={"model": plan.model.stem, **UNTRUNCATED, **no_end},
        )
        try:
            return run("benchmarks.load", load, Figures, plan.warm_up + plan.seconds + PATIENCE)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"no figures: {error}", flush=True)
            return Figures(tokens_per_second=0.0)

    return measure


def by_threads(
    plan: Plan, counts: Sequence[int], running: contextlib.ExitStack, **options: str
) -> Mapping[str, Measure]:
    """Our servers with each fixed number of threads, and with `auto`, to the end of `running`.
    Raises DidNotStart.
    """
    measures = {}
    named = {report.with_threads(count): str(count) for count in counts}
    for name, threads in {**named, report.AUTO: "auto"}.items():
        environment = llamacpp_options(threads=threads, threads_batch=threads, **options)
        server = running.enter_context(roundhouse(str(plan.model), environment=environment))
        measures[name] = over_http(plan, server, ENDLESS)
    return measures


def raw(plan: Plan, threads: int) -> Measure:
    """The bare loop with so many threads."""

    def measure(streams: int) -> Figures:
        load = _raw_load(plan, streams, threads)
        speed = run("benchmarks.raw_loop", load, RawSpeed, 3 * PATIENCE)
        return Figures(tokens_per_second=speed.tokens_per_second)

    return measure


def _raw_load(plan: Plan, streams: int, threads: int) -> RawLoad:
    return RawLoad(
        model=str(plan.model),
        streams=streams,
        threads=threads,
        seconds=plan.seconds,
        warm_up=plan.warm_up,
        max_tokens=plan.answer_tokens,
        temperature=TEMPERATURE,
    )


def model_context(model: Path) -> int:
    """The tokens that all candidates have room for."""
    files = recognise(model)
    assert files is not None
    return context_length(files, LlamaCppOptions())


def end_tokens(model: Path) -> tuple[int, ...]:
    """The token that ends an answer, for servers that must be told its number."""
    return (read_header(model).number("tokenizer.ggml.eos_token_id"),)


def write(output: Path, whole: report.Report) -> None:
    """JSON for people to compare and programs to read."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n")


def measure_all(plan: Plan) -> report.Report:
    """The whole run. Raises what `compare` raises."""
    machine = report.machine()
    rows = compare(plan)
    footprint = weigh(plan.model)
    with roundhouse(str(plan.model)) as running:
        turns = converse(running.port, plan.model.stem)
    return report.Report(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        model=plan.model.name,
        answer_tokens=plan.answer_tokens,
        rows=tuple(rows),
        footprint=footprint,
        conversation=turns,
        targets=report.targets(rows, footprint, turns),
    )


def show(whole: report.Report) -> None:
    """The tables and the targets."""
    machine = whole.machine
    print(f"\n{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}\n")
    print(report.table(whole.rows), "\n")
    print(turns_table(whole.conversation), "\n")
    report.tell(whole.targets)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=bundled.GGUF)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="measured per candidate, streams and round"
    )
    parser.add_argument(
        "--warm-up", type=float, default=1.0, help="seconds of the same load before"
    )
    parser.add_argument("--busy", type=int, default=0, help="processes that want a core each")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    plan = Plan(
        options.model.resolve(),
        tuple(options.streams),
        options.rounds,
        options.seconds,
        options.warm_up,
        tuple(options.peers),
        options.busy,
    )
    whole = measure_all(plan)
    show(whole)
    write(options.output, whole)


if __name__ == "__main__":
    main()
