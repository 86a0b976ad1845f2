"""Measures in a child process, which may die of it, how much faster one library answers than the
other with a model.

Both have it in memory and take turns, so that what else the machine does hurts both; of each the
fastest turn counts. Prompts and answers are short; compared is the time that a chat's would take.
"""

import sys
import time
from contextlib import closing

import msgspec

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.engine import Token
from backends.engines.llamacpp import ik, loading
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.engines.llamacpp.rehearsal import main
from config.engines import LlamaCppOptions, SpeculationOptions

CHAT_PROMPT, CHAT_ANSWER = 256, 128  # tokens
PROMPT, STEPS = 32, 12
STREAMS, CELLS = 4, 256
LONG, MOST = 2.0, 10  # seconds, turns


async def _compare(files: ModelFiles, options: LlamaCppOptions) -> None:
    """Prints llama.cpp's seconds over ik_llama.cpp's. Raises BackendError."""
    options = msgspec.structs.replace(
        options,
        context_length=CELLS,
        cache_tokens=None,
        max_concurrent=min(options.max_concurrent, STREAMS),
        speculation=SpeculationOptions(mode="off"),
        mlock=False,
    )
    theirs = msgspec.structs.replace(options, library="llama.cpp")
    ours = msgspec.structs.replace(options, library="ik")
    with (
        closing(LlamaCppEngine(loading.load(files, theirs, lambda _: True))) as one,
        closing(LlamaCppEngine(ik.load(files, ours, lambda _: True))) as other,
    ):
        end, turns = time.monotonic() + LONG, list[tuple[float, float]]()
        while len(turns) < 2 or (time.monotonic() < end and len(turns) < MOST):
            turns.append((_chat(one, len(turns)), _chat(other, len(turns))))
    print(min(first for first, _ in turns) / min(second for _, second in turns))  # noqa: T201 - the result


def _chat(engine: LlamaCppEngine, number: int) -> float:
    """Seconds of a chat for each request that runs at once."""
    engine.recover()
    size, running = engine.info.vocab_size, engine.info.max_concurrent
    began = time.perf_counter()
    for key in range(running):
        tokens = tuple((7 * number + 31 * key + place * 101) % size for place in range(PROMPT))
        job = Generation(prompt=tokens, sampling=Sampling(temperature=0), min_tokens=2 * STEPS)
        engine.admit(key, job)
    drawn = 0
    while drawn < running:
        drawn += _drawn(engine)
    read = time.perf_counter() - began
    drawn, began = 0, time.perf_counter()
    while drawn < running * STEPS:
        drawn += _drawn(engine)
    return read * CHAT_PROMPT / PROMPT + (time.perf_counter() - began) * CHAT_ANSWER / STEPS


def _drawn(engine: LlamaCppEngine) -> int:
    return sum(isinstance(one, Token) for one in engine.step())


if __name__ == "__main__":
    sys.exit(main(_compare, *sys.argv[1:]))
