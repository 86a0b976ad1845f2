"""A day in minutes: two people chat, one sends documents, an agent works, on two models at once.

    python -m benchmarks.day [MODEL.gguf [OTHER.gguf]] [--seconds 90]
                             [--candidates ours "two, tuned" …]

Who chats writes 30 words, reads 48 tokens and pauses; documents have 1,000 words; the agent has a
system prompt of 2,000 words and gets results of 150. Chats use the first model, the others the
second, a copy of the first where none is named. Candidates, one after the other: ours; two
llama-servers with their defaults; two tuned by hand (a thread each, which waits asleep); ours with
memory for one of the two models. Tokens are those of whole answers. About seven minutes; `--seconds
20` shows that it works.
"""

import argparse
import contextlib
import itertools
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from backends.engines.llamacpp.files import estimate
from backends.engines.llamacpp.recognition import recognise
from benchmarks import report
from benchmarks.peers import DidNotStart, llama_server, roundhouse
from benchmarks.real import asked
from benchmarks.report import Target
from config.engines import LlamaCppOptions
from tests.real import lab

CHAT, DOCUMENT, AGENT = "chat", "documents", "agent"
MESSAGE, PAGES, SYSTEM, RESULT = 30, 1_000, 2_000, 150  # words
TOKENS = {CHAT: 48, DOCUMENT: 64, AGENT: 48}  # of an answer
PAUSE = {CHAT: 3.0, DOCUMENT: 1.0, AGENT: 0.0}  # seconds
TURNS = 6  # until a conversation is over
CONTEXT, SLOTS = 8_192, 4  # of each llama-server
OURS, ONE, DEFAULTS, TUNED = "ours", "ours, room for one", "two llama-servers", "two, tuned"
WORST = 1.0  # seconds until a chat's first text
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
Messages = list[dict[str, str]]
Place = tuple[int, str]  # a port, and the model's name there


class Day(msgspec.Struct):
    """What came of it."""

    tokens: int = 0
    failed: int = 0
    firsts: dict[str, list[float]] = msgspec.field(default_factory=dict)  # seconds to first texts


def words(count: int, number: int) -> str:
    """A text like no other."""
    known = ("the", "old", "red", "boat", "lies", "by", "that", "quiet", "lake", "and", "waits")
    return f"{number} " + " ".join(known[(number * 7 + k * k + k) % 11] for k in range(count))


def opening(kind: str) -> Messages:
    """How a conversation of that kind begins."""
    return [{"role": "system", "content": words(SYSTEM, 1)}] if kind == AGENT else []


def said(kind: str, number: int) -> str:
    """What is sent next."""
    return words({CHAT: MESSAGE, DOCUMENT: PAGES, AGENT: RESULT}[kind], number)


def work(kind: str, place: Place, numbers: Iterator[int], end: float, day: Day) -> None:
    """One of them, until the end of the day."""
    talk, length = opening(kind), 0
    while time.perf_counter() < end:
        if length == (1 if kind == DOCUMENT else TURNS):
            talk, length = opening(kind), 0
        talk.append({"role": "user", "content": said(kind, next(numbers))})
        try:
            text, first = asked(place[0], talk, TOKENS[kind], place[1])
        except (OSError, RuntimeError, ValueError):
            day.failed += 1
            talk, length = opening(kind), 0
            time.sleep(0.2)
            continue
        day.firsts.setdefault(kind, []).append(first)
        if time.perf_counter() < end:
            day.tokens += TOKENS[kind]
        talk.append({"role": "assistant", "content": text})
        length += 1
        time.sleep(PAUSE[kind])


