"""Each engine on a card beside its own bare loop, in one process: tokens a second at 1, 4 and 16
streams, the first text, and a long prompt.

    python -m benchmarks.card [--engines llamacpp …] [--models smollm2 billion] [--streams 1 4]
                              [--json FILE]

Three models: SmolLM2 135M at 16 bits, a Llama of 1.1 thousand million random weights (16 bits;
llama.cpp's at 8), which says nothing but takes as long as sense would, and the bundled one, which
shows what an engine costs besides computing. No two streams begin alike,
so that none finds another's cells. `sampled` and `own` are our samplers and the engine's own with
the same temperature, min-p and penalty.
"""

import argparse
import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

import bundled
from backends.contract import catalog
from backends.contract.protocol import Generation, ModelContainer, Piece
from backends.contract.samplers import Sampling
from benchmarks import raw_loop, realistic
from config.engines import (
    EngineOptions,
    ExLlamaV2Options,
    ExLlamaV3Options,
    LlamaCppOptions,
    TransformersOptions,
)
from tests.real import lab

DRY = os.environ.get("ROUNDHOUSE_CARD") == "none"  # with every engine's form for CPUs
DEVICE = "cpu" if DRY else "cuda:0"
TOKENS = 8 if DRY else 64  # of each answer
ROUNDS = 1 if DRY else 2  # the best counts: the first compiles and tunes
STREAMS = [1, 4] if DRY else [1, 4, 16]
LONG = 64 if DRY else 1536  # tokens of a prompt
GREEDY = Sampling(temperature=0, ban_eos=True)
SAMPLED = Sampling(temperature=0.8, min_p=0.05, repetition_penalty=1.1, ban_eos=True)
SIZES: Mapping[str, Any] = {"max_concurrent": 16, "context_length": 2048}
OPTIONS: Mapping[str, EngineOptions] = {
    "llamacpp": LlamaCppOptions(**SIZES, gpu_layers=0 if DRY else "auto"),
    "exllamav2": ExLlamaV2Options(**SIZES),
    "exllamav3": ExLlamaV3Options(**SIZES),
    "transformers": TransformersOptions(**SIZES, device=DEVICE, dtype="float16"),
}
BILLION = realistic.Shape(layers=16, width=2048, head=64, groups=8, hidden=8192, vocabulary=8192)
SAMPLER = {"exllamav2": "gen_settings", "exllamav3": "sampler"}  # what a job calls it
Rows = dict[str, dict[str, float]]


def billion_folder(path: Path) -> None:
    """The random weights, and the bundled tokenizer."""
    shape = LlamaConfig(
        vocab_size=BILLION.vocabulary,
        hidden_size=BILLION.width,
        intermediate_size=BILLION.hidden,
        num_hidden_layers=BILLION.layers,
        num_attention_heads=BILLION.width // BILLION.head,
        num_key_value_heads=BILLION.groups,
        max_position_embeddings=4096,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(shape).to(torch.float16)
    model.to("cpu").save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled.SAFETENSORS / name, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"rope_theta": 10000.0}))
    del model
    gc.collect()
    torch.cuda.empty_cache()


def model(name: str, engine: str) -> Path:
    """The file or folder of that model which the engine reads."""
    if name == "bundled":
        return bundled.GGUF if engine == "llamacpp" else bundled.SAFETENSORS
    if name == "smollm2":
        return lab.smollm2_half() if engine == "llamacpp" else lab.smollm2_folder()
    if engine == "llamacpp":
        return lab.kept("billion.gguf", lambda path: realistic.write(path, BILLION))
    return lab.kept("billion", billion_folder)


def asked(stream: int, sampling: Sampling, length: int = 32, tokens: int = TOKENS) -> Generation:
    """A prompt of so many tokens that no other stream has."""
    prompt = (100 + stream, *(200 + (stream * 7 + place * 3) % 500 for place in range(length - 1)))
    return Generation(prompt=prompt, sampling=sampling, max_tokens=tokens)


async def _first_text(container: ModelContainer, job: Generation) -> float:
    """Seconds; the rest of the answer is read."""
    began, first = time.perf_counter(), 0.0
    async with container.generate(job) as outputs:
        async for output in outputs:
            if not first and isinstance(output, Piece):
                first = time.perf_counter() - began
    return first


async def ours(
    container: ModelContainer, streams: int, sampling: Sampling, turn: int
) -> tuple[float, float]:
    """Tokens per second of `streams` requests at once, and the median first text in seconds."""
    firsts: list[float] = []

    async def one(stream: int) -> None:
        firsts.append(await _first_text(container, asked(stream + 40 * turn, sampling)))

    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for stream in range(streams):
            tasks.start_soon(one, stream)
    return streams * TOKENS / (time.perf_counter() - began), median(firsts)


async def measured(container: ModelContainer) -> Rows:
    """All that is asked of our container."""
    rows: Rows = {}
    turn = 0
    for streams in STREAMS:
        row = rows.setdefault(str(streams), {})
        for way, sampling in (("ours", GREEDY), ("sampled", SAMPLED)):
            found = []
            for _ in range(ROUNDS):
                turn += 1
                found.append(await ours(container, streams, sampling, turn))
            row[way] = max(speed for speed, _ in found)
            row[f"{way} first ms"] = 1e3 * min(first for _, first in found)
    seconds = []
    for turn in range(2):
        job = asked(70 + turn, GREEDY, LONG, 1)
        seconds.append(await _first_text(container, job))
    rows["prompt"] = {"ours": LONG / min(seconds)}
    return rows


