"""A long prompt: how fast it is computed, and what it does to a stream that runs beside it.

    python -m benchmarks.long_prompt [--rounds 5] [--prompts 4]

The bare loop gives llama.cpp the whole prompt at once, on the context that the gateway would make.
Ours is computed in steps of at most 50 ms, so that others' tokens don't stall; its time is the
server's own (`timings`), llama-server's too. The three take turns.
"""

import argparse
import contextlib
import http.client
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import msgspec
import numpy as np

import bundled
from backends.engines.llamacpp.batch import Batch
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.loading import load
from backends.engines.llamacpp.recognition import recognise
from benchmarks import report
from benchmarks.answers import percentile
from benchmarks.apart import run
from benchmarks.peers import Running, llama_server, roundhouse
from benchmarks.serving import model_context
from benchmarks.turns import in_turn
from config.engines import LlamaCppOptions

TOKENS = 1_500  # of the prompt, as near as words come to it
SHARE, TIMES = 0.97, 2.0  # of the bare loop's speed; of the gap's p99 alone
PATIENCE = 60.0
ANSWER = 400  # tokens of the stream
PATH, HEADERS = "/v1/chat/completions", {"content-type": "application/json"}
BARE = "bare loop"


class BarePrompts(msgspec.Struct, frozen=True):
    """What the bare loop computes: `count` prompts of `tokens`."""

    tokens: int
    count: int


class BareSpeed(msgspec.Struct, frozen=True):
    """Tokens a second of the best prompt."""

    tokens_per_second: float


class Beside(msgspec.Struct, frozen=True):
    """A stream's gaps in seconds: p99 by itself, p99 and longest beside a long prompt."""

    alone: float | None = None
    beside: float | None = None
    longest: float | None = None


def bare(order: BarePrompts) -> BareSpeed:
    """One prompt after the other, each in one call."""
    files = recognise(bundled.GGUF)
    assert files is not None
    loaded = load(files, LlamaCppOptions(), lambda _done: True)
    batch, speeds = Batch(loaded.options.batch_size), []
    memory = api.llama_get_memory(loaded.context)
    for number in range(order.count):
        api.llama_memory_clear(memory, False)  # noqa: FBT003 - C functions have no names for it
        tokens = (np.arange(order.tokens) * (number + 7) % 400 + 300).tolist()
        batch.clear()
        batch.chunk(tokens, 0, 0, last=True)
        started = time.perf_counter()
        if api.llama_decode(loaded.context, batch.ready()):
            raise RuntimeError("llama_decode failed")
        speeds.append(order.tokens / (time.perf_counter() - started))
    return BareSpeed(max(speeds))


def prefill(running: Running, count: int, numbers: Iterator[int]) -> float:
    """Prompt tokens a second of the best of `count` prompts, by the server's own clock."""
    speeds: list[float] = []
    for _ in range(count):
        answer = _ask(running.port, next(numbers))
        speeds.append(answer["timings"]["prompt_per_second"])
    return max(speeds)


