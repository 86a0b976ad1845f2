"""Conversations that outlive the cache: what it takes to go on with one after its model was away,
after a restart, and with more conversations than slots.

    python -m benchmarks.kept [--models smollm2 lfm2] [--tokens 8000] [--rounds 12] [--skip …]
        [--host worker]

One model is SmolLM2 of the lab (tests/real); the other, of LFM2's kind, has random weights at 8
bits: 16 layers, hidden 1,024, attention in every second one, and convolutions with a state in
between.

- away: the time to the first text of a prompt that is computed; after its model was unloaded and
  loaded again; after a restart of the server, once it is on disk. Without the load, as the server
  reports it.
- beside: tokens a second of 16 streams with the store and without it, in turn.
- in turn: 64 conversations of three turns over 16 slots, with a short side job after each turn: the
  share of prompt tokens that is not computed. With SmolLM2; llama-server with its own
  `--cache-ram` beside it.
- keys: the time to the first text of prompts that another API key has sent, in the cache and after
  a swap, beside that of new ones, the shortest of each; how many of their tokens were not computed.
- stalls: the gaps between a stream's tokens while nothing else happens, while two long
  conversations are put back in turn, and while they are computed in turn, without the store.
"""

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import httpx
import msgspec
import numpy as np

from benchmarks import report
from benchmarks.peers import Running, llama_server, roundhouse
from benchmarks.realistic import Shape, random_matrix
from benchmarks.vocabulary import tokenizer
from tests.real import lab
from training import gguf_file

SHAPE = Shape(layers=16, width=1_024, groups=4, hidden=2_816)
CONTEXT = 12_288
FROM_MEMORY, FROM_DISK = 0.15, 0.25  # of the time that computing takes
BESIDE = 0.99  # of the tokens a second without the store
FOUND = 0.95  # of the prompt tokens of conversations in turn
CONVERSATIONS, SLOTS, TURNS, TURN_CONTEXT = 64, 16, 3, 2_048
STORES: Sequence[tuple[str, str | int]] = (("Roundhouse", "auto"), ("Roundhouse, no store", 0))
NOTICED = 0.2  # by which a prompt that another key has sent may differ in time from a new one
KEYS = ("sk-benchmark-one", "sk-benchmark-two")
SKIPPED = ("beside", "in-turn", "keys", "stalls")
STREAMED = 400  # tokens of the stream whose gaps are measured
WORDS = "the engine went over the bridge and came back by night while nobody had seen it go "


class Away(msgspec.Struct, frozen=True):
    """Seconds to the first text, and where what wasn't computed came from."""

    computed: float
    from_memory: float
    from_disk: float
    tokens: int
    tiers: tuple[str, ...]


def write_lfm2(path: Path, shape: Shape = SHAPE) -> Path:
    """As `realistic.write`, of LFM2: every second layer is a convolution with a state."""
    writer = gguf.GGUFWriter(path, "lfm2")
    heads = shape.width // shape.head
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv([0, shape.groups] * (shape.layers // 2))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_shortconv_l_cache(3)
    gguf_file.add_tokenizer(writer, tokenizer(shape.vocabulary))
    dice, kind = np.random.default_rng(0), gguf.GGMLQuantizationType.Q8_0
    for name, rows, columns in _matrices(shape):
        writer.add_tensor(name, random_matrix(dice, rows, columns), raw_dtype=kind)
    writer.add_tensor("token_embd_norm.weight", np.ones(shape.width, np.float32))
    for layer in range(shape.layers):
        for name, size in (("attn_norm", shape.width), ("ffn_norm", shape.width)):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(size, np.float32))
        if layer % 2:
            for name in ("attn_q_norm", "attn_k_norm"):
                writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(shape.head, np.float32))
        else:
            taps = dice.standard_normal((shape.width, 3)).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.shortconv.conv.weight", taps)
    gguf_file.finish(writer)
    return path


