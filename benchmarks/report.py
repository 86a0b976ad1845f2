"""Figures of several rounds to a table, and to targets met or not. Pure, but for `machine`."""

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.answers import Figures
from benchmarks.conversation import Turn
from benchmarks.footprint import Footprint

RAW = {1: "raw loop, 1 thread", 2: "raw loop, 2 threads"}
OURS = "Roundhouse"
AUTO = f"{OURS}, auto"  # with `threads: auto` said
LLAMA_SERVER = "llama-server"  # llama.cpp's own
PEER = "llama-cpp-python"
PEER_IN_LINE = "llama-cpp-python, in line"
PEERS = (LLAMA_SERVER, PEER)

SHARE_OF_RAW = 0.70
TIMES_PEER = 3.0
TTFT = 0.010  # seconds
GATEWAY_BYTES = 120_000_000
START = 3.0  # seconds
MOST_STREAMS = 16  # where the peers are compared
COLUMNS = (
    "streams",
    "candidate",
    "tokens/s",
    "of raw",
    "TTFT p50",
    "p99",
    "gap p50",
    "p99",
    "answers",
    "errors",
    "cut off",
)
MACHINE_LIBRARIES = ("llama-cpp-python", "litestar", "uvicorn", "uvloop", "msgspec", "numpy")


class Row(msgspec.Struct, frozen=True):
    """One candidate at one number of streams, over all rounds."""

    candidate: str
    streams: int
    middle: Figures
    rounds: tuple[Figures, ...]


class Target(msgspec.Struct, frozen=True):
    """What was promised, what came out."""

    promise: str
    outcome: str
    met: bool


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured. `load_before`: processes that wanted to run in the minute before."""

    processor: str
    cores: int
    system: str
    python: str
    libraries: dict[str, str]
    load_before: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of one run, as it is written to the results."""

    taken: str  # UTC, ISO 8601
    machine: Machine
    model: str
    answer_tokens: int
    rows: tuple[Row, ...]
    footprint: Footprint | None
    conversation: tuple[Turn, ...]
    targets: tuple[Target, ...]


def row(candidate: str, streams: int, rounds: Sequence[Figures]) -> Row:
    """The middle of each figure over the rounds; errors and cut-off streams are added up."""
    return Row(
        candidate,
        streams,
        Figures(
            tokens_per_second=median(figures.tokens_per_second for figures in rounds),
            ttft_p50=_middle(figures.ttft_p50 for figures in rounds),
            ttft_p99=_middle(figures.ttft_p99 for figures in rounds),
            gap_p50=_middle(figures.gap_p50 for figures in rounds),
            gap_p99=_middle(figures.gap_p99 for figures in rounds),
            answers=sum(figures.answers for figures in rounds),
            errors=sum(figures.errors for figures in rounds),
            cut_off=sum(figures.cut_off for figures in rounds),
            driver_load=median(figures.driver_load for figures in rounds),
        ),
        tuple(rounds),
    )


