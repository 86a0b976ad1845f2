"""What grammars cost and what they save, with SmolLM2 of the lab (tests/real) and with a vocabulary
of 128,000 tokens.

    python -m benchmarks.constraints [--models smollm2 llamacpp transformers] [--rounds 3]
                                     [--streams 16] [--output FILE]

`llamacpp` and `transformers` are a model of random weights with the large vocabulary in each
engine. All in one process, in turns within every round:

- streams: tokens/s of several answers at once, free and held to a JSON schema: by masks alone, and
  with what the schema leaves no choice in forced.
- keys: the same at one stream, for a schema of long fixed keys and short values.
- token: seconds to draw one token from 128,000 random logits with llama.cpp's temperature and dice:
  free, with our mask, and with llama.cpp's own grammar sampler (GBNF) for the same schema.
- compile: a schema of 50 properties, for the first time and again.
- first: seconds until the first text at one stream, free and held to a schema that is known.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import msgspec
import numpy as np

from backends.contract import catalog
from backends.contract.protocol import Constraint, Ended, Generation, ModelContainer, Piece
from backends.contract.samplers import Sampling
from backends.engines.constraints import EngineTokenizer, Grammars
from backends.engines.driver import DrivenContainer
from backends.engines.llamacpp.batch import allowed_ids
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.rows import draw_among
from benchmarks.report import Machine, machine
from benchmarks.vocabulary import write
from config.engines import LlamaCppOptions, TransformersOptions
from tests.real import lab

RESULT = Path(__file__).with_name("results") / "constraints.json"
REAL = "smollm2"
MODELS = (REAL, "llamacpp", "transformers")
VOCABULARY = 128_000
STREAMS = 16
TOKENS = 96  # of an answer
DRAWN = 150  # tokens of the drawing by itself
FIRSTS = 40
WARM = Sampling(temperature=0.8, seed=1)
FREE = Sampling(temperature=0.8, seed=1, ban_eos=True)

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 999},
        "state": {"enum": ["new", "used", "broken"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "available": {"type": "boolean"},
    },
    "required": ["name", "quantity", "state", "tags", "available"],
    "additionalProperties": False,
}
ITEMS = {"type": "array", "items": ITEM, "minItems": 100}


def fixed_keys(number: int) -> dict[str, object]:
    """Long keys, short values; another schema for each `number`."""
    names = [f"measurement_of_the_sensor_{number}_{place}" for place in range(50)]
    kinds = [{"type": "boolean"}, {"type": "integer", "maximum": 9, "minimum": 0}]
    return {
        "type": "object",
        "properties": {name: kinds[place % 2] for place, name in enumerate(names)},
        "required": names,
        "additionalProperties": False,
    }


def held(schema: object, *, forced: bool = True) -> Constraint:
    """To `schema`, without optional spaces."""
    compact = {"x-guidance": {"whitespace_flexible": False}, **schema}  # type: ignore[dict-item]
    grammar = json.dumps({"grammars": [{"json_schema": compact}]})
    return Constraint(grammar=grammar, fast_forward=forced)


class Results(msgspec.Struct, frozen=True):
    """`streams` and `keys`: tokens/s by engine and way, middles of the rounds; else seconds."""

    machine: Machine
    count: int  # of `streams`
    streams: dict[str, dict[str, float]]
    keys: dict[str, dict[str, float]]
    token: dict[str, float]
    compile: dict[str, float]
    first: dict[str, dict[str, float]]


# -- engines ---------------------------------------------------------------------------------------


@asynccontextmanager
async def loaded(name: str, folder: Path) -> AsyncIterator[ModelContainer]:
    """SmolLM2, or the model of `benchmarks.vocabulary` in one of the two engines."""
    engine = "llamacpp" if name == REAL else name
    paths = {"llamacpp": "roundhouse-tiny.gguf", "transformers": "roundhouse-tiny"}
    options = {
        "llamacpp": LlamaCppOptions(max_concurrent=STREAMS, context_length=1024),
        "transformers": TransformersOptions(
            max_concurrent=STREAMS, context_length=1024, device="cpu"
        ),
    }
    path = lab.smollm2() if name == REAL else folder / paths[name]
    files = catalog.recognise(path, engine)
    loading = catalog.BACKENDS[engine].container.load(files, options[engine], lambda _: None)
    container = await loading
    yield container
    await container.aclose()


def asked(number: int, constraint: Constraint | None, tokens: int) -> Generation:
    """Job `number`; its prompt is nobody else's."""
    prompt = tuple(np.random.default_rng(number).integers(300, 700, 40).tolist())
    sampling = msgspec.structs.replace(WARM if constraint else FREE, seed=number)
    return Generation(prompt=prompt, sampling=sampling, max_tokens=tokens, constraint=constraint)


