"""The transformers container beside `transformers serve` of the same version, in one run.

    python -m benchmarks.transformers_serve [--streams 1 4 16] [--rounds 3] [--seconds 4]

Same folder, same answers: 200 tokens at temperature 0.8 with nothing truncated, the end token
banned. The candidates take turns within every round. Of the peer's modes (with and without
`--continuous-batching`, each with torch's default threads and with one) the best counts at each
number of streams. On a machine that is busy with something else torch's threads wait for each other
endlessly: there, measure with `--peer-threads 1` alone. What came out and what was tried stands in
`transformers.md`.
"""

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

import bundled
from benchmarks import report
from benchmarks.answers import Figures
from benchmarks.apart import run
from benchmarks.load import Load
from benchmarks.peers import ROOT, Running, free_port, roundhouse, serving
from benchmarks.turns import Measure, taken

ANSWER_TOKENS = 200
TEMPERATURE = 0.8
PATIENCE = 180.0  # seconds one measurement may take in all
EXTRAS = Path(sys.prefix) / "peers-transformers"  # what `transformers serve` wants and we don't
LIBRARIES = ("fastapi", "rich", "typer")
RESULTS = Path(__file__).parent / "results" / "transformers_serve.json"
NEVER_SAID = 767  # a token that stands in for the end token, so that no answer ends early
# Left to itself the cache of continuous batching takes most of the machine's memory and, without a
# GPU, minutes to do so.
BATCHING = ("--continuous-batching", "--cb-num-blocks", "512", "--cb-max-batch-tokens", "1024")
TIMES = {1: 1.4, 16: 2.5}  # streams -> how many times the peer's tokens/s are promised


class Plan(msgspec.Struct, frozen=True):
    """What to measure for how long."""

    model: Path
    streams: tuple[int, ...]
    rounds: int
    seconds: float
    warm_up: float
    peer_threads: tuple[int, ...]  # 0: as torch chooses


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All of one run, as it is written to the results."""

    taken: str  # UTC, ISO 8601
    machine: report.Machine
    transformers: str
    model: str
    rows: tuple[report.Row, ...]
    targets: tuple[report.Target, ...]


def compare(plan: Plan) -> list[report.Row]:
    """Measure all candidates, taking turns. Raises what `benchmarks.serving.compare` raises."""
    with candidates(plan) as measures:
        return taken(measures, plan.streams, plan.rounds)


@contextlib.contextmanager
def candidates(plan: Plan) -> Iterator[Mapping[str, Measure]]:
    """All servers run from the start to the end; the one that isn't measured is idle."""
    ours = {"model": plan.model.name, "ignore_eos": True, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    wishes = {"do_sample": True, "temperature": TEMPERATURE, "eos_token_id": NEVER_SAID}
    theirs = {"model": str(plan.model), "generation_config": json.dumps(wishes)}
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(roundhouse(str(plan.model)))
        measures = {report.OURS: _over_http(plan, running, ours)}
        for name, threads, options in _modes(plan.peer_threads):
            peer = stack.enter_context(transformers_serve(plan.model, threads, options))
            measures[name] = _over_http(plan, peer, theirs)
        yield measures


def _modes(choices: Sequence[int]) -> Iterator[tuple[str, int, Sequence[str]]]:
    for threads in choices:
        said = f", {threads} thread" if threads else ""
        yield f"transformers serve{said}", threads, ()
        yield f"transformers serve, batching{said}", threads, BATCHING


@contextlib.contextmanager
def transformers_serve(model: Path, threads: int, options: Sequence[str]) -> Iterator[Running]:
    """`transformers serve` of the installed release, the model loaded. Raises DidNotStart."""
    port = free_port()
    environment = [f"PYTHONPATH={extras()}", "HF_HUB_OFFLINE=1"]
    if threads:
        environment.append(f"OMP_NUM_THREADS={threads}")
    start = "from transformers.cli.transformers import main; main()"
    command = ["env", *environment, sys.executable, "-c", start, "serve", str(model), *options]
    with serving([*command, "--host", "127.0.0.1", "--port", str(port)], port) as running:
        yield running


def extras() -> Path:
    """The folder with what the peer's server needs beside ours, which is made at the first call.

    Raises CalledProcessError when it can't be made.
    """
    if not (EXTRAS / "fastapi").is_dir():
        print(f"Installing {', '.join(LIBRARIES)} into {EXTRAS}", flush=True)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(EXTRAS)]
        pinned = ["--constraint", str(ROOT / "constraints.txt"), *LIBRARIES]
        subprocess.run([*install, *pinned], check=True)
    return EXTRAS


def _over_http(plan: Plan, running: Running, body: Mapping[str, Any]) -> Measure:
    _wake(running, body)

    def measure(streams: int) -> Figures:
        load = Load(
            port=running.port,
            streams=streams,
            seconds=plan.seconds,
            warm_up=plan.warm_up,
            max_tokens=ANSWER_TOKENS,
            body={"temperature": TEMPERATURE, **body},
        )
        return run("benchmarks.load", load, Figures, PATIENCE)

    return measure


def _wake(running: Running, body: Mapping[str, Any]) -> None:
    """One answer, so that the model is loaded before anything is measured."""
    hello = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2, **body}
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(hello), headers)
    reply = connection.getresponse()
    if reply.status != http.client.OK:
        raise RuntimeError(reply.read().decode(errors="replace"))
    connection.close()


def targets(rows: Sequence[report.Row]) -> Iterator[report.Target]:
    """Each promise against the peer's best mode at that number of streams."""
    for streams, times in TIMES.items():
        here = {row.candidate: row.middle for row in rows if row.streams == streams}
        if report.OURS not in here:
            continue
        ours = here.pop(report.OURS)
        best = max(here.values(), key=lambda peer: peer.tokens_per_second)
        found = ours.tokens_per_second / best.tokens_per_second
        promise = f"at {streams} streams at least {times:g} times transformers serve"
        yield report.Target(promise, f"{found:.1f} times", found >= times)
        waits = [peer.ttft_p50 for peer in here.values() if peer.ttft_p50 is not None]
        if ours.ttft_p50 is not None and waits:
            outcome = f"{ours.ttft_p50 * 1000:.1f} ms against {min(waits) * 1000:.1f} ms"
            promise = f"at {streams} streams TTFT p50 no worse"
            yield report.Target(promise, outcome, ours.ttft_p50 <= min(waits))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=bundled.SAFETENSORS)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--peer-threads", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    plan = Plan(
        model=given.model.resolve(),
        streams=tuple(given.streams),
        rounds=given.rounds,
        seconds=given.seconds,
        warm_up=given.warm_up,
        peer_threads=tuple(given.peer_threads),
    )
    machine = report.machine()
    rows = compare(plan)
    whole = Comparison(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        transformers=version("transformers"),
        model=plan.model.name,
        rows=tuple(rows),
        targets=tuple(targets(rows)),
    )
    print("\n" + report.table(rows) + "\n")
    for target in whole.targets:
        print(f"{'met   ' if target.met else 'MISSED'}  {target.promise}: {target.outcome}")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n")


if __name__ == "__main__":
    main()
