"""`roundhouse` as users meet it: a process of its own, uvicorn, sockets, an own configuration; what
it prints is read, and must be sound.

    def test_a_promise(serve: Serve) -> None:
        server = serve({"models": [...], "server": {"comment_after": 1.0}})
        server.client.post("/v1/chat/completions", json=...)  # httpx, on the server's address
        server.log.wait_for("model loaded")  # until such a line of JSON is logged; returns it
        assert server.stop() == 0  # SIGTERM; the fixture does that too

`serve` is a fixture of `tests/conftest.py`. Tests that don't disturb each other share a server:

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
        with served(tmp_path_factory.mktemp("served"), CONFIG) as server:
            yield server

`scripted` writes a model that says what its script says, and loads as slowly as its options say.

At the end stderr must hold no traceback, nothing that was never awaited, and no line at level
error; what a test expects there it declares: `serve(config, expected=("model failed",))`, or later
`server.log.expect("model failed")`. Other tests that read a process's stderr use `assert_sound`.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypedDict, Unpack

import httpx
import psutil

from tests.forked import Forked, Start
from tests.hang import HANG

ROOT = Path(__file__).parents[1]
TRIED = ROOT / ".pytest_cache" / "tried"
# The Python of an environment that a wheel was installed into: what it serves is tried then.
INSTALLED = os.environ.get("ROUNDHOUSE_INSTALLED")
COMMAND = (INSTALLED, "-m", "roundhouse") if INSTALLED else (sys.executable, "-m", "gateway.cli")
SOURCES = {} if INSTALLED else {"PYTHONPATH": str(ROOT)}
LISTENS = "Roundhouse listens on "
FAULTS = (
    "Traceback",
    "never awaited",
    "never retrieved",
    "ERROR ",
    "CRITICAL ",
    "[error",
    "Fatal ",
)

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What a process needs of this one's environment to find the cards that this one finds.
CARDS = re.compile("GGML_|MESA_|CUDA_|HIP_|ROCR_|TORCH_|TRITON_|LD_LIBRARY_PATH$")
SEES_CARDS = {name: value for name, value in os.environ.items() if CARDS.match(name)}
# What else is read before the first line of `gateway.cli`, by Python or by an import.
AT_IMPORT = re.compile(f"PYTHON|PATH$|RAY_|OMP_|{CARDS.pattern}")
# The members of a script's file; all else are options of its engine.
IN_SCRIPTS = {"lines", "context_length", "size_bytes", "modalities", "chat_template"}


def faults(text: str, expected: Sequence[str] = ()) -> list[str]:
    """The lines of stderr that must not be there, but for those that hold a text of `expected`."""
    return [
        line
        for line in COLOUR.sub("", text).splitlines()
        if _is_fault(line) and not any(known in line for known in expected)
    ]


def _is_fault(line: str) -> bool:
    if line.startswith("{"):
        try:
            level = json.loads(line).get("level")
        except ValueError:
            level = None
        if level is not None:
            return level in ("error", "critical") or any(fault in line for fault in FAULTS[:3])
    return any(fault in line for fault in FAULTS)


def assert_sound(text: str, expected: Sequence[str] = ()) -> None:
    """Nothing in a process's stderr says that we made a mistake."""
    assert not (wrong := faults(text, expected)), "\n".join([*wrong, "", "all of stderr:", text])


class Printed:
    """What a process prints to a pipe, read on a thread while it runs."""

    def __init__(self, pipe: IO[str], expected: Sequence[str] = ()) -> None:
        self._pipe = pipe
        self._expected = [*expected]
        self._lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._pipe:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        """All so far."""
        with self._changed:
            return "\n".join(self._lines)

    def records(self, event: str = "") -> list[dict[str, Any]]:
        """The log's lines of JSON whose event holds `event`."""
        found = [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]
        return [record for record in found if event in str(record.get("event", ""))]

    def expect(self, *texts: str) -> None:
        """An error that holds one of them is no fault from now on."""
        self._expected += texts

    def line_with(self, text: str) -> str:
        """The first line that holds `text`, once it is there; it fails where the process ends
        without.
        """

        def found() -> bool:
            return self._ended or any(text in line for line in self._lines)

        with self._changed:
            assert self._changed.wait_for(found, HANG), f"no {text!r} in\n{self._lines}"
            lines = [line for line in self._lines if text in line]
        assert lines, f"no {text!r} in\n{self.text}"
        return lines[0]

    def wait_for(
        self, event: str, fits: Callable[[dict[str, Any]], bool] = lambda _record: True
    ) -> dict[str, Any]:
        """The first line of the log whose event holds `event` and that `fits`, once it is there."""

        def found() -> bool:
            return self._ended or any(map(fits, self.records(event)))

        with self._changed:
            assert self._changed.wait_for(found, HANG), f"no {event!r} in\n{self._lines}"
        records = [*filter(fits, self.records(event))]
        assert records, f"no {event!r} in\n{self.text}"
        return records[0]

    def to_end(self) -> str:
        """All, once the process has closed it."""
        self._thread.join(HANG)
        return self.text

    def assert_sound(self) -> None:
        """See the function of that name."""
        assert_sound(self.text, self._expected)