def _middle(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None


def table(rows: Sequence[Row]) -> str:
    """Markdown, so that it can stand in a README as it is. Times in milliseconds."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        f"|--:|---|{'--:|' * (len(COLUMNS) - 2)}",
    ]
    for each in sorted(rows, key=lambda row: row.streams):
        limit = raw_speed(rows, each.streams)
        middle = each.middle
        cells = [
            str(each.streams),
            each.candidate,
            f"{middle.tokens_per_second:,.0f}",
            f"{middle.tokens_per_second / limit:.0%}" if limit else "",
            *map(_milliseconds, (middle.ttft_p50, middle.ttft_p99, middle.gap_p50, middle.gap_p99)),
            *map(str, (middle.answers, middle.errors, middle.cut_off)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f}"


def targets(
    rows: Sequence[Row], footprint: Footprint | None, conversation: Sequence[Turn]
) -> tuple[Target, ...]:
    """The promises that this run has figures for."""
    middles = {(row.candidate, row.streams): row.middle for row in rows}
    found = [
        _share(ours, limit, streams)
        for (candidate, streams), ours in middles.items()
        if candidate == OURS and (limit := raw_speed(rows, streams))
    ]
    peers = [
        middles[name, MOST_STREAMS]
        for name in (PEER, PEER_IN_LINE)
        if (name, MOST_STREAMS) in middles
    ]
    if peers and (OURS, MOST_STREAMS) in middles:
        found.append(_times(middles[OURS, MOST_STREAMS], peers))
    for (candidate, streams), ours in middles.items():
        if candidate == OURS and (theirs := middles.get((LLAMA_SERVER, streams))):
            found += _ahead(ours, theirs, streams)
    if (OURS, 1) in middles:
        found.append(_first_token(middles[OURS, 1]))
    if footprint is not None:
        found += _frugal(footprint)
    if conversation:
        found.append(_remembers(conversation))
    return tuple(found)


def raw_speed(rows: Sequence[Row], streams: int) -> float:
    """Tokens per second of the raw loop in its better row; 0.0 where it was not measured."""
    raw = [row for row in rows if row.candidate in RAW.values() and row.streams == streams]
    return max((row.middle.tokens_per_second for row in raw), default=0.0)


def with_threads(count: int) -> str:
    """What our server is called with a fixed number of threads."""
    return f"{OURS}, {count}"


def speeds_at(rows: Iterable[Row], streams: int) -> dict[str, float]:
    """The candidates' tokens per second at so many streams."""
    return {row.candidate: row.middle.tokens_per_second for row in rows if row.streams == streams}


def share_of_fixed(speeds: Mapping[str, float], counts: Iterable[int]) -> float:
    """What `threads: auto` reaches of the best of the fixed `counts`; 0.0 where none has a
    speed.
    """
    best = max((speeds[with_threads(count)] for count in counts), default=0.0)
    return speeds[AUTO] / best if best else 0.0


def _share(ours: Figures, limit: float, streams: int) -> Target:
    share = ours.tokens_per_second / limit
    return Target(
        f"at {streams} streams at least {SHARE_OF_RAW:.0%} of the raw loop",
        f"{share:.0%}",
        share >= SHARE_OF_RAW,
    )


def _times(ours: Figures, peers: Sequence[Figures]) -> Target:
    """Against whichever of its two modes gives more tokens."""
    times = ours.tokens_per_second / max(peer.tokens_per_second for peer in peers)
    promise = f"at {MOST_STREAMS} streams at least {TIMES_PEER:g} times llama-cpp-python's server"
    return Target(promise, f"{times:.1f} times", times >= TIMES_PEER)


def _ahead(ours: Figures, theirs: Figures, streams: int) -> Iterator[Target]:
    """Of llama.cpp's own server."""
    speeds = f"{ours.tokens_per_second:,.0f} against {theirs.tokens_per_second:,.0f}"
    faster = ours.tokens_per_second >= theirs.tokens_per_second > 0
    yield Target(f"at {streams} streams llama-server's tokens/s at least", speeds, faster)
    if ours.ttft_p50 is not None and theirs.ttft_p50 is not None:
        waits = f"{_milliseconds(ours.ttft_p50)} ms against {_milliseconds(theirs.ttft_p50)} ms"
        sooner = ours.ttft_p50 < theirs.ttft_p50
        yield Target(f"at {streams} streams TTFT p50 before llama-server's", waits, sooner)


def _first_token(ours: Figures) -> Target:
    wait = ours.ttft_p50
    met = wait is not None and wait < TTFT
    return Target(
        f"TTFT p50 of a short prompt under {TTFT * 1000:g} ms", f"{_milliseconds(wait)} ms", met
    )


def _frugal(footprint: Footprint) -> list[Target]:
    return [
        Target(
            f"the gateway without a model under {GATEWAY_BYTES / 1e6:g} MB",
            f"{footprint.gateway / 1e6:.0f} MB",
            footprint.gateway < GATEWAY_BYTES,
        ),
        Target(
            f"with the bundled model, besides weights and cache, under {GATEWAY_BYTES / 1e6:g} MB",
            f"{footprint.besides_model / 1e6:.0f} MB",
            footprint.besides_model < GATEWAY_BYTES,
        ),
        Target(
            f"listening within {START:g} s",
            f"{footprint.started_in:.1f} s",
            footprint.started_in < START,
        ),
    ]


def _remembers(turns: Sequence[Turn]) -> Target:
    second, last = turns[1].computed, turns[-1].computed
    return Target(
        f"turn {len(turns)} of a conversation costs no more prompt work than turn 2",
        f"{last} tokens against {second}",
        last <= second,
    )


def tell(targets: Iterable[Target]) -> None:
    """Print which are met."""
    for target in targets:
        print(f"{'met   ' if target.met else 'MISSED'}  {target.promise}: {target.outcome}")


def machine() -> Machine:
    """This machine, now."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        system=platform.platform(),
        python=platform.python_version(),
        libraries={name: version(name) for name in MACHINE_LIBRARIES},
        load_before=os.getloadavg()[0],
    )


def _processor() -> str:
    """The model as Linux names it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
