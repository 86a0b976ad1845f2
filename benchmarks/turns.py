"""Candidates measured in turns, so that what the machine does meanwhile hits all alike.

The command measures turns of conversations: what is computed again, and how long the first text
takes, for each kind of memory, beside llama-server in the same run.

    python -m benchmarks.turns [--kinds smollm2 …] [--lengths 528 4000] [--rounds 3]
    python -m benchmarks.turns --speed [--kinds qwen35 …] [--rounds 8]
"""

import argparse
import contextlib
import http.client
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, TypeVar

import msgspec

from benchmarks import report
from benchmarks.answers import Figures
from benchmarks.apart import run
from benchmarks.load import Load
from benchmarks.peers import Running, llama_server, peer, roundhouse
from tests.backends import gguf_grown, gguf_raw
from tests.backends.engines.llamacpp import cache_kinds
from tests.backends.engines.llamacpp.test_kv_cache_turns import KINDS, MORE
from tests.backends.gguf_raw import UINT32, Entry, RawFile
from tests.backends.turns import LENGTHS, Messages, conversation, edited, next_turn
from tests.real import lab

Measure: TypeAlias = Callable[[int], Figures]  # number of streams -> what came out
Candidate = TypeVar("Candidate", bound=Hashable)
Result = TypeVar("Result")

ROUNDS = 8  # single turns differ by a fifth on a machine that others use, too


def in_turn(
    measures: Mapping[Candidate, Callable[[], Result]], rounds: int
) -> dict[Candidate, list[Result]]:
    """What each candidate's `rounds` turns gave. In every round all have a turn, in the order of
    `measures`: a machine that slows down for a while slows down each of them. Prints the round to
    stderr; raises what a measure raises.
    """
    results: dict[Candidate, list[Result]] = {name: [] for name in measures}
    for number in range(1, rounds + 1):
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
        for name, measure in measures.items():
            results[name].append(measure())
    return results


def taken(measures: Mapping[str, Measure], streams: Sequence[int], rounds: int) -> list[report.Row]:
    """A row for each candidate and number of streams: the medians of its turns. Prints each turn to
    stderr; raises what a measure raises.
    """
    each = {
        (name, count): partial(_told, name, measure, count)
        for count in streams
        for name, measure in measures.items()
    }
    return [report.row(*key, every) for key, every in in_turn(each, rounds).items()]


def _told(name: str, measure: Measure, streams: int) -> Figures:
    figures = measure(streams)
    speed = f"{figures.tokens_per_second:,.0f}"
    print(f"{streams:>4}  {name}: {speed}", file=sys.stderr, flush=True)
    return figures


# --------------------------------------------------------------------------- turns of conversations

CONTEXT, SLOTS = 8_192, 4  # of llama-server: its default; ours has its own
SECONDS = 4.0  # of a load that is measured
ANSWER = 32  # tokens
PATIENCE = 300.0
# Letters, so that the next turn's prompt has the answer's tokens.
LETTERS = tuple(1 + ord(letter) for letter in "abcdef")
REAL = "smollm2"
TURNS = ("cold", "regenerate", "edit", "next turn")


class Turn(msgspec.Struct, frozen=True):
    """Tokens of the prompt, and those found; seconds to the first text."""

    prompt: int
    cached: int
    first_text: float
    answer: str


def written(kind: str, folder: Path) -> Path:
    """SmolLM2, or a small model with that kind of memory."""
    path = folder / f"{kind}.gguf"
    if kind == REAL:
        path.symlink_to(lab.smollm2())
        return path
    if kind != "mamba":
        return gguf_grown.write(kind, path, {**MORE.get(kind, {}), "context_length": CONTEXT})
    file = gguf_raw.read(cache_kinds.write(kind, path))
    entries = {**file.entries, "mamba.context_length": Entry(UINT32, CONTEXT)}
    gguf_raw.write(RawFile(entries, file.tensors), path)
    return path