async def answer(container: ModelContainer, job: Generation) -> tuple[int, float]:
    """Its tokens, and when the first text came, in seconds since it was sent."""
    sent, first = time.perf_counter(), 0.0
    async with container.generate(job) as outputs:
        async for output in outputs:
            if isinstance(output, Piece) and not first:
                first = time.perf_counter() - sent
            if isinstance(output, Ended):
                return output.completion_tokens, first
    raise AssertionError


async def speed(
    container: ModelContainer, constraint: Constraint | None, streams: int, tokens: int
) -> float:
    """Tokens/s of `streams` answers at once, from sending them to the last token."""
    counts: list[int] = []

    async def one(number: int) -> None:
        counts.append((await answer(container, asked(number, constraint, tokens)))[0])

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(streams):
            tasks.start_soon(one, number)
    return sum(counts) / (time.perf_counter() - started)


async def in_turns(
    container: ModelContainer,
    ways: Mapping[str, Constraint | None],
    rounds: int,
    streams: int,
    tokens: int,
) -> dict[str, float]:
    """The middle of each way's speeds; one round more, the first, is not counted."""
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, constraint in ways.items():
            measured = await speed(container, constraint, streams, tokens)
            speeds[way] += [measured] if turn else []
    return {way: median(measured) for way, measured in speeds.items()}


async def first_texts(container: ModelContainer) -> dict[str, float]:
    """Middles, in turns."""
    ways = {"free": None, "held": held(ITEMS)}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(FIRSTS):
        for way, constraint in ways.items():
            found[way].append((await answer(container, asked(number, constraint, 2)))[1])
    return {way: median(seconds[2:]) for way, seconds in found.items()}


# -- one token -------------------------------------------------------------------------------------


class OneRow:
    """Drawing from the same random logits again and again."""

    def __init__(self, engine: EngineTokenizer, pointer: object) -> None:
        self._engine = engine
        self._vocabulary = pointer  # llama.cpp's
        self._size = engine.info.vocab_size
        dice = np.random.default_rng(0)
        self._logits = dice.standard_normal((DRAWN, self._size)).astype(np.float32)

    def _chain(self, grammar: bytes | None = None) -> object:
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        if grammar is not None:
            link = api.llama_sampler_init_grammar(self._vocabulary, grammar, b"root")
            api.llama_sampler_chain_add(chain, link)
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(0.8))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(1))
        return chain

    def _drawing(self, chain: object) -> list[float]:
        everything = np.arange(self._size)
        spent = []
        for row in self._logits:
            started = time.perf_counter()
            draw_among(chain, row, everything)
            spent.append(time.perf_counter() - started)
        return spent

    def free(self) -> float:
        """Seconds a token."""
        return sum(self._drawing(self._chain())) / DRAWN

    def gbnf(self, schema: object) -> float:
        """With llama.cpp's own grammar sampler."""
        from llama_cpp.llama_grammar import (  # noqa: PLC0415 - whose library the engine finds first
            json_schema_to_gbnf,
        )

        grammar = json_schema_to_gbnf(json.dumps(schema)).encode()
        return sum(self._drawing(self._chain(grammar))) / DRAWN

    async def ours(self, schema: object) -> float:
        """With nothing done beside: mask, draw, and what the grammar makes of the token."""
        grammars, chain, spent = Grammars(self._engine), self._chain(), 0.0
        job = Generation(prompt=(1,), sampling=WARM)
        matcher = await grammars.matcher(job, held(schema, forced=False))
        for row in self._logits:
            started = time.perf_counter()
            ids = allowed_ids(matcher.allowed(), self._size)
            drawn = draw_among(chain, row, np.arange(self._size) if ids is None else ids)
            matcher.take(drawn.token)
            spent += time.perf_counter() - started
        await grammars.aclose()
        return spent / DRAWN