def llamacpp_loop(path: Path) -> Rows:
    """`llama_decode` for all sequences, and a C call for each token."""
    rows: Rows = {}
    for streams in STREAMS:
        spec = raw_loop.RawLoad(
            model=str(path),
            streams=streams,
            threads=1,
            seconds=1.0,
            warm_up=0.5,
            max_tokens=TOKENS,
            temperature=0.8,
        )
        rows[str(streams)] = {"loop": raw_loop.measure(spec).tokens_per_second}
        gc.collect()
    return rows


def exllama_loop(engine: str, path: Path) -> Rows:
    """The loop that the libraries' examples use, with its likeliest token and its own sampler."""
    library = import_module(f"backends.engines.{engine}.container").installed()
    module = import_module(f"backends.engines.{engine}.loading")
    files = catalog.recognise(path, engine)
    loaded = module.load(files, OPTIONS[engine], library, lambda _: True)
    rows: Rows = {}
    samplers = {"loop": lambda: module.theirs(GREEDY, library), "own": lambda: own(engine, library)}
    turn = 0
    for streams in STREAMS:
        row = rows.setdefault(str(streams), {})
        for way, sampler in samplers.items():
            speeds = []
            for _ in range(ROUNDS):
                turn += 1
                speeds.append(_enqueued(loaded, streams, sampler, turn))
            row[way] = max(speeds)
    rows["paged"] = {"loop": float(getattr(loaded, "paged", True))}
    loaded.free()
    return rows


def own(engine: str, library: Any) -> Any:
    """The engine's own sampler that means what `SAMPLED` means."""
    if engine == "exllamav2":
        return library.settings(
            token_repetition_penalty=1.1, temperature=0.8, min_p=0.05, top_k=0, top_p=1.0
        )
    steps = library.steps
    return steps.CustomSampler(
        [steps.SS_RepP(1.1), steps.SS_Temperature(0.8), steps.SS_MinP(0.05), steps.SS_Sample()]
    )


def _enqueued(loaded: Any, streams: int, sampler: Callable[[], Any], turn: int) -> float:
    generator, library = loaded.generator, loaded.library
    began = time.perf_counter()
    for stream in range(streams):
        prompt = asked(stream + 40 * turn + 20, GREEDY).prompt
        job = library.job(
            input_ids=torch.tensor([prompt]),
            max_new_tokens=TOKENS,
            stop_conditions=[],
            **{SAMPLER[loaded.name]: sampler()},
        )
        generator.enqueue(job)
    said = 0
    while generator.num_remaining_jobs():
        for result in generator.iterate():
            if result["stage"] == "streaming" and "token_ids" in result:
                said += result["token_ids"].shape[-1]
    return said / (time.perf_counter() - began)


def transformers_loop(path: Path) -> Rows:
    """Forward passes with a `DynamicCache`, all answers in step, always the likeliest token."""
    bare = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16).to(DEVICE).eval()
    rows: Rows = {}
    for streams in STREAMS:
        speeds = []
        for turn in range(ROUNDS):
            prompts = [asked(stream + 40 * turn, GREEDY).prompt for stream in range(streams)]
            ids, cache = torch.tensor(prompts, device=DEVICE), DynamicCache()
            began = time.perf_counter()
            with torch.inference_mode():
                for _ in range(TOKENS):
                    logits = bare(input_ids=ids, past_key_values=cache, use_cache=True).logits
                    ids = logits[:, -1:].argmax(-1)
                    ids.tolist()
            speeds.append(streams * TOKENS / (time.perf_counter() - began))
        rows[str(streams)] = {"loop": max(speeds)}
    return rows


def loop(engine: str, path: Path) -> Rows:
    """The engine's own."""
    if engine == "llamacpp":
        return llamacpp_loop(path)
    return transformers_loop(path) if engine == "transformers" else exllama_loop(engine, path)


async def container(engine: str, path: Path) -> Rows:
    """Ours."""
    load = catalog.BACKENDS[engine].container.load
    began = time.perf_counter()
    loaded = await load(catalog.recognise(path, engine), OPTIONS[engine], lambda _: None)
    seconds = time.perf_counter() - began
    try:
        rows = await measured(loaded)
    finally:
        await loaded.aclose()
    return rows | {"load": {"ours s": seconds}}


def compare(engine: str, path: Path) -> Rows:
    """Ours and the bare loop, in one table."""
    ways: tuple[Callable[[], Rows], ...] = (
        lambda: anyio.run(container, engine, path),
        lambda: loop(engine, path),
    )
    rows: Rows = {}
    for way in ways:
        for name, row in way().items():
            rows.setdefault(name, {}).update({key: round(value, 2) for key, value in row.items()})
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    """Measure what is asked for; what fails is told and the rest goes on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=[*OPTIONS], choices=[*OPTIONS])
    parser.add_argument(
        "--models",
        nargs="+",
        default=["smollm2", "billion"],
        choices=["smollm2", "billion", "bundled"],
    )
    parser.add_argument("--streams", nargs="+", type=int, default=STREAMS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    STREAMS[:] = given.streams
    figures: dict[str, Any] = {}
    for name in given.models:
        for engine in given.engines:
            try:
                figures[f"{name} {engine}"] = compare(engine, model(name, engine))
            except Exception as error:  # noqa: BLE001 - the other rows are worth having
                figures[f"{name} {engine}"] = {"failed": {"why": repr(error)[:400]}}
            sys.stdout.write(f"{name} {engine}: {json.dumps(figures[f'{name} {engine}'])}\n")
            sys.stdout.flush()
            if given.json:
                given.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
