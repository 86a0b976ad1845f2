"""One file of the hub, by HTTP: goes on where an earlier try stopped, counts when it is whole.

The bytes come through httpx and not through huggingface_hub, whose downloads run in a thread that
can't be stopped: a client that leaves must stop a download at once.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import httpx
from anyio import to_thread

from gateway.errors import ModelUnavailable
from gateway.hub.repository import RemoteFile

CHUNK = 1 << 20  # bytes between two reports
UNANNOUNCED = 1 << 30  # bytes of a file that is sent without a length


async def fetch(
    client: httpx.AsyncClient,
    file: RemoteFile,
    path: Path,
    headers: Mapping[str, str],
    report: Callable[[int], None],
) -> None:
    """Bring `file` to `path`, over `path.part`; `report` is called with its bytes on disk.

    Raises ModelUnavailable where the hub fails, or sends something else than it promised. What has
    come so far stays, unless it is wrong.
    """
    if await anyio.Path(path).exists():
        report(file.size)
        return
    part = path.with_name(f"{path.name}.part")
    await anyio.Path(part.parent).mkdir(parents=True, exist_ok=True)
    try:
        await _stream(client, file, part, headers, report)
    except httpx.HTTPStatusError as error:
        text = f"{error.request.url.host} answered {error.response.status_code} for {file.name}"
        raise ModelUnavailable(text) from error
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__  # timeouts have no text
        raise ModelUnavailable(f"{file.name} could not be downloaded: {reason}") from error
    await to_thread.run_sync(_check, file, part)
    await anyio.Path(part).rename(path)


async def _stream(
    client: httpx.AsyncClient,
    file: RemoteFile,
    part: Path,
    headers: Mapping[str, str],
    report: Callable[[int], None],
) -> None:
    had = await to_thread.run_sync(_size, part)
    if had and had == file.size:
        return
    if file.size and had > file.size:
        had = 0
    # Compressed answers have no ranges, and their length isn't the file's.
    asked = {**headers, "accept-encoding": "identity"}
    if had:
        asked["range"] = f"bytes={had}-"
    async with client.stream("GET", file.url, headers=asked) as response:
        response.raise_for_status()
        goes_on = response.status_code == httpx.codes.PARTIAL_CONTENT
        done = had if goes_on else 0
        most = file.size or done + _announced(response)
        async with await anyio.open_file(part, "ab" if goes_on else "wb") as disk:
            async for chunk in response.aiter_bytes(CHUNK):
                await disk.write(chunk[: most + 1 - done])  # one too many says that there are more
                done += len(chunk)
                report(min(done, most))
                if done > most:
                    return


def _announced(response: httpx.Response) -> int:
    """Bytes of an answer, for a file whose size the hub doesn't list."""
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() else UNANNOUNCED


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _check(file: RemoteFile, part: Path) -> None:
    """Raises ModelUnavailable for a file that isn't what the hub promised; it is thrown away."""
    wrong = ""
    if file.size and part.stat().st_size > file.size:
        wrong = f"has more than the {file.size} bytes that the hub lists"
    elif file.size and part.stat().st_size != file.size:
        wrong = f"has {part.stat().st_size} bytes instead of {file.size}"
    elif file.sha256 is not None:
        with part.open("rb") as disk:
            if hashlib.file_digest(disk, "sha256").hexdigest() != file.sha256:
                wrong = "has another checksum than the hub says"
    if not wrong:
        return
    if not file.size or part.stat().st_size >= file.size:
        part.unlink()  # more of the same would not make it right
    raise ModelUnavailable(f"{file.name} {wrong}; try again")