def lived(places: Sequence[Place], seconds: float) -> Day:
    """A day with the first model at the first place, and the second at the second."""
    for place in places:
        asked(place[0], [{"role": "user", "content": "Hello"}], 4, place[1])
    day, numbers = Day(), itertools.count(1)
    end = time.perf_counter() + seconds
    kinds = {CHAT: places[0], DOCUMENT: places[1], AGENT: places[1]}
    threads = [
        threading.Thread(target=work, args=(kind, kinds[kind], numbers, end, day))
        for kind in (CHAT, CHAT, DOCUMENT, AGENT)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return day


@contextlib.contextmanager
def ours(models: Sequence[Path], memory: int | None = None) -> Iterator[Sequence[Place]]:
    """One server with both. `memory`: bytes for models."""
    entries = [{"name": model.stem, "path": str(model)} for model in models]
    config: dict[str, object] = {"models": entries}
    if memory is not None:
        config["swap"] = {"memory": {"cpu": memory}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "roundhouse.yaml"
        path.write_text(json.dumps(config))
        with roundhouse("--config", str(path)) as running:
            yield [(running.port, model.stem) for model in models]


@contextlib.contextmanager
def theirs(models: Sequence[Path], *, tuned: bool) -> Iterator[Sequence[Place]]:
    """A llama-server for each. Raises DidNotStart."""
    with contextlib.ExitStack() as running:
        servers = [
            running.enter_context(
                llama_server(
                    model,
                    CONTEXT,
                    SLOTS,
                    threads=1 if tuned else 0,
                    environment=PASSIVE if tuned else {},
                )
            )
            for model in models
        ]
        yield [(server.port, "") for server in servers]


def room_for_one(models: Sequence[Path]) -> int:
    """Bytes for the larger of them, and a little more."""
    needs = []
    for model in models:
        files = recognise(model)
        assert files is not None
        needs.append(estimate(files, LlamaCppOptions()).total)
    return int(max(needs) * 1.2)


def row(name: str, day: Day) -> str:
    """Of the table."""
    cells = []
    for kind in (CHAT, DOCUMENT, AGENT):
        firsts = day.firsts.get(kind, [])
        cells.append(f"{median(firsts):.2f} / {max(firsts):.2f}" if firsts else "none")
    return f"| {name} | {day.tokens:,} | {day.failed} | {' | '.join(cells)} |"


def targets(days: Mapping[str, Day]) -> Iterator[Target]:
    """Where both are measured."""
    mine, tuned = days.get(OURS), days.get(TUNED)
    if mine is not None and tuned is not None:
        outcome = f"{mine.tokens:,} and {tuned.tokens:,}"
        yield Target("tokens of a day: the tuned pair's", outcome, mine.tokens >= tuned.tokens)
        for kind in (CHAT, DOCUMENT, AGENT):
            one, other = (median(day.firsts.get(kind, [0.0])) for day in (mine, tuned))
            promise = f"{kind}: the median first text no later than theirs"
            yield Target(promise, f"{one:.2f} and {other:.2f} s", one <= other)
    if mine is not None:
        worst = max(mine.firsts.get(CHAT, [0.0]))
        yield Target(
            f"a chat's worst first text within {WORST:g} s", f"{worst:.2f} s", worst <= WORST
        )
    for name in (OURS, ONE):
        if name in days:
            failed = days[name].failed
            yield Target(f"{name}: nothing refused or cut", str(failed), not failed)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = (OURS, DEFAULTS, TUNED, ONE)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--candidates", nargs="+", choices=names, default=list(names))
    given = parser.parse_args(argv)
    machine = report.machine()
    print(f"{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}\n")
    print("| | tokens | failed | chat: first text, median / worst, s | documents | agent |")
    print("|---|--:|--:|--:|--:|--:|")
    days: dict[str, Day] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = [path.resolve() for path in given.models or [lab.smollm2()]]
        if len(models) == 1:
            models.append(Path(shutil.copy(models[0], Path(folder) / f"second-{models[0].name}")))
        servers: dict[str, Callable[[], contextlib.AbstractContextManager[Sequence[Place]]]] = {
            OURS: lambda: ours(models),
            DEFAULTS: lambda: theirs(models, tuned=False),
            TUNED: lambda: theirs(models, tuned=True),
            ONE: lambda: ours(models, room_for_one(models)),
        }
        for name in given.candidates:
            try:
                with servers[name]() as places:
                    days[name] = lived(places, given.seconds)
            except DidNotStart as error:
                print(f"{name} is left out: {error}", flush=True)
                continue
            print(row(name, days[name]), flush=True)
    print()
    report.tell(targets(days))


if __name__ == "__main__":
    main()
