"""What a streamed token costs in each API, in the server's CPU time.

    python -m benchmarks.dialects [--rounds 7] [--streams 16]

`roundhouse serve` runs with the scripted engine as a process of its own; its CPU time (user and
system, the engine's included) around a number of streams is divided by the frames they told. The
engine is so slow that on an idle machine each token is a frame of its own. The APIs take turns
within every round, and the middle of the rounds counts. Also: what the store takes to keep a
response, alone and with many writers. Writes JSON.
"""

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from benchmarks.peers import roundhouse
from config.settings import StoreConfig
from gateway.dialects import anthropic, kobold, ollama, openai, responses
from gateway.keys.store import KeptResponse, Store
from gateway.terms.events import Content, Delta

RESULTS = Path(__file__).with_name("results") / "dialects.json"
TOKENS = 800  # of one answer; a token of the script is a byte
PACE = {"ROUNDHOUSE_ENGINES_SCRIPTED_TOKENS_PER_SECOND": "400"}  # of each stream
TEXT = ("The quick brown fox jumps over the lazy dog. " * 20)[:TOKENS]
HELLO = [{"role": "user", "content": "Hello"}]
ALONE, TOGETHER = 500, 5_000  # responses kept one after the other, and at once
DOCUMENT = b"x" * 4_000  # bytes of a response of average size
MOST = 1.15  # times what a token of chat completions costs

REQUESTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat completions": ("/v1/chat/completions", {"messages": HELLO, "stream": True}),
    "messages": ("/v1/messages", {"messages": HELLO, "stream": True, "max_tokens": TOKENS}),
    "ollama": ("/api/chat", {"messages": HELLO}),
    "responses": ("/v1/responses", {"input": "Hello", "stream": True}),
    "koboldai": ("/api/extra/generate/stream", {"prompt": "Hello", "max_length": TOKENS}),
}


class StoreFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the store in a file: seconds until a response alone is kept (p50), and how many are kept a
    second by many writers.
    """

    seconds_p50: float
    responses_per_second: float


async def cost(address: str, server: psutil.Process, api: str, streams: int) -> float:
    """Microseconds of the server's CPU time for a frame told."""
    path, body = REQUESTS[api]

    async def stream(client: httpx.AsyncClient) -> int:
        """How many frames were told."""
        async with client.stream("POST", path, json={"model": "fox", **body}) as answer:
            answer.raise_for_status()
            received = b"".join([data async for data in answer.aiter_raw()])
        return received.count(b"\n{" if api == "ollama" else b"\ndata:")

    async with httpx.AsyncClient(base_url=address, timeout=120.0) as client:
        await stream(client)  # what is done once, is done
        before = server.cpu_times()
        frames = sum(await asyncio.gather(*(stream(client) for _ in range(streams))))
        after = server.cpu_times()
    seconds = after.user + after.system - before.user - before.system
    return float(seconds / frames * 1e6)


async def rounds(port: int, server: psutil.Process, count: int, streams: int) -> dict[str, float]:
    """The middle of `count` rounds, by API."""
    found: dict[str, list[float]] = {api: [] for api in REQUESTS}
    for _ in range(count):
        for api, costs in found.items():
            costs.append(await cost(f"http://127.0.0.1:{port}", server, api, streams))
    return {api: round(statistics.median(costs), 2) for api, costs in found.items()}


async def keeping(folder: Path) -> StoreFigures:
    """What the store takes on this machine's disk."""

    def response(number: int) -> KeptResponse:
        name, now = f"resp_{number}", time.time()
        return KeptResponse(id=name, created=now, document=DOCUMENT, input=b"[]", output=b"[]")

    async with Store(StoreConfig(path=str(folder / "store.sqlite"))) as store:
        alone = []
        for number in range(ALONE):
            began = time.perf_counter()
            await store.put("", response(number))
            alone.append(time.perf_counter() - began)
        began = time.perf_counter()
        many = range(ALONE, ALONE + TOGETHER)
        await asyncio.gather(*(store.put("", response(number)) for number in many))
        took = time.perf_counter() - began
    return StoreFigures(seconds_p50=statistics.median(alone), responses_per_second=TOGETHER / took)


def replies(deltas: int = 200_000) -> dict[str, float]:
    """Microseconds of CPU time that each API's reply alone takes for a token, best of three."""
    hello = msgspec.json.encode({"messages": HELLO, "input": "Hello"})
    delta = Delta(0, (Content("word "),))

    def cost_of(reply: Any) -> float:
        reply.opening()
        reply.delta(delta)
        began = time.process_time()
        for _ in range(deltas):
            reply.delta(delta)
        return round((time.process_time() - began) / deltas * 1e6, 3)

    def made() -> dict[str, Any]:
        return {
            "chat completions": openai.ChatReply(
                openai.read_chat(hello),
                openai.AnswerFacts(id="chatcmpl-1", created=0, model="fox"),
            ),
            "messages": anthropic.MessagesReply(
                anthropic.read_messages(hello), id="msg_1", model="fox", prompt_tokens=1
            ),
            "ollama": ollama.OllamaReply(
                model="fox", created_at="", chat=True, hides_thinking=False, load_seconds=0.0
            ),
            "responses": responses.ResponsesReply(
                responses.read_response(hello), id="resp_1", created=0, new_id=lambda: "1"
            ),
            "koboldai": kobold.KoboldReply(results=1, shows_stop=True),
        }

    return {api: min(cost_of(made()[api]) for _ in range(3)) for api in REQUESTS}


def report(costs: Mapping[str, float], alone: Mapping[str, float], kept: StoreFigures) -> str:
    """A table for people."""
    base = costs["chat completions"]
    lines = [
        f"{api:18} {one:7.2f} µs a frame  {one / base:5.2f}; the reply alone {alone[api]:.2f} µs"
        for api, one in costs.items()
    ]
    lines.append(f"target: at most {MOST} times chat completions")
    lines.append(
        f"store: {kept.seconds_p50 * 1e3:.2f} ms for one (p50), "
        f"{kept.responses_per_second:,.0f} responses a second by many writers"
    )
    return "\n".join(lines)


def measure(count: int, streams: int) -> Mapping[str, Any]:
    """Both measurements, as they are written to the file."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "fox.script.json"
        script.write_bytes(msgspec.json.encode({"lines": [{"say": TEXT}]}))
        with roundhouse(str(script), environment=PACE) as server:
            process = psutil.Process(server.pid)
            costs = asyncio.run(rounds(server.port, process, count, streams))
        kept = asyncio.run(keeping(Path(folder)))
    alone = replies()
    print(report(costs, alone, kept))
    return {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "microseconds_per_frame": costs,
        "microseconds_of_the_reply_alone": alone,
        "store": msgspec.to_builtins(kept),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, default=16)
    chosen = parser.parse_args(arguments)
    found = measure(chosen.rounds, chosen.streams)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