def _matrices(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of each."""
    width, keys = shape.width, shape.groups * shape.head
    attention = (
        ("attn_q", width, width),
        ("attn_k", keys, width),
        ("attn_v", keys, width),
        ("attn_output", width, width),
    )
    convolution = (
        ("shortconv.in_proj", 3 * width, width),
        ("shortconv.out_proj", width, width),
    )
    forward = (
        ("ffn_gate", shape.hidden, width),
        ("ffn_up", shape.hidden, width),
        ("ffn_down", width, shape.hidden),
    )
    yield "token_embd.weight", shape.vocabulary, width
    for layer in range(shape.layers):
        for name, rows, columns in (*(attention if layer % 2 else convolution), *forward):
            yield f"blk.{layer}.{name}.weight", rows, columns


def real(path: Path) -> Path:
    """SmolLM2, at this path."""
    path.symlink_to(lab.smollm2())
    return path


WRITERS: Mapping[str, Any] = {"smollm2": real, "lfm2": write_lfm2}


def configured(
    place: Path,
    model: Path,
    context: int,
    slots: int = 4,
    host: str = "process",
    keys: Sequence[Mapping[str, str]] = (),
    **kept: Any,
) -> Path:
    """A configuration file with one model."""
    options = {"context_length": context, "max_concurrent": slots, "host": host}
    settings = {
        "models": [{"name": "model", "path": str(model), "options": options}],
        "kept": kept,
        "keys": keys,
        "log": {"level": "warning"},
    }
    path = place / "roundhouse.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return path


def client(running: Running) -> httpx.Client:
    """Of a server; its answers may take long."""
    return httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=1_200)


def first_text(api: httpx.Client, prompt: Sequence[int]) -> tuple[float, Mapping[str, Any]]:
    """Seconds to the first text, without the load; and the answer's timings."""
    body = {"model": "model", "prompt": list(prompt), "max_tokens": 4, "temperature": 0}
    wishes = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    timings: Mapping[str, Any] = {}
    began, first = time.perf_counter(), 0.0
    with api.stream("POST", "/v1/completions", json=body | wishes) as answer:
        load = float(answer.headers.get("x-roundhouse-load-time", 0))
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter() - began
            timings = json.loads(line[6:]).get("timings") or timings
    return first - load, timings


def away(kind: str, tokens: int, host: str) -> Away:
    """Of one prompt."""
    dice = np.random.default_rng(1)
    prompts = [dice.integers(300, 8_000, tokens).tolist() for _ in range(2)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = WRITERS[kind](folder / f"{kind}.gguf")
        context = tokens + 512
        place = str(folder / "kept")
        path = configured(folder, model, context, host=host, memory="4GiB", folder=place)
        with roundhouse("--config", str(path)) as running, client(running) as api:
            first_text(api, prompts[1][:600])  # speeds are known, and it is warm
            computed, _ = first_text(api, prompts[0])
            api.post("/models/unload", json={"model": "model"}).raise_for_status()
            memory, put_back = first_text(api, prompts[0])
            while not all("disk" in one["tiers"] for one in api.get("/v1/kept").json()["data"]):
                time.sleep(1)
        with roundhouse("--config", str(path)) as running, client(running) as api:
            first_text(api, prompts[1][:64])  # the load
            disk, read = first_text(api, prompts[0])
    tiers = (put_back.get("kept_in", ""), read.get("kept_in", ""))
    return Away(computed, memory, disk, tokens, tiers)


def spoken(api: httpx.Client, text: str, tokens: int) -> tuple[int, int, str]:
    """Prompt tokens, those that were cached, and the answer; of either server."""
    body = {"model": "model", "prompt": text, "max_tokens": tokens, "temperature": 0}
    answer = api.post("/v1/completions", json=body | {"ignore_eos": True}).json()
    prompt, cached = answer["usage"]["prompt_tokens"], answer["timings"]["cache_n"]
    return prompt, cached, answer["choices"][0]["text"]


def in_turn() -> Mapping[str, float]:
    """The shares of prompt tokens that were known to a conversation's later turns and weren't
    computed.
    """
    with tempfile.TemporaryDirectory() as name:
        shares = {}
        for ours, memory in STORES:
            path = configured(Path(name), lab.smollm2(), TURN_CONTEXT, SLOTS, memory=memory)
            with roundhouse("--config", str(path)) as running, client(running) as api:
                shares[ours] = _in_turn(api)
    server = llama_server(lab.smollm2(), TURN_CONTEXT, SLOTS)  # 8 GiB of --cache-ram: its default
    with server as running, client(running) as api:
        shares["llama-server"] = _in_turn(api)
    return shares


def _in_turn(api: httpx.Client) -> float:
    texts = [f"Conversation {number}: " + WORDS * 8 for number in range(CONVERSATIONS)]
    known = [0] * CONVERSATIONS
    all_tokens = found = 0
    for turn in range(TURNS):
        for number, text in enumerate(texts):
            prompt, cached, answer = spoken(api, text, 16)
            if turn:
                all_tokens += known[number]
                found += min(cached, known[number])
            known[number] = prompt
            texts[number] = f"{text}{answer} And then {WORDS}"
            spoken(api, f"A title for number {number}, turn {turn}: {WORDS}", 4)
    return found / all_tokens


class Known(msgspec.Struct, frozen=True):
    """Seconds to the first text, for a key, of prompts that nobody has sent; of those that another
    one has, and how many of their tokens were not computed; and of its own.
    """

    new: float
    others: float
    found: int
    own: float


def between_keys(tokens: int, host: str) -> Known:
    """What one API key sees of another's prompts."""
    dice = np.random.default_rng(3)
    prompts = [dice.integers(300, 8_000, tokens).tolist() for _ in range(5)]
    with tempfile.TemporaryDirectory() as name:
        model = lab.smollm2()
        keys = [{"key": key, "role": "admin"} for key in KEYS]
        path = configured(Path(name), model, tokens + 512, 4, host, keys, memory="2GiB")
        with roundhouse("--config", str(path)) as running, client(running) as api:

            def asked(key: str, *chosen: int) -> tuple[float, int]:
                api.headers["authorization"] = f"Bearer {key}"
                answers = [first_text(api, prompts[number]) for number in chosen]
                found = sum(timings["cache_n"] for _, timings in answers)
                return min(seconds for seconds, _ in answers), found

            one, other = KEYS
            asked(one, 0, 1)
            in_cache, found = asked(other, 0)
            api.post("/models/unload", json={"model": "model"}).raise_for_status()
            new, _ = asked(other, 2, 3)
            in_store, more = asked(other, 1)
            own, _ = asked(one, 1)
    return Known(new, min(in_cache, in_store), found + more, own)


class Gaps(msgspec.Struct, frozen=True):
    """Milliseconds between a stream's tokens, and how many conversations came back meanwhile."""

    median: float
    p99: float
    longest: float
    back: int


def stalls(kind: str, tokens: int, host: str) -> Mapping[str, Gaps]:
    """What another stream sees of conversations with so many tokens."""
    gaps = {}
    with tempfile.TemporaryDirectory() as name:
        model = WRITERS[kind](Path(name) / f"{kind}.gguf")
        for outcome, memory in (("put back", "2GiB"), ("computed", 0)):
            path = configured(Path(name), model, tokens + 512, 2, host, memory=memory)
            with roundhouse("--config", str(path)) as running, client(running) as api:
                if memory:
                    gaps["alone"] = _gaps(api, ())
                gaps[outcome] = _gaps(api, _long(tokens))
    return gaps


def _long(tokens: int) -> Sequence[Sequence[int]]:
    dice = np.random.default_rng(2)
    return [dice.integers(300, 8_000, tokens).tolist() for _ in range(2)]


def _gaps(api: httpx.Client, prompts: Sequence[Sequence[int]]) -> Gaps:
    """Of one stream, while `prompts` are asked for in turn."""
    for prompt in prompts:
        first_text(api, prompt)
    begun, ended, times = threading.Event(), threading.Event(), list[float]()

    def read() -> None:
        body = {"model": "model", "prompt": [400, 500], "max_tokens": STREAMED, "stream": True}
        with api.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    times.append(time.perf_counter())
                    begun.set()
        ended.set()

    back = 0
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read)
        begun.wait()
        while prompts and not ended.is_set():
            first_text(api, prompts[back % len(prompts)])
            back += not ended.is_set()
        reading.result()
    gaps = sorted((later - earlier) * 1_000 for earlier, later in pairwise(times[1:]))
    return Gaps(median(gaps), gaps[int(len(gaps) * 0.99)], gaps[-1], back)


def speeds(rounds: int) -> tuple[float, float]:
    """Tokens a second of 16 streams of SmolLM2, with the store and without, in turn."""
    import asyncio  # noqa: PLC0415 - here alone

    found: dict[str, list[float]] = {name: [] for name, _ in STORES}
    with contextlib.ExitStack() as held:
        ports = {}
        for name, memory in STORES:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
            path = configured(folder, lab.smollm2(), 1_024, SLOTS, memory=memory)
            ports[name] = held.enter_context(roundhouse("--config", str(path))).port
        for _ in range(rounds + 1):
            for name, port in ports.items():
                found[name].append(asyncio.run(_speed(port)))
    with_store, without = (median(found[name][1:]) for name, _ in STORES)
    return with_store, without


async def _speed(port: int) -> float:
    import asyncio  # noqa: PLC0415 - as above

    body = {"model": "model", "prompt": "Once upon a time", "max_tokens": 400, "stream": False}
    url = f"http://127.0.0.1:{port}/v1/completions"
    async with httpx.AsyncClient(timeout=600) as api:
        began = time.perf_counter()
        wishes = body | {"ignore_eos": True}
        answers = await asyncio.gather(*(api.post(url, json=wishes) for _ in range(SLOTS)))
        seconds = time.perf_counter() - began
    tokens: int = sum(answer.json()["usage"]["completion_tokens"] for answer in answers)
    return tokens / seconds


def targets(kind: str, one: Away) -> Iterator[report.Target]:
    """Of one model."""
    for where, seconds, most in (
        ("from memory", one.from_memory, FROM_MEMORY),
        ("from disk, after a restart", one.from_disk, FROM_DISK),
    ):
        share = seconds / one.computed
        promise = f"{kind}, {one.tokens} tokens {where}: at most {most:.0%} of computing"
        outcome = f"{share:.1%} ({seconds:.2f} s of {one.computed:.1f} s)"
        yield report.Target(promise, outcome, share <= most)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", choices=WRITERS, default=list(WRITERS))
    parser.add_argument("--tokens", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--host", choices=("process", "worker"), default="process")
    parser.add_argument("--skip", nargs="*", choices=SKIPPED, default=[])
    options = parser.parse_args(argv)
    machine = report.machine()
    print(f"{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}\n")
    met: list[report.Target] = []
    for kind in options.models:
        one = away(kind, options.tokens, options.host)
        print(kind, one, flush=True)
        met += targets(kind, one)
    if "in-turn" not in options.skip:
        shares = in_turn()
        outcome = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        ahead = shares["Roundhouse"] >= FOUND
        met.append(report.Target(f"{CONVERSATIONS} in turn: {FOUND:.0%}", outcome, ahead))
    if "keys" not in options.skip:
        known = between_keys(options.tokens // 4, options.host)
        print(known, flush=True)
        outcome = f"{known.found} tokens, {known.others:.2f} s as new ones {known.new:.2f} s"
        unseen = not known.found and known.others >= (1 - NOTICED) * known.new
        met.append(report.Target("another key's prompts: none found", outcome, unseen))
    if "stalls" not in options.skip:
        gaps = stalls("smollm2", options.tokens // 4, options.host)
        for name, found in gaps.items():
            print("gaps in ms,", name, found, flush=True)
        outcome = f"{gaps['put back'].p99:.0f} ms, computed {gaps['computed'].p99:.0f} ms"
        calm = gaps["put back"].p99 <= gaps["computed"].p99
        met.append(report.Target("gaps beside (p99): none longer than of prompts", outcome, calm))
    if "beside" not in options.skip:
        with_store, without = speeds(options.rounds)
        share = with_store / without
        outcome = f"{share:.1%} ({with_store:,.0f} and {without:,.0f} tokens/s)"
        met.append(report.Target("tokens/s beside the store: 99 %", outcome, share >= BESIDE))
    report.tell(met)


if __name__ == "__main__":
    main()