def _ask(port: int, number: int) -> Mapping[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("POST", PATH, _body(_long(number), 1), HEADERS)
        whole = connection.getresponse().read()
    answer: dict[str, Any] = msgspec.json.decode(whole)
    if "timings" not in answer:
        raise RuntimeError(whole.decode())
    return answer


def _body(text: str, tokens: int, **more: object) -> bytes:
    messages = [{"role": "user", "content": text}]
    return msgspec.json.encode(
        {"messages": messages, "max_tokens": tokens, "ignore_eos": True, **more}
    )


def _long(number: int) -> str:
    """Some 1,500 tokens for the bundled model, of which no two begin alike."""
    words = ("the", "old", "red", "boat", "lies", "by", "that", "quiet", "lake", "again")
    start = number * 7919
    return f"{number} " + " ".join(words[(start + k * k) % len(words)] for k in range(530))


def beside(running: Running, count: int, numbers: Iterator[int]) -> Beside:
    """A stream's gaps by itself, and with a long prompt in its midst: the middles of `count`."""
    alone = [_stream(running.port, int) for _ in range(count)]
    met = [_stream(running.port, lambda: _ask(running.port, next(numbers))) for _ in range(count)]
    return Beside(_gaps(alone, 99), _gaps(met, 99), _gaps(met, 100))


def _stream(port: int, meanwhile: Callable[[], object]) -> list[float]:
    """When the parts of an answer came; `meanwhile` is called in its midst, on a thread."""
    arrivals: list[float] = []
    asking = threading.Thread(target=meanwhile)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        body = _body("Tell me about the lake.", ANSWER, stream=True)
        connection.request("POST", PATH, body, HEADERS)
        response = connection.getresponse()
        while response.read1(65536):
            arrivals.append(time.perf_counter())
            if len(arrivals) == ANSWER // 4:
                asking.start()
    if asking.ident is not None:
        asking.join()
    return arrivals


def _gaps(streams: Sequence[Sequence[float]], percent: float) -> float | None:
    """The middle of the streams' percentiles."""
    found = [
        percentile([later - sooner for sooner, later in itertools.pairwise(arrivals)], percent)
        for arrivals in streams
    ]
    return _middle(found)


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def measured(rounds: int, prompts: int) -> tuple[dict[str, float], dict[str, Beside]]:
    """Tokens a second and gaps, by candidate: the middles of the rounds."""
    numbers = itertools.count(1)
    slots = LlamaCppOptions().max_concurrent
    with (
        roundhouse(str(bundled.GGUF)) as ours,
        llama_server(bundled.GGUF, model_context(bundled.GGUF), slots) as theirs,
    ):
        measures = {
            BARE: partial(_bare_turn, prompts),
            report.OURS: partial(_server_turn, ours, prompts, numbers),
            report.LLAMA_SERVER: partial(_server_turn, theirs, prompts, numbers),
        }
        turns = in_turn(measures, rounds)
    return (
        {name: median(speed for speed, _ in each) for name, each in turns.items()},
        {name: _middle_of([gaps for _, gaps in each]) for name, each in turns.items()},
    )


def _bare_turn(prompts: int) -> tuple[float, Beside]:
    """Tokens a second; there is no stream."""
    order = BarePrompts(TOKENS, prompts)
    speed = run("benchmarks.long_prompt", order, BareSpeed, PATIENCE, "--bare")
    return speed.tokens_per_second, Beside()


def _server_turn(running: Running, prompts: int, numbers: Iterator[int]) -> tuple[float, Beside]:
    """Tokens a second, and gaps."""
    return prefill(running, prompts, numbers), beside(running, prompts, numbers)


def _middle_of(each: Sequence[Beside]) -> Beside:
    return Beside(
        _middle([one.alone for one in each]),
        _middle([one.beside for one in each]),
        _middle([one.longest for one in each]),
    )


def table(speeds: Mapping[str, float], gaps: Mapping[str, Beside]) -> str:
    """Markdown."""
    lines = [
        f"| | prefill of {TOKENS:,} tokens, tokens/s | gap p99 alone, ms | beside it | longest |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, speed in speeds.items():
        gap = gaps.get(name, Beside())
        known = (gap.alone, gap.beside, gap.longest)
        cells = ["" if one is None else f"{one * 1000:.1f}" for one in known]
        lines.append(f"| {name} | {speed:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def targets(speeds: Mapping[str, float], gaps: Mapping[str, Beside]) -> Iterator[report.Target]:
    """The prompt's speed, and what it does to others."""
    share = speeds[report.OURS] / speeds[BARE]
    promise = f"a prompt of {TOKENS:,} tokens at {SHARE:.0%} of the bare loop's speed"
    yield report.Target(promise, f"{share:.0%}", share >= SHARE)
    ours = gaps[report.OURS]
    if ours.alone and ours.beside:
        times = ours.beside / ours.alone
        promise = f"a stream's gap p99 beside a long prompt at most {TIMES:g} times its own"
        yield report.Target(promise, f"{times:.1f} times", times <= TIMES)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print; with `--bare` only the bare loop, order and result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=4, help="in each round")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.bare:
        order = msgspec.json.decode(sys.stdin.buffer.read(), type=BarePrompts)
        sys.stdout.buffer.write(msgspec.json.encode(bare(order)))
        return
    figures = measured(given.rounds, given.prompts)
    print(table(*figures), "\n")
    report.tell(targets(*figures))


if __name__ == "__main__":
    main()
