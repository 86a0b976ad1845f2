"""The commands that talk to a running server, against one: what they print and their status."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.cli.arguments import parser

SCRIPT = {
    "context_length": 16_384,
    "lines": [{"say": "<think>\nIt is a greeting.\n</think>\n\nThe engine turns. \x1b]0;mine\x07"}],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a scripted model."""
    folder = tmp_path_factory.mktemp("cli")
    model = folder / "demo.script.json"
    model.write_text(json.dumps(SCRIPT))
    (folder / "roundhouse.yaml").write_text(
        f"models:\n  - {{name: demo, path: {model}, format: hermes_json}}\n"
    )
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port", "0"]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": str(Path.cwd()), "HOME": str(folder), "PATH": "/usr/bin:/bin"},
    ) as process:
        assert process.stdout is not None
        yield next(line.split()[-1] for line in process.stdout if "listens on" in line)
        process.kill()


def says(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_help_is_light() -> None:
    """No command's module, and nothing of the server, is imported for it."""
    code = (
        "import sys; from gateway.cli.arguments import parser; parser().format_help(); "
        "print([m for m in sys.modules if m in ('httpx', 'litestar', 'anyio', 'rich')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_models_and_what_is_in_memory(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["unload", "--url", url])
    listed = says(capsys, "models", "--url", url)
    assert "demo" in listed
    assert "unloaded" in listed
    assert "demo is loaded" in says(capsys, "load", "demo", "--url", url)
    assert "demo" in says(capsys, "ps", "--url", url)
    assert json.loads(says(capsys, "ps", "--json", "--url", url))["loaded_model"] == "demo"
    says(capsys, "unload", "demo", "--url", url)
    assert "demo" not in says(capsys, "ps", "--url", url)


def test_without_a_server_the_configured_models_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "one.script.json"
    model.write_text(json.dumps(SCRIPT))
    config = tmp_path / "config.yaml"
    config.write_text(f"models:\n  - {{name: one, path: {model}}}\n")
    nowhere = ("--url", "http://127.0.0.1:9")
    assert "one" in says(capsys, "models", "--config", str(config), *nowhere)


def test_no_server_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_run_prints_the_answer_and_nothing_that_moves_a_terminal(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = says(capsys, "run", "demo", "Hello!", "--url", url)
    assert "It is a greeting." in text
    assert "The engine turns." in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_run_reads_stdin_and_gives_json(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello!"))
    answer = json.loads(says(capsys, "run", "demo", "--json", "--url", url))
    assert answer["choices"][0]["message"]["content"].startswith("The engine turns.")


def test_a_refusal_is_the_servers_own(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nobody", "Hello!", "--url", url]) == 1
    assert "nobody" in capsys.readouterr().err


def test_chat_goes_on_after_a_refusal(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "Hello!\n/model nobody\nHello?\n/model demo\n/retry\n/what\n/clear\n/retry\n/quit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    said = says(capsys, "chat", "demo", "--url", url)
    assert said.count("The engine turns.") == 2
    assert said.count("/clear ") == 2  # the help, for /what and for /retry of nothing


def test_rm_asks_first(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "demo", "--url", url]) == 1
    assert "--yes" in capsys.readouterr().err


def test_bench_gives_a_row_for_each_number_of_streams(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = says(capsys, "bench", "demo", "--streams", "1,2", "--url", url).splitlines()
    assert [line.split()[0] for line in lines] == ["STREAMS", "1", "2", "prefill:"]
    assert main(["bench", "demo", "--streams", "0", "--url", url]) == 1


def test_check_tells_what_a_configuration_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    config = tmp_path / "config.yaml"
    config.write_text(f"models:\n  - {{name: broken, path: {broken}}}\n")
    assert main(["check", "--config", str(config)]) == 1
    assert "broken" in capsys.readouterr().out


def test_doctor_names_each_engine(capsys: pytest.CaptureFixture[str]) -> None:
    said = says(capsys, "doctor")
    for name in ("llamacpp", "transformers", "exllamav2", "exllamav3", "cpu", "cmake"):
        assert name in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = says(capsys, "completion", shell)
    for name in ("serve", "models", "bench"):
        assert name in said
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=said, text=True, check=True)


def test_every_command_has_its_module() -> None:
    for name in ("serve", "check", "doctor"):
        assert parser().parse_args([name]).module
