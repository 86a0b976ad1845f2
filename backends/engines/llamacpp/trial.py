"""Tries a GGUF file in a child process, which may die, before this process loads it.

llama.cpp takes much of a file for granted, differently by architecture and version: what it
asserts, divides by or steps over ends the process. So a file that this machine has not loaded
before is loaded by a child first (`backends.engines.llamacpp.rehearsal`): mapped, on the CPU, with
few cells. A child that dies, or doesn't come to an end, is why the file is refused. An error that
the child gets is left to the load itself, which words it.

Files that survived are remembered in the user's cache folder. A failure is not: it may be of the
moment, as when memory ran out.

Which of two libraries is faster is tried by a child, too (`backends.engines.llamacpp.race`), since
one of them ends its process at a failed assertion.
"""

import asyncio
import hashlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import msgspec
import structlog

from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed, process_end
from backends.engines.llamacpp import speeds
from backends.engines.llamacpp.files import adapter_paths, draft, draft_options, fitted
from backends.engines.llamacpp.library import api
from config.engines import DraftOptions, LlamaCppOptions
from config.values import user_folder

log = structlog.get_logger(__name__)

CELLS = 256
CELLS_WITH_PICTURE = 1024  # an image encoder of one size makes up to 729 of its only picture
SECONDS, SLOWEST = 120, 50 << 20  # for any file; bytes that a disk reads in a second
KEPT = 1000  # files remembered; beyond that those that survived first are forgotten
REFUSED = 3  # the exit status of a child that got an error; Python's own are 1 and 2
PICTURE = "picture"  # the line a child prints before it loads the projector
CHILD, RACE = f"{__package__}.rehearsal", f"{__package__}.race"  # they import this module
RACING = 60.0  # seconds
# Of a child that was ended with all of the gateway's, by a terminal or a service manager.
STOPPED = (-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)


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
        remember(survived)


def _verdict(files: ModelFiles, options: LlamaCppOptions) -> Path:
    """The empty file that stands for "it survived", named after all that a trial depends on."""
    library = Path(api._lib._name).resolve()  # noqa: SLF001 - compiled anew, it has the same version
    paths = (library, *files.parts, *([files.projector] if files.projector else ()))
    paths += tuple(path for path in adapter_paths(options) if path.is_file())
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    facts = (stats, reduced(options, CELLS))
    digest = hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()
    return user_folder() / "tried" / digest[:32]


def remember(path: Path, text: str = "") -> None:
    """Write a file of the user's cache folder, where the oldest beside it go."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        by_age = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in by_age[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        log.warning("what was tried will be tried again", path=str(path), reason=str(error))


async def _survives(files: ModelFiles, options: LlamaCppOptions, seconds: float) -> bool:
    """Whether the child came to its end; False: an error kept it from trying everything. Raises
    LoadFailed where it died.
    """
    try:
        status, printed, errors = await in_child(CHILD, files, options, seconds)
    except TimeoutError:
        raise LoadFailed(_refusal(files, "timed out")) from None
    if status not in (0, REFUSED):
        at_picture = PICTURE.encode() in printed.split()
        raise LoadFailed(_refusal(files, process_end(status, errors), at_picture=at_picture))
    return status == 0


async def race(files: ModelFiles, options: LlamaCppOptions) -> None:
    """Remember for the next load which library is faster. One that ends its process isn't. Where
    there is no time or no memory nothing is learned, and no other load waits for it.
    """
    log.info("measuring which library is faster", model=files.path.name)
    try:
        status, printed, _ = await in_child(RACE, files, options, RACING)
    except OSError:  # no time, or no process
        status, printed = -signal.SIGKILL, b""
    if status not in (REFUSED, *STOPPED):
        ended = "" if status == -signal.SIGKILL else "0"
        remember(speeds.noted(files, options), ended if status else printed.decode())


async def in_child(
    module: str, files: ModelFiles, options: LlamaCppOptions, seconds: float
) -> tuple[int, bytes, bytes]:
    """The exit status of a module's process, and what it printed and wrote to stderr. Raises
    TimeoutError.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, str(files.path), msgspec.json.encode(options)),
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
            return await child.wait(), printed, errors
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def _refusal(files: ModelFiles, end: str, *, at_picture: bool = False) -> str:
    if at_picture and files.projector is not None:
        return (
            f"the projector {files.projector.name} can't be loaded: a process that tried it {end}; "
            "`vision: false` loads the model for text"
        )
    return f"{files.path.name} can't be loaded: a process that tried it {end}"


def reduced(options: LlamaCppOptions, cells: int) -> LlamaCppOptions:
    """The options, reduced to what takes no memory of a card and little else."""
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
        ik=msgspec.structs.replace(options.ik, rtr=False, override_tensor=()),
        mlock=False,
        vision=cells > CELLS,
        draft=DraftOptions(),
        trial="never",
    )