def asked(port: int, model: str, messages: Messages, words: Sequence[int] = LETTERS) -> Turn:
    """Streamed. Raises OSError, KeyError for an error in place of an answer."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": ANSWER,
        "temperature": 0,
        "logit_bias": dict.fromkeys(map(str, words), 100),
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        started = time.perf_counter()
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        text, first = "", 0.0
        usage: dict[str, Any] = {}
        for chunk in _chunks(connection.getresponse()):
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                piece = choice["delta"].get("content") or ""
                if not first and (piece or choice.get("finish_reason")):
                    first = time.perf_counter() - started
                text += piece
    found = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Turn(usage["prompt_tokens"], found, first, text)


def _chunks(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        data = line.decode().strip().removeprefix("data:").strip()
        if data.startswith("{"):
            yield json.loads(data)


def turns(
    port: int, model: str, length: int, name: str, words: Sequence[int] = LETTERS
) -> Mapping[str, Turn]:
    """A conversation of about so many letters, none of which are known, and what follows. `words`:
    tokens that the answers have.
    """
    talk = conversation(length, name)
    cold = asked(port, model, talk, words)
    again, other = asked(port, model, talk, words), asked(port, model, edited(talk), words)
    further = asked(port, model, next_turn(talk, cold.answer), words)
    return dict(zip(TURNS, (cold, again, other, further), strict=True))


def rows(kind: str, lengths: Sequence[int], rounds: int) -> Iterator[str]:
    """A line of the table for each length, server and turn."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        path = written(kind, Path(folder))
        servers: dict[str, Running | None] = {
            report.OURS: running.enter_context(_roundhouse(path, Path(folder))),
            report.LLAMA_SERVER: peer(
                running, report.LLAMA_SERVER, llama_server(path, CONTEXT, SLOTS)
            ),
        }
        there = {name: server for name, server in servers.items() if server is not None}
        for length in lengths:
            measures = {
                name: partial(_new_turns, server.port, kind, length, itertools.count())
                for name, server in there.items()
            }
            for name, every in in_turn(measures, rounds).items():
                yield _row(kind, length, name, every)


def _new_turns(port: int, model: str, length: int, numbers: Iterator[int]) -> Mapping[str, Turn]:
    """`turns` of a conversation that this server has not had."""
    return turns(port, model, length, f"{next(numbers)} of {length}")


@contextlib.contextmanager
def _roundhouse(path: Path, folder: Path, **options: Any) -> Iterator[Running]:
    used = {"context_length": CONTEXT, **options}
    models = [{"name": path.stem, "path": str(path), "options": used}]
    config = folder / f"{used.get('snapshot_memory')}.yaml"
    config.write_text(json.dumps({"models": models}))
    with roundhouse("--config", str(config)) as running:
        yield running


def speed(kind: str, rounds: int) -> Sequence[report.Row]:
    """Tokens a second at 1 and 16 streams of new prompts, with snapshots and without."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        path = written(kind, Path(folder))
        with_them = _roundhouse(path, Path(folder), max_concurrent=16)
        without = _roundhouse(path, Path(folder), max_concurrent=16, snapshot_memory=0)
        measures = {
            "snapshots": _loaded(kind, running.enter_context(with_them)),
            "no snapshots": _loaded(kind, running.enter_context(without)),
        }
        return taken(measures, (1, 16), rounds)


def _loaded(model: str, server: Running) -> Measure:
    biases = dict.fromkeys(map(str, LETTERS), 100)

    def measure(streams: int) -> Figures:
        load = Load(
            port=server.port,
            streams=streams,
            seconds=SECONDS,
            warm_up=1.0,
            max_tokens=200,
            body={"model": model, "temperature": 0.8, "logit_bias": biases, "ignore_eos": True},
        )
        return run("benchmarks.load", load, Figures, PATIENCE)

    return measure


def _row(kind: str, length: int, name: str, every: Sequence[Mapping[str, Turn]]) -> str:
    def cell(turn: str) -> str:
        found = every[-1][turn]
        seconds = median(one[turn].first_text for one in every)
        return f"{found.cached} of {found.prompt}, {seconds * 1000:.0f} ms"

    return f"| {kind} | {length} | {name} | {' | '.join(map(cell, TURNS))} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=(REAL, *KINDS), default=[REAL, *KINDS])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speed", action="store_true", help="tokens a second, with and without")
    options = parser.parse_args(argv)
    if options.speed:
        for kind in options.kinds:
            print(report.table(speed(kind, options.rounds)), flush=True)
        return
    print(f"| model | tokens | server | {' | '.join(TURNS)} |")
    print("|---|--:|---|" + "---|" * len(TURNS))
    for kind in options.kinds:
        for row in rows(kind, options.lengths, options.rounds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
