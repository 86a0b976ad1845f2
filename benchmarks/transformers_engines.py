"""Three ways to run many answers on transformers, without HTTP: the figures that chose our own.

    python -m benchmarks.transformers_engines [--streams 1 4 16] [--steps 150]

- the engine of `backends.engines.transformers`, its sampling included; - the model's bare forward
with a `DynamicCache`, all answers in step and always the likeliest token: the limit; -
transformers' `ContinuousBatchingManager`, with per-request temperature and without callbacks.

All run in one process, one thread, in turns; times are CPU seconds of that process, so that what
the machine does meanwhile counts less.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.cache_utils import DynamicCache
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import bundled
from backends.contract import catalog
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.transformers.engine import TransformersEngine
from backends.engines.transformers.loading import load
from config.engines import TransformersOptions

PROMPT = 60  # tokens
NEVER_SAID = 767


def prompts(streams: int) -> list[list[int]]:
    """Random tokens: nobody shares a beginning."""
    dice = torch.Generator().manual_seed(streams)
    rows: list[list[int]] = torch.randint(10, 700, (streams, PROMPT), generator=dice).tolist()
    return rows


def engine(engine_: TransformersEngine, sampling: Sampling) -> Callable[[int, int], float]:
    """Tokens per CPU second of the engine's decoding steps."""

    def measure(streams: int, steps: int) -> float:
        for key, prompt in enumerate(prompts(streams)):
            engine_.admit(key, Generation(prompt=tuple(prompt), sampling=sampling))
        while len(engine_.step()) < streams:
            pass
        started = time.process_time()
        for _ in range(steps):
            engine_.step()
        spent = time.process_time() - started
        for key in range(streams):
            engine_.release(key)
        return streams * steps / spent

    return measure


def bare(model: torch.nn.Module) -> Callable[[int, int], float]:
    """Tokens per CPU second of nothing but forward passes."""

    def measure(streams: int, steps: int) -> float:
        cache = DynamicCache()
        with torch.inference_mode():
            ids = torch.tensor(prompts(streams))
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
            started = time.process_time()
            for _ in range(steps):
                newest = logits[:, -1:].argmax(-1)
                newest.tolist()
                logits = model(input_ids=newest, past_key_values=cache, use_cache=True).logits
        return streams * steps / (time.process_time() - started)

    return measure


def manager(model: torch.nn.Module) -> Callable[[int, int], float]:
    """Tokens per CPU second of continuous batching, from the first request to the last result."""

    def measure(streams: int, steps: int) -> float:
        wishes = GenerationConfig(
            do_sample=True,
            temperature=0.8,
            max_new_tokens=steps,
            eos_token_id=NEVER_SAID,
            pad_token_id=0,
        )
        sizes = ContinuousBatchingConfig(
            num_blocks=256, max_batch_tokens=1024, per_request_processors=True
        )
        batching = model.init_continuous_batching(
            generation_config=wishes, continuous_batching_config=sizes
        )
        batching.start()
        started = time.process_time()
        for prompt in prompts(streams):
            batching.add_request(prompt, max_new_tokens=steps, temperature=0.8)
        done = 0
        while done < streams:
            done += batching.get_result(timeout=1) is not None
        spent = time.process_time() - started
        batching.stop(block=True)
        return streams * steps / spent

    return measure


def main(argv: Sequence[str] | None = None) -> None:
    """Measure in turns, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(argv)
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    ours = TransformersEngine(load(files, TransformersOptions(device="cpu"), lambda _: True))
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(files.path, dtype=torch.float32).eval()
    paged = AutoModelForCausalLM.from_pretrained(files.path, dtype=torch.float32).eval()
    truncated = Sampling(temperature=0.8, top_p=0.95, top_k=40, ban_eos=True)
    ways = {
        "engine, likeliest token": engine(ours, Sampling(temperature=0, ban_eos=True)),
        "engine, temperature": engine(ours, Sampling(temperature=0.8, ban_eos=True)),
        "engine, temperature, top-k, top-p": engine(ours, truncated),
        "bare forward": bare(model),
        "ContinuousBatchingManager": manager(paged),
    }
    print(f"| way | {' | '.join(map(str, given.streams))} |\n|---|{'--:|' * len(given.streams)}")
    best = {name: [0.0] * len(given.streams) for name in ways}
    for _ in range(given.rounds):
        for place, streams in enumerate(given.streams):
            for name, way in ways.items():
                best[name][place] = max(best[name][place], way(streams, given.steps))
    for name, speeds in best.items():
        print(f"| {name} | {' | '.join(f'{speed:,.0f}' for speed in speeds)} |")


if __name__ == "__main__":
    main()