async def compiling(engine: EngineTokenizer) -> dict[str, float]:
    """Seconds until a job's matcher is there. The tokenizer is made once for a model."""
    grammars, job = Grammars(engine), Generation(prompt=(1,))
    found: dict[str, list[float]] = {"tokenizer": [], "first": [], "again": []}
    for number in range(12):
        for way in ("first", "again"):
            started = time.perf_counter()
            await grammars.matcher(job, held(fixed_keys(number)))
            found[way if number else "tokenizer"].append(time.perf_counter() - started)
    await grammars.aclose()
    return {
        "tokenizer": found["tokenizer"][0],
        **{way: median(found[way]) for way in ("first", "again")},
    }


# -- all of it -------------------------------------------------------------------------------------


async def measure(folder: Path, models: Sequence[str], rounds: int, count: int) -> Results:
    """Every figure. `count`: the streams of `streams`."""
    state = machine()
    if set(models) != {REAL}:
        write(folder, VOCABULARY)
    streams: dict[str, dict[str, float]] = {}
    keys: dict[str, dict[str, float]] = {}
    firsts: dict[str, dict[str, float]] = {}
    token: dict[str, float] = {}
    compiled: dict[str, float] = {}
    for name in models:
        async with loaded(name, folder) as container:
            ways = {
                "free": None,
                "masks": held(ITEMS, forced=False),
                "forced": held(ITEMS),
            }
            streams[name] = await in_turns(container, ways, rounds, count, TOKENS)
            fixed = {"masks": held(fixed_keys(0), forced=False), "forced": held(fixed_keys(0))}
            keys[name] = await in_turns(container, fixed, rounds, 1, 4 * TOKENS)
            firsts[name] = await first_texts(container)
            if name == "llamacpp" or models == [REAL]:
                assert isinstance(container, DrivenContainer)
                engine: Any = container.engine
                compiled = await compiling(engine)
                row = OneRow(engine, engine._vocabulary.pointer)  # noqa: SLF001 - as above
                token = {
                    "free": row.free(),
                    "ours": await row.ours(ITEMS),
                    "gbnf": row.gbnf(ITEMS),
                }
    return Results(state, count, streams, keys, token, compiled, firsts)


def lines(results: Results) -> Sequence[str]:
    """For people, with the targets."""
    written = []
    for name, of in results.streams.items():
        least = 90 if name == "transformers" else 95
        shares = ", ".join(
            f"{way} {of[way]:,.0f} ({of[way] / of['free']:.0%})" for way in ("masks", "forced")
        )
        written.append(
            f"{name}, {results.count} streams: free {of['free']:,.0f} tokens/s, {shares};"
        )
        written[-1] += f" target {least} %"
    for name, of in results.keys.items():
        gain = of["forced"] / of["masks"]
        written.append(
            f"{name}, fixed keys, one stream: {of['masks']:,.0f} tokens/s, "
            f"forced {of['forced']:,.0f} ({gain:.1f} times); target 1.5"
        )
    token = results.token
    written.append(
        f"one token: free {token['free'] * 1e3:.2f} ms, ours {token['ours'] * 1e3:.2f}, GBNF "
        f"{token['gbnf'] * 1e3:.2f} ({token['gbnf'] / token['ours']:.1f} times ours); target 3"
    )
    made = results.compile
    written.append(
        f"50 properties: {made['first'] * 1e3:.1f} ms, again {made['again'] * 1e3:.2f}; target 50 "
        f"and 1; with the tokenizer {made['tokenizer'] * 1e3:.0f}"
    )
    for name, of in results.first.items():
        written.append(
            f"{name}, first text: free {of['free'] * 1e3:.1f} ms, held {of['held'] * 1e3:.1f}; "
            "target 1 ms more"
        )
    return written


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), arguments.models, arguments.rounds, arguments.streams)
        results = asyncio.run(measured)
    print(*lines(results), sep="\n")
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")


if __name__ == "__main__":
    main()
