"""Tries a file in a process of its own, which may end, before this one loads it.

Of an architecture that `architectures.TRIED` lacks nobody has searched for what its graph takes for
granted. So another process loads such a file, on the CPU and with few cells, and reads a few tokens
with it, all at once and one by one. What it reports as an error is left to the load itself.
"""

import asyncio
import os
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import msgspec
from llama_cpp import llama_cpp as api

from backends.catalog import ModelFiles
from backends.errors import BackendError, LoadFailed
from backends.llamacpp import encoder, loading
from backends.llamacpp.architectures import TRIED
from backends.llamacpp.files import recognise
from config.engines import LlamaCppOptions

CELLS, TOKENS = 256, 9
SECONDS, SLOWEST = 120, 50 << 20  # for any file; bytes that a disk reads in a second
REFUSED = 3  # the exit status of a child that got an error; Python's own are 1 and 2


async def check(files: ModelFiles, options: LlamaCppOptions, seconds: float = SECONDS) -> None:
    """Raises LoadFailed for a file that ended the process which tried it, or kept it longer than
    `seconds` and the time to read it.
    """
    if files.architecture in TRIED:
        return
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(files.path)),
        msgspec.json.encode(_reduced(options)),
        stdin=PIPE,  # open as long as this process lives
        stdout=DEVNULL,
        stderr=PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GGML_NO_BACKTRACE": "1"},
    )
    assert child.stderr is not None
    try:
        async with asyncio.timeout(seconds + files.size_bytes / SLOWEST):
            said = await child.stderr.read()
            status = await child.wait()
    except TimeoutError:
        reason = "was not done in time"
    else:
        if status in (0, REFUSED):
            return
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        reason = f"ended with status {status} ({last.rpartition('/')[2][:200]})"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    raise LoadFailed(f"{files.path.name} can't be loaded: a process that tried it {reason}")


def _reduced(options: LlamaCppOptions) -> LlamaCppOptions:
    """To what takes no memory of a card, and little else."""
    return msgspec.structs.replace(
        options,
        context_length=CELLS,
        cache_tokens=None,
        max_concurrent=min(options.max_concurrent, 2),
        gpu_layers=0,
        mlock=False,
        vision=False,
    )


def _compute(path: Path, options: LlamaCppOptions) -> None:
    """Raises BackendError."""
    files = recognise(path)
    assert files is not None
    load = loading.load if files.task == "generate" else encoder.load
    context = load(files, options, lambda _: True).context
    for count in (TOKENS, 1):
        tokens = (api.llama_token * count)()  # the first of the vocabulary
        api.llama_decode(context, api.llama_batch_get_one(tokens, count))


def main(path: str, options: str) -> int:
    """Of the child."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _compute(Path(path), msgspec.json.decode(options, type=LlamaCppOptions))
    except BackendError:
        return REFUSED
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(REFUSED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
