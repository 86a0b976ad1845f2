"""What samplers cost: tokens per CPU second of an engine's steps, by what a request asks for.

    python -m benchmarks.samplers [--streams 16] [--steps 200] [--rounds 5]

On the bundled model, without HTTP, in one process and one thread; the cases take turns, and of each
the best round counts, so that what the machine does meanwhile counts less. SillyTavern's default
body must cost at most a tenth of the greedy speed at 16 streams.
"""

import argparse
import time
from collections.abc import Callable, Mapping

import msgspec
import torch

import bundled
from backends.contract import catalog
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.engine import Engine
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.engines.llamacpp.loading import load as load_gguf
from backends.engines.transformers.engine import TransformersEngine
from backends.engines.transformers.loading import load as load_folder
from config.engines import LlamaCppOptions, TransformersOptions
from gateway.dialects.fields import read_fields
from gateway.dialects.parameters import read_sampling

PROMPT = 40  # tokens
# The samplers of the body that SillyTavern 1.19 sends to TabbyAPI by default.
SILLYTAVERN = {
    "temperature": 1,
    "top_p": 0.95,
    "typical_p": 1,
    "min_p": 0.01,
    "rep_pen": 1.1,
    "top_k": 0,
    "skew": 0,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "top_a": 0,
    "tfs": 1,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "mirostat_mode": 0,
    "xtc_probability": 0,
    "adaptive_target": -0.01,
    "adaptive_decay": 0.9,
    "temperature_last": True,
}
CASES: Mapping[str, Sampling] = {
    "greedy": Sampling(temperature=0),
    "temperature": Sampling(temperature=0.8),
    "temperature, seeded": Sampling(temperature=0.8, seed=1),
    "top_p, min_p": Sampling(top_p=0.9, min_p=0.05),
    "top_p, min_p, seeded": Sampling(top_p=0.9, min_p=0.05, seed=1),
    "SillyTavern": read_sampling(read_fields(msgspec.json.encode(SILLYTAVERN))).over(Sampling()),
    "SillyTavern, seeded": read_sampling(
        read_fields(msgspec.json.encode({**SILLYTAVERN, "seed": 1}))
    ).over(Sampling()),
    "DRY, XTC": Sampling(dry_multiplier=0.8, xtc_probability=0.5, min_p=0.02),
    "smoothing, tfs, top_a": Sampling(smoothing_factor=0.2, tfs=0.95, top_a=0.1),
    "skew": Sampling(skew=0.5, min_p=0.02),
    "mirostat": Sampling(mirostat_mode=2),
    "adaptive-p": Sampling(adaptive_target=0.4, min_p=0.02),
}


def llamacpp(streams: int) -> Engine:
    """llama.cpp with one thread and room for so many streams."""
    files = catalog.recognise(bundled.GGUF, "llamacpp")
    options = LlamaCppOptions(max_concurrent=streams, context_length=1024, threads=1, gpu_layers=0)
    return LlamaCppEngine(load_gguf(files, options, lambda _: True))


def transformers(streams: int) -> Engine:
    """transformers, likewise."""
    torch.set_num_threads(1)
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    options = TransformersOptions(device="cpu", max_concurrent=streams, context_length=1024)
    return TransformersEngine(load_folder(files, options, lambda _: True))


def speed(engine: Engine, sampling: Sampling, streams: int, steps: int) -> float:
    """Tokens per CPU second of decoding."""
    dice = torch.Generator().manual_seed(streams)
    prompts = torch.randint(10, 700, (streams, PROMPT), generator=dice).tolist()
    for key, prompt in enumerate(prompts):
        engine.admit(key, Generation(prompt=tuple(prompt), sampling=sampling))
    while len(engine.step()) < streams:
        pass
    started = time.process_time()
    for _ in range(steps):
        engine.step()
    spent = time.process_time() - started
    for key in range(streams):
        engine.release(key)
    return streams * steps / spent


def compare(load: Callable[[int], Engine], streams: int, steps: int, rounds: int) -> None:
    """Print the speed of each case."""
    engine = load(streams)
    best = dict.fromkeys(CASES, 0.0)
    for _ in range(rounds):
        for name, sampling in CASES.items():
            best[name] = max(best[name], speed(engine, sampling, streams, steps))
    engine.close()
    for name, found in best.items():
        print(f"  {name:24} {found:10,.0f} tokens/s {found / best['greedy']:7.1%} of greedy")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for load in (llamacpp, transformers):
        print(f"{load.__name__}, {asked.streams} streams")
        compare(load, asked.streams, asked.steps, asked.rounds)


if __name__ == "__main__":
    main()
