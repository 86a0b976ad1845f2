"""The command line in a terminal: what is dimmed, what Ctrl-C does, bars that go away again."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Self

import httpx
import pytest

from tests.hang import HANG
from tests.promises.test_mcp import LINES, listening, script
from tests.served import COLOUR, assert_sound, served

COMMAND = (sys.executable, "-m", "gateway.cli")
INTERRUPT = b"\x03"
STOP = b"\x13"  # Ctrl-S: the terminal takes nothing until the next key that means something
END = b"\x04"
CURSOR = re.compile(r"\x1b\[\?25[hl]")
WORDS = "Twelve quiet engines were turning slowly. " * 4
MARKDOWN = f"""## Engines

{WORDS}**All** of them.
The `next` line <b>kept</b>.

1. one
2. two

```python
print(1)

print(2)
```

[1]: http://a.example/b
"""
SCRIPT = {
    "lines": [
        {"when": "Markdown", "say": f"{MARKDOWN}\n{'End. ' * 200}"},
        {"when": "Hello", "say": "<think>\nA greeting.\n</think>\n\nThe engine turns."},
        {"say": "The engine turns. " * 5_000},  # a conversation is asked for its first words, too
    ],
    "context_length": 40_960,
}


class Terminal:
    """A command in a terminal of its own: what it shows, and keys for it."""

    def __init__(self, *arguments: str, folder: Path, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        self.shown, self._found = b"", 0
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={"PYTHONPATH": str(Path.cwd()), "HOME": str(folder), "TERM": "xterm", "PATH": ""},
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - one thread, and nothing but a system call
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_error: object) -> None:
        """A test that fails leaves neither the command behind nor its terminal."""
        with self.process:
            self.process.kill()
        os.close(self._master)
        if not failed:
            assert_sound(self.text)

    def read_to(self, text: str) -> None:
        """Until `text` is shown behind what was waited for before."""
        while (found := self.shown.find(text.encode(), self._found)) < 0:
            more = self._read()
            assert more, self.shown.decode(errors="replace")
        self._found = found + len(text.encode())

    def interrupt_to(self, text: str) -> None:
        """As `read_to`, after Ctrl-C; and again, for Python's input misses one that comes just
        before it waits for keys.
        """
        self.press(INTERRUPT)
        while text.encode() not in self.shown[self._found :]:
            if select([self._master], [], [], 1.0)[0]:
                assert self._read(), self.text
            else:
                self.press(INTERRUPT)
        self.read_to(text)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        """Its exit status as shells have it, when it has shown all."""
        while self._read():
            pass
        status = self.process.wait(HANG)
        return status if status >= 0 else 128 - status  # ended by a signal

    def _read(self) -> bytes:
        guard = threading.Timer(HANG, self.process.kill)  # of this wait alone: servers stay long
        guard.start()
        try:
            more = os.read(self._master, 65_536)
        except OSError:  # Linux says so when nobody has the other end any more
            more = b""
        finally:
            guard.cancel()
        self.shown += more
        return more

    @property
    def text(self) -> str:
        return self.shown.decode(errors="replace").replace("\r\n", "\n")


def on_screen(shown: str) -> str:
    """What stands there in the end: lines that were shown meanwhile are taken away again."""
    rows, at = [""], 0
    for part in re.split(r"(\n|\x1b\[\d+A|\x1b\[2K)", CURSOR.sub("", shown)):
        if part == "\n":
            at += 1
            rows += [""] * (at == len(rows))
        elif part == "\x1b[2K":
            rows[at] = ""
        elif up := re.fullmatch(r"\x1b\[(\d+)A", part):
            at -= int(up[1])
        else:
            rows[at] += part.replace("\r", "")
    return "\n".join(rows)


def _take_terminal() -> None:
    """As a shell does: it heeds Ctrl-C, even if who runs the tests ignores it (`nohup`, `&`)."""
    import fcntl

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One that serves in a terminal, a model that takes a moment to load."""
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "demo.script.json").write_text(json.dumps(SCRIPT))
    (folder / "roundhouse.yaml").write_text(
        f"models: [{{name: demo, path: {folder / 'demo.script.json'}}}]\n"
        # Slow, so that a client which gets no processor for seconds is still in time to stop it.
        "engines: {scripted: {load_seconds: 0.5, tokens_per_second: 1000}}\n"
        "swap: {memory: {cpu: 3000000000}}\n"
    )
    with Terminal("serve", "--port", "0", folder=folder) as terminal:
        terminal.read_to("try:")
        yield terminal
        terminal.press(INTERRUPT)
        terminal.read_to("stopping")
        assert terminal.end() == 0


@pytest.fixture
def url(server: Terminal) -> str:
    found = re.search(r"listens on (\S+)", server.text)
    assert found is not None
    return found[1]


def test_the_greeting_tells_what_room_there_is(server: Terminal) -> None:
    assert "model:  demo\n  memory: cpu 2.8 GiB\n" in server.text


def test_a_load_is_a_bar_in_the_servers_terminal_and_lines_stand_above_it(
    server: Terminal, url: str, tmp_path: Path
) -> None:
    with Terminal("load", "demo", "--url", url, folder=tmp_path) as client:
        server.read_to("loading demo")
        server.read_to("model loaded")
        assert client.end() == 0
    assert "demo is loaded" in client.text


