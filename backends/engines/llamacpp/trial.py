"""Tries a GGUF file in a child process, which may die, before this process loads it.

llama.cpp takes much of a file for granted, differently by architecture and version: what it
asserts, divides by or steps over ends the process. So a file that this machine has not loaded
before is loaded by a child first: mapped, on the CPU, with few cells. The child tokenizes every
byte, reads and writes a little for two requests at once, and sees a picture if there is a
projector. A child that dies, or doesn't come to an end, is why the file is refused. An error that
the child gets is left to the load itself, which words it.

Files that survived are remembered in the user's cache folder. A failure is not: it may be of the
moment, as when memory ran out.
"""

import asyncio
import hashlib
import os
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog

from backends.contract.catalog import ModelFiles
from backends.contract.encoder import EncoderContainer
from backends.contract.errors import BackendError, LoadFailed, process_end
from backends.contract.protocol import Generation, Image, ModelContainer
from backends.contract.samplers import Sampling
from backends.engines.llamacpp.files import adapter_paths, draft, draft_options, fitted, recognise
from backends.engines.llamacpp.library import api
from backends.engines.tokenizing import EVERY_BYTE, try_vocabulary
from config.engines import DraftOptions, LlamaCppOptions
from config.values import user_folder

log = structlog.get_logger(__name__)

CELLS = 256
CELLS_WITH_PICTURE = 1024  # an image encoder of one size makes up to 729 of its only picture
SECONDS, SLOWEST = 120, 50 << 20  # for any file; bytes that a disk reads in a second
KEPT = 1000  # files remembered; beyond that those that survived first are forgotten
REFUSED = 3  # the exit status of a child that got an error; Python's own are 1 and 2
PICTURE = "picture"  # the line a child prints before it loads the projector
FEW = 9  # tokens of a prompt: more than one pass of one token, and little for a CPU


async def check(files: ModelFiles, options: LlamaCppOptions, seconds: float = SECONDS) -> None:
    """Raises LoadFailed for a file that ends the process that tries it, or keeps it longer than
    `seconds` and the time to read the file.
    """
    if files.task == "generate" and (drafting := draft(files, options)) is not None:
        await check(drafting, draft_options(drafting, options), seconds)
    files = fitted(files, options)
    survived = _verdict(files, options)
    may_die = options.host == "worker"  # where it is loaded, as well as a child
    if options.trial == "never" or (options.trial == "auto" and (may_die or survived.exists())):
        return
    if await _survives(files, options, seconds + files.size_bytes / SLOWEST):
        _remember(survived)


def _verdict(files: ModelFiles, options: LlamaCppOptions) -> Path:
    """The empty file that stands for "it survived", named after all that a trial depends on."""
    library = Path(api._lib._name).resolve()  # noqa: SLF001 - compiled anew, it has the same version
    paths = (library, *files.parts, *([files.projector] if files.projector else ()))
    paths += tuple(path for path in adapter_paths(options) if path.is_file())
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    facts = (stats, _reduced(options, CELLS))
    digest = hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()
    return user_folder() / "tried" / digest[:32]


def _remember(survived: Path) -> None:
    try:
        survived.parent.mkdir(parents=True, exist_ok=True)
        survived.touch()
        by_age = sorted(survived.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-KEPT]:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("a file will be tried again at its next load", reason=str(error))


async def _survives(files: ModelFiles, options: LlamaCppOptions, seconds: float) -> bool:
    """Whether the child came to its end; False: an error kept it from trying everything. Raises
    LoadFailed where it died.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(files.path), msgspec.json.encode(options)),
        stdin=PIPE,  # open as long as this process lives
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GGML_NO_BACKTRACE": "1"},
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        async with asyncio.timeout(seconds):
            printed, errors = await asyncio.gather(child.stdout.read(), child.stderr.read())
            status = await child.wait()
    except TimeoutError:
        raise LoadFailed(_refusal(files, "timed out")) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if status not in (0, REFUSED):
        at_picture = PICTURE.encode() in printed.split()
        raise LoadFailed(_refusal(files, process_end(status, errors), at_picture=at_picture))
    return status == 0


def _refusal(files: ModelFiles, end: str, *, at_picture: bool = False) -> str:
    if at_picture and files.projector is not None:
        return (
            f"the projector {files.projector.name} can't be loaded: a process that tried it {end}; "
            "`vision: false` loads the model for text"
        )
    return f"{files.path.name} can't be loaded: a process that tried it {end}"


def _reduced(options: LlamaCppOptions, cells: int) -> LlamaCppOptions:
    """To what takes no memory of a card, and little else."""
    return msgspec.structs.replace(
        options,
        context_length=cells,
        cache_tokens=None,
        max_concurrent=2,
        ttl=None,
        host=None,
        gpu_layers=0,
        cpu_experts="auto",
        context_floor=cells,
        cache_floor=None,
        main_gpu=None,
        tensor_split=(),
        threads="auto",
        threads_batch=None,
        batch_size=cells,
        micro_batch_size=cells,
        mmap=True,
        mlock=False,
        vision=cells > CELLS,
        draft=DraftOptions(),
        trial="never",
    )


async def _rehearse(files: ModelFiles, options: LlamaCppOptions) -> None:
    """Raises BackendError."""
    from backends.engines.llamacpp import container  # noqa: PLC0415 - it imports this module

    # As it lies in the file: the CPU's own layout would cost a copy of all weights.
    files = msgspec.structs.replace(files, repacked=False)
    small = _reduced(options, CELLS)
    if fitted(files, small).task != "generate":
        await _encode(await container.load_encoder(files, small, _ignore))
        return
    await _use(await container.load(files, small, _ignore), _write)
    if fitted(files, options).projector is not None:
        print(PICTURE, flush=True)  # noqa: T201 - read by `_survives`
        await _use(
            await container.load(files, _reduced(options, CELLS_WITH_PICTURE), _ignore), _see
        )


def _ignore(_: object) -> None:
    """A report of progress."""


async def _use(model: ModelContainer, use: Callable[[ModelContainer], Awaitable[None]]) -> None:
    try:
        await use(model)
    finally:
        await model.aclose()


async def _encode(model: EncoderContainer) -> None:
    most = min(CELLS, model.info.context_length)
    inputs = [model.read(text, most) for text in (EVERY_BYTE, "a", "")]
    if model.info.task == "rank":
        inputs.append(model.read_pair("a", "b", most))
    await model.encode(inputs)
    await model.aclose()


async def _write(model: ModelContainer) -> None:
    """Two requests at once, one greedy and one not; and all of the vocabulary as text."""
    prompt = try_vocabulary(model)[-FEW:] or (0,)
    await asyncio.gather(*(_answer(model, prompt, temperature) for temperature in (0.0, 1.0)))


async def _see(model: ModelContainer) -> None:
    prompt = model.tokenize(f"a{model.info.image_marker}b", special=True)
    await _answer(model, prompt, 0.0, Image(32, 48, bytes(range(256)) * 18))


async def _answer(
    model: ModelContainer, prompt: tuple[int, ...], temperature: float, *images: Image
) -> None:
    sampling = Sampling(temperature=temperature)
    job = Generation(prompt=prompt, sampling=sampling, max_tokens=2, images=images)
    async with model.generate(job) as outputs:
        async for _ in outputs:
            pass


def main(path: str, options: str) -> int:
    """Of the child: 0, or `REFUSED`, or it doesn't return."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        files = recognise(Path(path))
        assert files is not None
        asyncio.run(_rehearse(files, msgspec.json.decode(options, type=LlamaCppOptions)))
    except BackendError:
        return REFUSED
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(REFUSED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
