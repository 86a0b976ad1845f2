"""An edit over HTTP, with drafts and without, beside llama-server with its own n-gram drafts.

    python -m benchmarks.speculation_served [--size 27M] [--rounds 3] [--tokens 400]
                                            [--streams 1 4] [--threads 1]

The model writes the edit by itself (`benchmarks.copying`): it is asked for a part of its walk that
stands in the prompt with three changed tokens, and answers with those three put right. Other text
goes on where the prompt ends, and repeats nothing. Both servers have the same file, greedy
sampling, a prompt that is in the cache already, and take turns.

Tokens a second are each server's own (`timings.predicted_per_second`), all streams together. Beside
them stand those for each second of processor time that the server used meanwhile, which neighbours
on the machine hardly change; with more than one thread they count threads that only wait, too. The
middle of the rounds, the first left out.
"""

import argparse
import contextlib
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import msgspec

from benchmarks import copying, report
from benchmarks.hosts import processor_seconds
from benchmarks.peers import Running, llama_server, llamacpp_options, peer, roundhouse
from benchmarks.realistic import SIZES, Shape

CONTEXT, SLOTS = 2_048, 4
CHANGES = 3
OURS_OFF, OURS = "Roundhouse, off", "Roundhouse, auto"
THEIRS_OFF, THEIRS = "llama-server", "llama-server, ngram-simple"


class Text(msgspec.Struct, frozen=True):
    """What is asked, and what it is answered with."""

    prompt: Sequence[int]
    answer: Sequence[int]


def edit(shape: Shape, dice: random.Random, tokens: int) -> Text:
    """A part of the walk with changes; then the token before that part, behind which it comes."""
    steps = [int(step) for step in copying.walk(shape)]
    first = dice.randrange(1, len(steps) - tokens)
    part = steps[first : first + tokens]
    changed = list(part)
    for place in dice.sample(range(tokens), CHANGES):
        changed[place] = dice.choice(steps)
    return Text((*changed, steps[first - 1]), part)


def other(shape: Shape, dice: random.Random, tokens: int) -> Text:
    """A part of the walk, and what comes behind it."""
    steps = [int(step) for step in copying.walk(shape)]
    first = dice.randrange(len(steps) - 2 * tokens)
    return Text(steps[first : first + tokens], steps[first + tokens : first + 2 * tokens])


TEXTS = {"edit": edit, "other text": other}


class Spent(msgspec.Struct, frozen=True):
    """Of the answers of one turn: tokens a second, and for each second of processor time."""

    speed: float
    by_processor: float
    drafted: int = 0
    accepted: int = 0


def turn(client: httpx.Client, server: Running, texts: Sequence[Text]) -> Spent:
    """All of them at once. Raises RuntimeError where an answer is another."""
    with ThreadPoolExecutor(len(texts)) as threads:
        list(threads.map(lambda text: asked(client, text, 1), texts))  # now it is in the cache
        before = processor_seconds(server.pid)
        answers = list(threads.map(lambda text: asked(client, text, len(text.answer)), texts))
        used = processor_seconds(server.pid) - before
    timings = [answer["timings"] for answer in answers]
    tokens = sum(len(text.answer) for text in texts)
    return Spent(
        sum(one["predicted_per_second"] for one in timings),
        tokens / used,
        sum(one.get("draft_n", 0) for one in timings),
        sum(one.get("draft_n_accepted", 0) for one in timings),
    )


def asked(client: httpx.Client, text: Text, tokens: int) -> Mapping[str, Any]:
    """llama-server's `/completion`, which both have."""
    body = {
        "prompt": list(text.prompt),
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": True,
        "return_tokens": True,
    }
    answer: Mapping[str, Any] = client.post("/completion", json=body).raise_for_status().json()
    if answer["tokens"] != list(text.answer[:tokens]):
        raise RuntimeError("the answer isn't what the model says")
    return answer


class Found(msgspec.Struct, frozen=True):
    """The middle of a server's turns."""

    text: str
    streams: int
    server: str
    middle: Spent


@contextlib.contextmanager
def servers(model: Path, threads: int) -> Iterator[Mapping[str, Running]]:
    """All of them. One that can't be had is left out."""
    ours = {"context_length": str(CONTEXT), "max_concurrent": str(SLOTS)}
    if threads:
        ours |= {"threads": str(threads), "threads_batch": str(threads)}
    with contextlib.ExitStack() as running:
        found: dict[str, Running | None] = {}
        for name, mode in ((OURS_OFF, "off"), (OURS, "auto")):
            environment = llamacpp_options(**ours, speculation_mode=mode)
            found[name] = running.enter_context(roundhouse(str(model), environment=environment))
        for name, drafts in ((THEIRS_OFF, "none"), (THEIRS, "ngram-simple")):
            server = llama_server(model, CONTEXT, SLOTS, drafts=drafts, threads=threads)
            found[name] = peer(running, name, server)
        yield {name: server for name, server in found.items() if server is not None}


def measured(options: argparse.Namespace) -> Iterator[Found]:
    """The servers take turns, with the same texts. Raises DidNotStart and RuntimeError."""
    shape = SIZES[options.size]
    with contextlib.ExitStack() as open_ones:
        folder = open_ones.enter_context(tempfile.TemporaryDirectory())
        model = copying.write(Path(folder) / "model.gguf", shape)
        found = open_ones.enter_context(servers(model, options.threads))
        clients = {
            name: open_ones.enter_context(
                httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=600)
            )
            for name, server in found.items()
        }
        for kind, write in TEXTS.items():
            for streams in options.streams:
                turns: dict[str, list[Spent]] = {name: [] for name in found}
                for number in range(options.rounds + 1):
                    dice = random.Random(number)
                    texts = [write(shape, dice, options.tokens) for _ in range(streams)]
                    for name, server in found.items():
                        turns[name].append(turn(clients[name], server, texts))
                yield from (
                    Found(kind, streams, name, middle(each[1:])) for name, each in turns.items()
                )


def middle(turns: Sequence[Spent]) -> Spent:
    """Of each figure by itself."""
    return Spent(
        median(one.speed for one in turns),
        median(one.by_processor for one in turns),
        sum(one.drafted for one in turns),
        sum(one.accepted for one in turns),
    )


def table(found: Sequence[Found]) -> Iterator[str]:
    """Markdown. `times`: those of the same server without drafts."""
    yield "| text | streams | server | tokens/s | times | per processor second | times | accepted |"
    yield "|---|--:|---|--:|--:|--:|--:|--:|"
    plain = {(one.text, one.streams, one.server): one.middle for one in found}
    for one in found:
        without = OURS_OFF if one.server.startswith(report.OURS) else THEIRS_OFF
        before, now = plain[one.text, one.streams, without], one.middle
        accepted = f"{now.accepted} of {now.drafted}" if now.drafted else ""
        yield (
            f"| {one.text} | {one.streams} | {one.server} | {now.speed:,.0f} | "
            f"{now.speed / before.speed:.2f} | {now.by_processor:,.0f} | "
            f"{now.by_processor / before.by_processor:.2f} | {accepted} |"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="27M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, SLOTS])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--threads", type=int, default=0, help="fixed; else as the servers choose")
    options = parser.parse_args(argv)
    machine = report.machine()
    found = list(measured(options))
    print(f"{machine.processor}, {machine.cores} cores, load before {machine.load_before:.1f}\n")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
