"""Real weights: prompts, idle conversations, short chats behind long prompts, streams, second
turns, swaps.

    python -m benchmarks.real [MODEL.gguf] [--parts prefill idle behind streams turns swap]
                              [--rounds 8] [--quick]

Without a model, SmolLM2 of the lab (tests/real). Parts up to `behind`, and `swap`, count this
process's processor time with one thread, so that a busy machine changes them little; `streams` and
`turns` are seconds of the clock, over HTTP, beside llama-server, on a machine that does nothing
else. All takes some minutes on two cores.
"""

import argparse
import gc
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import numpy as np

from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.engine import Token
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.batch import Batch
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.recognition import recognise
from backends.machine import ik
from backends.places.kept.store import KeptStore
from benchmarks import report
from benchmarks.peers import Running, llama_server, peer, roundhouse
from benchmarks.report import Target
from benchmarks.serving import Plan, over_http, raw
from benchmarks.turns import in_turn, taken
from config.engines import LlamaCppOptions
from tests.backends.places.kept.dear import DearBeginnings
from tests.real import lab

LONG, VERY_LONG, SHORT = 1_536, 6_000, 30  # tokens of prompts
GREEDY = Sampling(temperature=0)
TALKS, WORDS, ANSWER = 8, 800, 64  # conversations at once, words of their first turn, tokens
PART = 4_096  # cells for each of them
ENDLESS = {"ignore_eos": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
PATIENCE = 600.0
READ = 1 << 30  # bytes, by which memory's bandwidth is measured


def options(length: int = 8_192) -> LlamaCppOptions:
    """One thread: processor time is what is compared."""
    return LlamaCppOptions(context_length=length, threads=1, gpu_layers=0)


@contextmanager
def engine(model: Path, length: int = 8_192) -> Iterator[LlamaCppEngine]:
    """An engine in this process."""
    files = recognise(model)
    assert files is not None
    made = LlamaCppEngine(loading.load(files, options(length), lambda _: True))
    try:
        yield made
    finally:
        made.close()


def prompt(length: int, number: int) -> tuple[int, ...]:
    """Tokens like those of no other `number`."""
    places = np.arange(length, dtype=np.int64) + 1
    return tuple((300 + (places * 7_919 + number * 104_729 * places) % 30_000).tolist())


def admit(tested: LlamaCppEngine, key: int, tokens: Sequence[int]) -> None:
    """A greedy job."""
    tested.admit(key, Generation(prompt=tuple(tokens), sampling=GREEDY), None)


def until_drawn(tested: LlamaCppEngine, key: int, count: int = 1) -> float:
    """Processor seconds until `key` has so many more tokens."""
    began = time.process_time()
    while count > 0:
        count -= sum(isinstance(one, Token) and one.key == key for one in tested.step())
    return time.process_time() - began


def prefill(model: Path, rounds: int) -> Iterator[Target]:
    """A prompt, and the same tokens in one call of llama.cpp's."""
    numbers = itertools.count()
    with engine(model) as tested:
        loaded = tested._loaded  # noqa: SLF001 - the bare loop has the same context
        batch, memory = Batch(loaded.options.batch_size), api.llama_get_memory(loaded.context)

        def ours() -> float:
            admit(tested, 1, prompt(LONG, next(numbers)))
            seconds = until_drawn(tested, 1)
            tested.recover()
            return seconds

        def bare() -> float:
            batch.clear()
            batch.chunk(list(prompt(LONG, next(numbers))), 0, 0, last=True)
            began = time.process_time()
            if api.llama_decode(loaded.context, batch.ready()):
                raise RuntimeError("llama_decode failed")
            api.llama_synchronize(loaded.context)
            seconds = time.process_time() - began
            api.llama_memory_clear(memory, True)  # noqa: FBT003 - C functions have no names for it
            return seconds

        found = in_turn({"ours": ours, "bare": bare}, rounds)
    yield compared(f"a prompt of {LONG:,} tokens", found, "bare", 1.05)


def idle(model: Path, rounds: int) -> Iterator[Target]:
    """Tokens of an answer after four idle conversations, and in an empty pool."""
    with engine(model) as tested:

        def answer(others: int) -> float:
            tested.recover()
            tested.kept = DearBeginnings(KeptStore(memory=2 << 30), "the same", "model")
            for key in range(others):
                admit(tested, key, prompt(1_500, key))
                until_drawn(tested, key)
                tested.release(key)
            admit(tested, 9, prompt(SHORT, 9))
            until_drawn(tested, 9)
            return until_drawn(tested, 9, 48)

        found = in_turn({"ours": partial(answer, 4), "empty": partial(answer, 0)}, rounds)
    yield compared("a token after four idle conversations of 1,500", found, "empty", 1.03)


def behind(model: Path, rounds: int) -> Iterator[Target]:
    """A short chat's first token behind a long prompt, and what it costs the long one."""
    numbers = itertools.count()
    with engine(model) as tested:

        def met() -> tuple[float, float]:
            """Of both prompts: processor seconds until the first token."""
            tested.recover()
            admit(tested, 1, prompt(VERY_LONG, next(numbers)))
            began = time.process_time()
            for _ in range(8):
                tested.step()
            admit(tested, 2, prompt(SHORT, next(numbers)))
            short = until_drawn(tested, 2)
            until_drawn(tested, 2, ANSWER)
            tested.release(2)
            until_drawn(tested, 1)
            return short, time.process_time() - began

        def alone(length: int) -> float:
            tested.recover()
            admit(tested, 1, prompt(length, next(numbers)))
            return until_drawn(tested, 1)

        found = in_turn({"met": met}, max(1, rounds // 4))["met"]
        short = median(alone(SHORT) for _ in range(rounds))
        long = median(alone(VERY_LONG) for _ in range(max(1, rounds // 4)))
    times, later = median(s for s, _ in found) / short, median(one for _, one in found) / long
    promise = f"{SHORT} tokens behind {VERY_LONG:,}: the first token within 5 times its time alone"
    yield Target(promise, f"{times:.1f} times of {short:.2f} s", times <= 5)
    yield Target("the long prompt at most 10 % later", f"{later - 1:+.1%}", later <= 1.1)


def compared(what: str, found: Mapping[str, Sequence[float]], other: str, most: float) -> Target:
    """Medians."""
    ours, theirs = median(found["ours"]), median(found[other])
    outcome = f"{ours:.3f} s, {other} {theirs:.3f}: {ours / theirs:.3f} times"
    return Target(f"{what}: at most {most:g} times {other}", outcome, ours <= most * theirs)


def streams(model: Path, rounds: int) -> Iterator[Target]:
    """Tokens a second at 1, 4 and 16 streams beside llama-server, and of the bare loop."""
    # Short answers: the bare loop measures whole ones, of 16 at once.
    plan = Plan(model, (1, 4, 16), rounds, seconds=4.0, warm_up=2.0, answer_tokens=64)
    with ExitStack() as running:
        ours = running.enter_context(roundhouse(str(model)))
        parted = running.enter_context(_roundhouse(model, parts(8_192, 16)))
        measures = {
            report.OURS: over_http(plan, ours, ENDLESS),
            f"{report.OURS}, parts": over_http(plan, parted, ENDLESS),
        }
        if not ik.missing():
            with_ik = running.enter_context(_roundhouse(model, {"library": "ik"}))
            measures[f"{report.OURS}, ik_llama.cpp"] = over_http(plan, with_ik, ENDLESS)
        theirs = peer(running, report.LLAMA_SERVER, llama_server(model, 8_192, 16))
        if theirs is not None:
            measures[report.LLAMA_SERVER] = over_http(plan, theirs, ENDLESS)
        measures |= {name: raw(plan, threads) for threads, name in report.RAW.items()}
        rows = taken(measures, plan.streams, plan.rounds)
    print(report.table(rows))
    print(f"what memory allows one stream: {memory_allows(model):.0f} tokens/s")
    for count in plan.streams:
        speeds = report.speeds_at(rows, count)
        bare = max(speeds[name] for name in report.RAW.values())
        mine, other = speeds[report.OURS], speeds.get(report.LLAMA_SERVER, 0.0)
        outcome = f"{mine:.0f}, {other:.0f}, bare {bare:.0f} tokens/s"
        met = mine >= other and mine >= 0.97 * bare
        yield Target(f"{count} streams: llama-server's, and 97 % of a bare loop's", outcome, met)


def memory_allows(model: Path) -> float:
    """Tokens a second, if each took one reading of the file, by all cores, and nothing else."""
    numbers = np.ones(READ // 4, np.float32)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        np.dot(numbers, numbers)
        times.append(time.perf_counter() - began)
    return READ / min(times) / model.stat().st_size


def turns(model: Path, rounds: int) -> Iterator[Target]:
    """Second turns of several conversations at once, over HTTP; llama-server has parts."""
    numbers = itertools.count()
    with ExitStack() as running:
        servers = {report.OURS: running.enter_context(_roundhouse(model, parts(PART, TALKS)))}
        if not ik.missing():
            options = {"library": "ik", "max_concurrent": TALKS}
            servers[f"{report.OURS}, ik_llama.cpp"] = running.enter_context(
                _roundhouse(model, options)
            )
        other = peer(running, report.LLAMA_SERVER, llama_server(model, PART, TALKS))
        if other is not None:
            servers[report.LLAMA_SERVER] = other
        measures = {name: partial(_turns, one.port, numbers) for name, one in servers.items()}
        found = {
            name: median(each) for name, each in in_turn(measures, max(1, rounds // 4)).items()
        }
    promise = f"{TALKS} second turns of {WORDS} words at once: llama-server's with parts"
    outcome = ", ".join(f"{name} {speed:.0f} tokens/s" for name, speed in found.items())
    met = found[report.OURS] >= found.get(report.LLAMA_SERVER, 0.0)
    yield Target(promise, outcome, met)


def parts(part: int, count: int) -> Mapping[str, object]:
    """A part of the cache for each of so many conversations, as llama-server has them."""
    cells = {"cache_tokens": part * count, "context_length": part, "max_concurrent": count}
    return {**cells, "library": "llama.cpp"}


@contextmanager
def _roundhouse(model: Path, options: Mapping[str, object]) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "roundhouse.yaml"
        models = [{"name": model.stem, "path": str(model), "options": options}]
        config.write_text(json.dumps({"models": models}))
        with roundhouse("--config", str(config)) as running:
            yield running


def _turns(port: int, numbers: Iterator[int]) -> float:
    """Tokens a second of all second turns together."""
    number = next(numbers)
    talks = [[{"role": "user", "content": _words(WORDS, number * 100 + k)}] for k in range(TALKS)]

    def turn(talk: list[dict[str, str]]) -> None:
        talk.append({"role": "assistant", "content": asked(port, talk, ANSWER)[0]})
        talk.append({"role": "user", "content": "And what comes after that?"})

    _at_once([partial(turn, talk) for talk in talks])
    began = time.perf_counter()
    _at_once([partial(turn, talk) for talk in talks])
    return TALKS * ANSWER / (time.perf_counter() - began)


def _at_once(calls: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def asked(port: int, messages: object, tokens: int, model: str = "") -> tuple[str, float]:
    """An answer of so many tokens, and the seconds until its first text."""
    body = {"messages": messages, "max_tokens": tokens, "stream": True, **ENDLESS}
    text, first, began = "", 0.0, time.perf_counter()
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        headers = {"content-type": "application/json"}
        whole = json.dumps({"model": model, **body} if model else body)
        connection.request("POST", "/v1/chat/completions", whole, headers)
        response = connection.getresponse()
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:]).get("choices", ()):
                delta = choice["delta"]
                if piece := delta.get("content") or delta.get("reasoning_content"):
                    first = first or time.perf_counter() - began
                    text += piece
    if not first:
        raise RuntimeError(f"no text: status {response.status}")
    return text, first


def _words(count: int, number: int) -> str:
    words = ("the", "old", "red", "boat", "lies", "by", "that", "quiet", "lake", "again")
    return f"{number} " + " ".join(words[(number + k * k) % len(words)] for k in range(count))


def swap(model: Path, rounds: int) -> Iterator[Target]:
    """A load, eight tokens and the unloading, and the same of llama.cpp alone."""
    files = recognise(model)
    assert files is not None

    def ours() -> float:
        began = time.process_time()
        with engine(model) as tested:
            admit(tested, 1, prompt(SHORT, 1))
            until_drawn(tested, 1, 8)
            tested.release(1)
        return time.process_time() - began

    def bare() -> float:
        began = time.process_time()
        with ExitStack() as held:
            under_way = loading.Loading(files, options(), lambda _: True, held)
            context = under_way.context(under_way.weights(), files.vocab_size)
            batch = Batch(512)
            batch.chunk(list(prompt(SHORT, 1)), 0, 0, last=True)
            for place in range(8):
                api.llama_decode(context, batch.ready())
                batch.clear()
                batch.chunk([300 + place], SHORT + place, 0, last=True)
        return time.process_time() - began

    ours()  # the file's first load looks at its tokens
    gc.collect()
    yield compared("a swap", in_turn({"ours": ours, "bare": bare}, rounds), "bare", 1.3)


PARTS = {
    "prefill": prefill,
    "idle": idle,
    "behind": behind,
    "streams": streams,
    "turns": turns,
    "swap": swap,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="a turn each, to see that it works")
    given = parser.parse_args(argv)
    machine, model = report.machine(), given.model or lab.smollm2()
    print(
        f"{model.name}, {machine.processor}, {machine.cores} cores, load {machine.load_before:.1f}"
    )
    for name in given.parts:
        report.tell(PARTS[name](model, 1 if given.quick else given.rounds))


if __name__ == "__main__":
    main()