def test_a_server_in_a_stopped_terminal_loads_and_answers_and_can_be_ended(tmp_path: Path) -> None:
    (tmp_path / "demo.script.json").write_text(json.dumps(SCRIPT))
    (tmp_path / "roundhouse.yaml").write_text("engines: {scripted: {load_seconds: 0.5}}\n")
    with Terminal("serve", "--port", "0", "demo.script.json", folder=tmp_path) as terminal:
        terminal.read_to("try:")
        url = re.search(r"listens on (\S+)", terminal.text)
        assert url is not None
        terminal.press(STOP)
        body = {"messages": [{"role": "user", "content": "Hello!"}]}
        for _ in range(3):
            answer = httpx.post(f"{url[1]}/v1/chat/completions", json=body, timeout=HANG)
            assert answer.json()["choices"][0]["message"]["content"] == "The engine turns."
            httpx.post(f"{url[1]}/v1/model/unload", timeout=HANG).raise_for_status()
        terminal.press(INTERRUPT)
        assert terminal.end() == 0


def test_a_narrow_terminal_cuts_no_name(url: str, tmp_path: Path) -> None:
    with Terminal("models", "--url", url, folder=tmp_path, columns=20) as client:
        assert client.end() == 0
    name, *_ = client.text.splitlines()[1].split()
    assert name == "demo"
    assert "scripted" in client.text


def test_reasoning_is_dimmed(url: str, tmp_path: Path) -> None:
    with Terminal("run", "demo", "Hello!", "--url", url, folder=tmp_path) as terminal:
        assert terminal.end() == 0
    shown = on_screen(terminal.text)
    dimmed = "".join(re.findall(r"\x1b\[2m(.*?)\x1b\[0m", shown, flags=re.DOTALL))
    assert dimmed.strip() == "A greeting."
    assert "The engine turns." in re.sub(r"\x1b\[2m.*?\x1b\[0m", "", shown)


def test_markdown_is_shown_and_lines_are_folded_between_words(url: str, tmp_path: Path) -> None:
    with Terminal("run", "demo", "Markdown!", "--url", url, folder=tmp_path, columns=50) as client:
        assert client.end() == 0
    shown = on_screen(client.text)
    assert "\x1b[1mAll\x1b[0m" in shown
    rows = [row.strip() for row in COLOUR.sub("", shown).splitlines()]
    assert max(map(len, rows)) <= 50
    text = " ".join(filter(None, rows))
    assert f"Engines {WORDS}All of them. The next line <b>kept</b>. 1 one 2 two" in text
    assert rows[rows.index("print(1)") + 2] == "print(2)"
    assert "[1]: http://a.example/b End. End." in text
    assert text.count("End.") == 200
    assert "The next line <b>kept</b>." in rows, "its lines stay lines"
    assert not {*"*`#"} & {*text}


def test_a_tool_runs_once_its_user_allows_it(tmp_path: Path) -> None:
    with listening("streamable-http") as address:
        allowed = {"allow_private_addresses": True, "require_approval": ["weather"]}
        tools = {"name": "honest", "url": address, **allowed}
        model = script(tmp_path, "caller", LINES, context_length=32_768)
        config = {"models": [model], "mcp": [tools]}
        with (
            served(tmp_path, config) as server,
            Terminal("chat", "caller", "--url", server.url, folder=tmp_path) as chat,
        ):
            chat.read_to("/help")
            for line, shown in (
                ("/tools nothing", "nothing"),
                ("/tools honest", "weather"),
                ("Please add.", "Run add? [y]es, [a]lways in this conversation, [n]o:"),
                ("y", "It is five."),
                ("/clear", "> "),
                ("The weather?", "Run weather? [y]es, [n]o:"),
                ("n", "Then not."),
                ("/clear", "> "),
                ("Add for ever.", "Run add?"),
                ("a", "\r\n> "),
            ):
                chat.press(f"{line}\n".encode())
                chat.read_to(shown)
            chat.press(END)
            assert chat.end() == 0
    assert chat.text.count("Run add?") == 2
    assert on_screen(chat.text).count("Again.") == 16, "it has to end"


@pytest.mark.parametrize("columns", [60, 80])
def test_tables_stay_within_the_terminal(columns: int, tmp_path: Path) -> None:
    with Terminal("doctor", folder=tmp_path, columns=columns) as doctor:
        assert doctor.end() == 0
    assert max(map(len, doctor.text.splitlines())) <= columns


def test_ctrl_c_ends_an_answer_and_then_forgets_a_line_and_the_conversation_goes_on(
    url: str, tmp_path: Path
) -> None:
    with Terminal("chat", "demo", "--url", url, folder=tmp_path) as terminal:
        terminal.read_to("/help")
        terminal.read_to("> ")
        terminal.press(b"long\n")
        terminal.read_to("The engine turns.")
        terminal.press(INTERRUPT)
        terminal.read_to("(stopped)")
        terminal.read_to("> ")
        terminal.press(b"half a li")
        terminal.read_to("half a li")  # else Ctrl-C takes away what readline has begun to read
        terminal.interrupt_to("Ctrl-D leaves")
        terminal.press(b"Hello!\n")
        terminal.read_to("The engine turns.")
        terminal.read_to("> ")
        terminal.press(END)
        assert terminal.end() == 0


@pytest.mark.parametrize("command", ["run", "bench"])
def test_ctrl_c_is_clean(command: str, url: str, tmp_path: Path) -> None:
    arguments = {"run": ("long",), "bench": ("--streams", "1", "--tokens", "50000")}[command]
    with Terminal(command, "demo", *arguments, "--url", url, folder=tmp_path) as terminal:
        terminal.read_to({"run": "The engine turns.", "bench": "1 of 1 streams"}[command])
        terminal.press(INTERRUPT)
        assert terminal.end() == 128 + signal.SIGINT
    assert terminal.text.endswith("\n")  # the shell's prompt comes on a line of its own
