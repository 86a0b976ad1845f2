"""Loads a GGUF file with few cells and uses it a little, in a child process that may die of it: see
`backends.engines.llamacpp.trial`. It tokenizes every byte, reads and writes a little for two
requests at once, and sees a picture if there is a projector.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import TypeAlias

import msgspec

from backends.contract.catalog import ModelFiles
from backends.contract.encoder import EncoderContainer
from backends.contract.errors import BackendError
from backends.contract.protocol import Generation, Image, ModelContainer, Pixels
from backends.contract.samplers import Sampling
from backends.engines.llamacpp import container
from backends.engines.llamacpp.files import fitted
from backends.engines.llamacpp.recognition import recognise
from backends.engines.llamacpp.trial import CELLS, CELLS_WITH_PICTURE, PICTURE, REFUSED, reduced
from backends.engines.tokenizing import EVERY_BYTE, try_vocabulary
from config.engines import LlamaCppOptions

FEW = 9  # tokens of a prompt: more than one pass of one token, and little for a CPU


async def _rehearse(files: ModelFiles, options: LlamaCppOptions) -> None:
    """Raises BackendError."""
    # As it lies in the file: the CPU's own layout would cost a copy of all weights.
    files = msgspec.structs.replace(files, repacked=False)
    small = reduced(options, CELLS)
    if fitted(files, small).task != "generate":
        async with aclosing(await container.load_encoder(files, small, _ignore)) as encoder:
            await _encode(encoder)
        return
    async with aclosing(await container.load(files, small, _ignore)) as model:
        await _write(model)
    if fitted(files, options).projector is not None:
        print(PICTURE, flush=True)  # noqa: T201 - read by `trial`
        small = reduced(options, CELLS_WITH_PICTURE)
        async with aclosing(await container.load(files, small, _ignore)) as model:
            await _see(model)


def _ignore(_: object) -> None:
    """A report of progress."""


async def _encode(model: EncoderContainer) -> None:
    most = min(CELLS, model.info.context_length)
    inputs = [model.read(text, most) for text in (EVERY_BYTE, "a", "")]
    if model.info.task == "rank":
        inputs.append(model.read_pair("a", "b", most))
    await model.encode(inputs)


async def _write(model: ModelContainer) -> None:
    """Two requests at once, one greedy and one not; and all of the vocabulary as text."""
    prompt = try_vocabulary(model)[-FEW:] or (0,)
    await asyncio.gather(*(_answer(model, prompt, temperature) for temperature in (0.0, 1.0)))


async def _see(model: ModelContainer) -> None:
    prompt = model.tokenize(f"a{model.info.image_marker}b", special=True)
    await _answer(model, prompt, 0.0, Image(32, 48, Pixels(bytes(range(256)) * 18)))


async def _answer(
    model: ModelContainer, prompt: tuple[int, ...], temperature: float, *images: Image
) -> None:
    sampling = Sampling(temperature=temperature)
    job = Generation(prompt=prompt, sampling=sampling, max_tokens=2, images=images)
    async with model.generate(job) as outputs:
        async for _ in outputs:
            pass


Use: TypeAlias = Callable[[ModelFiles, LlamaCppOptions], Coroutine[None, None, None]]


def main(use: Use, path: str, options: str) -> int:
    """Of the child: 0, or `REFUSED`, or it doesn't return."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        files = recognise(Path(path))
        assert files is not None
        asyncio.run(use(files, msgspec.json.decode(options, type=LlamaCppOptions)))
    except BackendError:
        return REFUSED
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(REFUSED)


if __name__ == "__main__":
    sys.exit(main(_rehearse, *sys.argv[1:]))
