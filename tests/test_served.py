"""What is read of a process's stderr, and what is taken for a mistake of ours."""

import signal
from pathlib import Path

import pytest

from tests.served import Serve, command, faults, scripted


@pytest.mark.parametrize(
    ("line", "is_fault"),
    [
        ('{"event": "model loaded", "level": "info"}', False),
        ('{"event": "the word error", "level": "warning"}', False),
        ('{"event": "stream failed", "level": "error"}', True),
        ('{"event": "odd", "level": "warning", "exception": "Traceback (most…"}', True),
        ("Traceback (most recent call last):", True),
        ("x.py:1: RuntimeWarning: coroutine 'f' was never awaited", True),
        ("ERROR asyncio: Exception in callback f()", True),
        ("2026-01-01 [error    ] stream failed", True),
        ("roundhouse: can't listen on 127.0.0.1:80: permission denied", False),
    ],
)
def test_errors_and_tracebacks_are_faults_and_what_is_expected_is_not(
    line: str, is_fault: bool
) -> None:
    assert bool(faults(f"before\n{line}\nbehind")) is is_fault
    assert not faults(line, expected=(line[10:20],))


@pytest.mark.parametrize("anew", [True, False], ids=["started", "forked"])
def test_a_server_answers_logs_and_stops(serve: Serve, tmp_path: Path, *, anew: bool) -> None:
    server = serve({"models": [scripted(tmp_path, "demo", "Hello!")]}, anew=anew)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = server.client.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "Hello!"
    assert server.log.wait_for("model loaded")["model"] == "demo"
    assert server.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("anew", [True, False], ids=["started", "forked"])
def test_a_command_is_waited_for(tmp_path: Path, *, anew: bool) -> None:
    with command("--version", folder=tmp_path, anew=anew) as version:
        pass
    assert version.status() == 0
    assert version.out.text.startswith("roundhouse ")
