"""A process of its own that uses a model as far as it goes, and prints as JSON the bytes that were
estimated and those that it grew by. Its arguments are the backend and the model, by its name or
its path.
"""

import ctypes
import gc
import os
import random
import sys
import tempfile
from pathlib import Path

import anyio
import msgspec

import bundled
from backends.contract import catalog
from backends.contract.protocol import Generation, ModelContainer
from backends.contract.samplers import Sampling
from backends.machine.process_settings import prepare_process
from config.engines import EngineOptions, LlamaCppOptions, TransformersOptions
from tests.backends import random_folder, random_gguf
from tests.backends.container_contract import run

SPARE = 64  # tokens left for the answer: the last prompt is read while the first still answers
GREEDY = Sampling(temperature=0.0)
OF_REAL = {"context_length": 1_024, "max_concurrent": 2}  # else filling them takes an hour


class Taken(msgspec.Struct, frozen=True):
    """Of one model, in bytes. What a process grew by in the end; at its largest; and without what a
    file is behind, which the system takes back when it needs it.
    """

    estimate: int
    resident: int
    peak: int
    anonymous: int


def found(backend: str, name: str, folder: Path) -> Path:
    """The model called `name`, written into `folder` unless it is there already."""
    if Path(name).is_absolute():
        return Path(name)
    if backend == "llamacpp":
        if name == "bundled":
            return bundled.GGUF
        return random_gguf.write(folder / f"{name}.gguf", random_gguf.MODELS[name])
    if name == "bundled":
        return bundled.SAFETENSORS
    return random_folder.write(folder / name, random_folder.MODELS[name])


async def use(container: ModelContainer) -> None:
    """Fill the context of as many requests as are computed together; llama.cpp takes all cells
    when it is loaded, so that one will do. It computes with flash attention: without, the buffer
    of scores is for passes of full width, and a paced prompt touches a part of it.
    """
    at_once = container.info.backend == "llamacpp"
    length = container.info.context_length - SPARE
    rng = random.Random(0)

    async def one() -> None:
        prompt = tuple(rng.randrange(10, 700) for _ in range(length))
        job = Generation(prompt=prompt, sampling=GREEDY, max_tokens=SPARE, marks=(length - 8,))
        await run(container, job)

    async with anyio.create_task_group() as tasks:
        for _ in range(1 if at_once else container.info.max_concurrent):
            tasks.start_soon(one)


def resident(name: str = "VmRSS") -> int:
    """Bytes; `VmHWM`: the most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def forget_peak() -> None:
    """Linux' proc(5), clear_refs."""
    Path("/proc/self/clear_refs").write_text("5")


async def take(backend: str, path: Path, options: EngineOptions) -> Taken:
    engine, files = catalog.BACKENDS[backend], catalog.recognise(path, backend)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before would be used again
    before, anonymous = resident(), resident("RssAnon")
    forget_peak()
    container = await engine.container.load(files, options, lambda _: None)
    ctypes.CDLL(None).malloc_trim(0)  # as the registry does after a load
    await use(container)
    taken = Taken(
        estimate=engine.files.estimate(files, options).total,
        resident=resident() - before,
        peak=resident("VmHWM") - before,
        anonymous=resident("RssAnon") - anonymous,
    )
    await container.aclose()
    return taken


async def main(backend: str, name: str) -> None:
    prepare_process(os.environ)  # as a worker's: the more heaps, the more is left in them
    llama = backend == "llamacpp"
    options = LlamaCppOptions(flash_attention="on") if llama else TransformersOptions()
    with tempfile.TemporaryDirectory() as folder:
        path = found(backend, name, Path(folder))
        if Path(name).is_absolute():
            options = msgspec.structs.replace(options, **OF_REAL)
        # Brings the library itself, and leaves as little as can be that would be used again.
        warm = msgspec.structs.replace(options, context_length=256, max_concurrent=1)
        await take(backend, found(backend, "bundled", Path(folder)), warm)
        sys.stdout.buffer.write(msgspec.json.encode(await take(backend, path, options)))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