def limited(files: int) -> tuple[str, ...]:
    """What stands before a command that may have so many files open."""
    return "/bin/sh", "-c", 'ulimit -n "$0"; exec "$@"', str(files)


def _share_tried(home: Path) -> None:
    """Which files tests have tried here (`backends.engines.llamacpp.trial`): each trial is a
    process, and the bundled model's would be one of each server.
    """
    there = home / ".cache" / "roundhouse"
    there.mkdir(parents=True, exist_ok=True)
    TRIED.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (there / "tried").symlink_to(TRIED)


class Command:
    """`roundhouse ARGUMENTS` as a process. It is killed where the context that made it ends."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        expected: Sequence[str] = (),
        environment: Mapping[str, str] = {},
        stderr: int = subprocess.PIPE,
        files: int | None = None,
        anew: bool = False,
    ) -> None:
        """It runs in `folder`, which is its home, too. `expected`: see `assert_sound`; `stderr`:
        a file in place of what is read here; `files`: that it may have open; `anew`: it is not
        forked (`tests/forked.py`), as it never is where an import may read `environment`.
        """
        home = {**SOURCES, "HOME": str(folder), "PATH": "/usr/bin:/bin"}
        self.folder = folder
        _share_tried(folder)
        self.process: subprocess.Popen[str] | Forked
        linux = sys.platform == "linux"  # others lack sockets of packets
        if anew or INSTALLED or not linux or any(map(AT_IMPORT.match, environment)):
            self.process = subprocess.Popen(
                [*(limited(files) if files else ()), *COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=folder,
                env={**home, **environment},
            )
        else:
            start = Start(arguments, str(folder), {**home, **environment}, files)
            self.process = Forked(start, stderr)
        assert self.process.stdout is not None
        self.out = Printed(self.process.stdout)
        self.log = Printed(self.process.stderr or io.StringIO(), expected)

    def signal(self, kind: signal.Signals) -> None:
        """Send it."""
        self.process.send_signal(kind)

    def status(self) -> int:
        """Its exit status, once it has ended and all it printed is read."""
        status = self.process.wait(HANG)
        self.out.to_end()
        self.log.to_end()
        return status

    def kill(self) -> None:
        """Whatever it does; nothing where it has ended."""
        with self.process:
            self.process.kill()


class Served(Command):
    """`roundhouse serve`, which listens."""

    url = ""
    client: httpx.Client

    def listen(self) -> None:
        """Until it does. `client` belongs to whoever calls."""
        try:
            self.url = self.out.line_with(LISTENS).rpartition(" ")[2]
        except AssertionError:
            raise AssertionError(f"it never listened:\n{self.log.text}") from None
        # Without certificates: reading them takes longer than a test.
        self.client = httpx.Client(base_url=self.url, timeout=HANG, verify=False)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def memory(self) -> int:
        """Bytes that its process has."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def stop(self, kind: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status after a signal."""
        if self.process.poll() is None:
            self.signal(kind)
        return self.status()


class Options(TypedDict, total=False):
    """Of a `Command`, which see."""

    expected: Sequence[str]
    environment: Mapping[str, str]
    stderr: int
    files: int
    anew: bool


@contextmanager
def command(*arguments: str, folder: Path, **options: Unpack[Options]) -> Iterator[Command]:
    """`roundhouse ARGUMENTS`; at the end it is waited for, and its stderr is sound."""
    begun = Command(*arguments, folder=folder, **options)
    try:
        yield begun
        begun.status()
    finally:
        begun.kill()
    begun.log.assert_sound()


@contextmanager
def served(
    folder: Path,
    config: Mapping[str, Any] = {},
    *arguments: str,
    **options: Unpack[Options],
) -> Iterator[Served]:
    """`roundhouse serve ARGUMENTS` with `config` in `folder`, on a free port unless it names
    another. At the end it is stopped, and its stderr is sound.
    """
    settings = {**config, "server": {"port": 0, **config.get("server", {})}}
    (folder / "roundhouse.yaml").write_text(json.dumps(settings, indent=2))  # JSON is YAML
    server = Served("serve", *arguments, folder=folder, **options)
    try:
        server.listen()
        with server.client:
            yield server
        server.stop()
    finally:
        server.kill()
    server.log.assert_sound()


class Serve(Protocol):
    """The fixture `serve`: as `served`, in the test's own folder, to its end."""

    def __call__(
        self,
        config: Mapping[str, Any] = {},
        *arguments: str,
        **options: Unpack[Options],
    ) -> Served: ...


def scripted(
    folder: Path, name: str, say: str = "Hello from the script.", **options: Any
) -> dict[str, Any]:
    """An entry for `models`: a model of that name that always says `say`. `options`: the scripted
    engine's; `lines` and other members of a script go into its file.
    """
    file = {key: options.pop(key) for key in IN_SCRIPTS & options.keys()}
    path = folder / f"{name}.script.json"
    path.write_text(json.dumps({"lines": [{"say": say}], **file}))
    return {"name": name, "path": str(path), "options": options}


def events(text: str) -> list[Any]:
    """What the `data:` lines of a stream hold, but for OpenAI's end."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]
