"""Background downloads, which no request owns: with progress, stopped, and resumed; and the
download of one file over HTTP.

`Downloads` knows no hub: what fetches a model is handed in, and is cancelled to stop it.
"""

import hashlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import httpx
import msgspec
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from gateway.hub.repository import DownloadProgress, RemoteFile
from gateway.terms.errors import GatewayError, ModelUnavailable, NotFound, QueueFull
from gateway.terms.tasks import companions

MOST = 64  # listed
MOST_RUNNING = 8
WINDOW = 5.0  # seconds over which the speed is taken
RETRY = 30.0  # seconds after which one more may be tried

Report: TypeAlias = Callable[[DownloadProgress], None]
Fetch: TypeAlias = Callable[[Report], Awaitable[str]]  # gives the path where the model lies then

log = structlog.get_logger(__name__)


class DownloadState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a download. Sizes are in bytes, `began_at` is Unix time."""

    id: str
    model: str
    state: Literal["running", "stopped", "failed", "finished"]
    file: str = ""
    done: int = 0
    total: int = 0
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    why_failed: str | None = None
    began_at: float
    path: str | None = None


class _Download:
    """One of them; `scope` while it runs."""

    def __init__(self, state: DownloadState, fetch: Fetch) -> None:
        self.state = state
        self.fetch = fetch
        self.scope: anyio.CancelScope | None = None
        self.one_runs = anyio.Lock()  # what was stopped may still be on its way out
        self._samples: deque[tuple[float, int]] = deque(maxlen=256)

    def begin(self) -> None:
        self._samples.clear()
        self.change(state="running", why_failed=None, began_at=time.time())

    def report(self, step: DownloadProgress) -> None:
        now = time.monotonic()
        while len(self._samples) > 1 and now - self._samples[1][0] >= WINDOW:
            self._samples.popleft()
        self._samples.append((now, step.done))
        then, before = self._samples[0]
        speed = (step.done - before) / (now - then) if now > then else None
        left = (step.total - step.done) / speed if speed else None
        self.change(
            file=step.file,
            done=step.done,
            total=step.total,
            bytes_per_second=speed,
            seconds_left=left,
        )

    def end(self, **ending: str | None) -> None:
        self.scope = None
        over = {"why_failed": None, "path": None, "bytes_per_second": None, "seconds_left": None}
        self.change(**over | ending)

    def change(self, **changes: str | float | None) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


class Downloads:
    """All of one server's; they stop with its context."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._all: dict[str, _Download] = {}
        self._taken: dict[str, DownloadState] = {}
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Downloads may begin in this context."""
        async with companions() as tasks:
            self._tasks = tasks
            yield

    def states(self) -> Sequence[DownloadState]:
        """All of them, the newest first."""
        return [download.state for download in reversed(self._all.values())]

    def take_moved(self) -> tuple[Sequence[DownloadState], Sequence[str]]:
        """What has changed since the last call: states, and ids of those that are not listed any
        more.
        """
        now = {name: download.state for name, download in self._all.items()}
        moved = [state for name, state in now.items() if self._taken.get(name) is not state]
        gone = [name for name in self._taken if name not in now]
        self._taken = now
        return moved, gone

    def begin(self, model: str, fetch: Fetch) -> DownloadState:
        """Fetch `model`; one that runs already is returned, one that was stopped goes on. Raises
        QueueFull.
        """
        known = next(
            (download for download in self._all.values() if download.state.model == model), None
        )
        if known is not None and known.state.state == "finished":
            del self._all[known.state.id]  # its files may be gone
            known = None
        if known is None:
            number = str(next(self._numbers))
            state = DownloadState(id=number, model=model, state="stopped", began_at=time.time())
            known = _Download(state, fetch)
        return self._run(known)

    def resume(self, id: str) -> DownloadState:
        """Go on. Raises NotFound, QueueFull."""
        return self._run(self._found(id))

    def stop(self, id: str) -> DownloadState:
        """What has come stays. Raises NotFound."""
        download = self._found(id)
        if download.scope is not None:
            download.scope.cancel()
            download.end(state="stopped")
        return download.state

    def remove(self, id: str) -> None:
        """Take it out of the list; one that runs is stopped. Raises NotFound."""
        self.stop(id)
        del self._all[id]

    def _found(self, id: str) -> _Download:
        if id not in self._all:
            raise NotFound(f"Download {id!r:.40} not found.", param="id")
        return self._all[id]

    def _run(self, download: _Download) -> DownloadState:
        if download.scope is not None or download.state.state == "finished":
            return download.state
        if sum(other.scope is not None for other in self._all.values()) >= MOST_RUNNING:
            text = f"{MOST_RUNNING} downloads are already running"
            raise QueueFull(text, retry_after=RETRY)
        assert self._tasks is not None, "the server runs"
        download.scope = anyio.CancelScope()
        download.begin()
        self._all[download.state.id] = download
        over = [name for name, one in self._all.items() if one.scope is None]
        for name in over[: max(0, len(self._all) - MOST)]:  # the oldest that don't run
            del self._all[name]
        self._tasks.start_soon(self._carry_out, download, download.scope)
        return download.state

    async def _carry_out(self, download: _Download, scope: anyio.CancelScope) -> None:
        def is_current() -> bool:
            """Whether it was neither stopped nor begun anew meanwhile."""
            return download.scope is scope

        def report(step: DownloadProgress) -> None:
            if is_current():
                download.report(step)

        with scope:
            end = await self._ending(download, report)
            if is_current():
                download.end(**end)

    async def _ending(self, download: _Download, report: Report) -> Mapping[str, str]:
        try:
            async with download.one_runs:
                path = await download.fetch(report)
        except GatewayError as error:
            return {"state": "failed", "why_failed": error.message}
        except Exception as error:  # the server survives any error of the disk or the hub
            log.exception("download failed", model=download.state.model)
            return {"state": "failed", "why_failed": f"{type(error).__name__}: {error}"}
        return {"state": "finished", "path": path}


CHUNK = 1 << 20  # bytes between two reports
UNANNOUNCED = 1 << 30  # bytes of a file that is sent without a length
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before another try
LONGEST_PAUSE = 300.0  # of those that a hub asks for


async def fetch(
    client: httpx.AsyncClient,
    file: RemoteFile,
    path: Path,
    headers: Mapping[str, str],
    report: Callable[[int], None],
    pauses: Sequence[float] = PAUSES,
) -> None:
    """Bring `file` to `path`, over `path.part`; `report` is called with its bytes on disk. It goes
    on where an earlier try stopped. What may be better the next time (a connection that is cut or
    silent, 429, 5xx) is tried again.

    The bytes come through httpx and not through huggingface_hub, whose downloads run in a thread
    that can't be stopped: a client that leaves must stop a download at once.

    Raises ModelUnavailable where the hub fails, or sends something else than it promised. What has
    come so far stays, unless it is wrong.
    """
    if await anyio.Path(path).exists():
        report(file.size)
        return
    part = path.with_name(f"{path.name}.part")
    await anyio.Path(part.parent).mkdir(parents=True, exist_ok=True)
    for pause in (*pauses, None):
        try:
            await _stream(client, file, part, headers, report)
            break
        except httpx.HTTPError as error:
            reason, asked = failure(error, file)
            if pause is None or asked is None:
                raise ModelUnavailable(reason) from error
        log.info("a download is tried again", reason=reason, seconds=max(pause, asked))
        await anyio.sleep(max(pause, asked))
    await to_thread.run_sync(_check, file, part)
    await anyio.Path(part).rename(path)


def failure(error: httpx.HTTPError, file: RemoteFile) -> tuple[str, float | None]:
    """In words, and the seconds after which the hub wants to be asked again; None: never."""
    if not isinstance(error, httpx.HTTPStatusError):
        reason = str(error) or type(error).__name__  # timeouts have no text
        return f"{file.name} could not be downloaded: {reason}", 0.0
    status = error.response.status_code
    reason = f"{error.request.url.host} answered {status} for {file.name}"
    if status != httpx.codes.TOO_MANY_REQUESTS and status < httpx.codes.INTERNAL_SERVER_ERROR:
        return reason, None
    wanted = error.response.headers.get("retry-after", "")
    return reason, min(float(wanted), LONGEST_PAUSE) if wanted.isdecimal() else 0.0


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
    if done < file.size:
        raise httpx.RemoteProtocolError(f"{done} bytes came instead of {file.size}")


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
    elif file.sha256 is not None:
        with part.open("rb") as disk:
            if hashlib.file_digest(disk, "sha256").hexdigest() != file.sha256:
                wrong = "has a different checksum than the hub reports"
    if not wrong:
        return
    part.unlink()  # more of the same would not make it right
    raise ModelUnavailable(f"{file.name} {wrong}; try again")
