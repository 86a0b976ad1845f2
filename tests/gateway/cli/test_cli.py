"""The commands that talk to a running server, against one: what they print and their status."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import bundled
from gateway.cli import main
from gateway.cli.arguments import parser
from gateway.cli.listing import _memory, _until
from gateway.cli.remote import refusal
from tests.served import Serve, assert_sound, scripted, served

SCRIPT: dict[str, Any] = {
    "context_length": 16_384,
    "lines": [{"say": "<think>\nIt is a greeting.\n</think>\n\nThe engine turns. \x1b]0;mine\x07"}],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a scripted model."""
    folder = tmp_path_factory.mktemp("cli")
    demo = {**scripted(folder, "demo", **SCRIPT), "format": "hermes_json"}
    with served(folder, {"models": [demo]}) as server:
        yield server.url


def says(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    ["run demo --json PROMPT", "run --json demo PROMPT", "run demo PROMPT --json"],
)
def test_options_may_stand_anywhere(line: str) -> None:
    parsed = parser().parse_args(line.split())
    assert (parsed.model, parsed.prompt, parsed.json) == ("demo", "PROMPT", True)
    several = parser().parse_args(["serve", "a", "--port", "0", "b"])
    assert (several.models, several.port) == (["a", "b"], "0")
    dashes = parser().parse_args(["run", "demo", "--json", "--", "--prompt"])
    assert dashes.prompt == "--prompt"


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
    assert main(["models", "--config", str(config), *nowhere]) == 0
    said = capsys.readouterr()
    assert "one" in said.out
    assert "no server answers" in said.err
    assert bundled.GGUF.stem not in said.out


def test_without_a_server_and_a_configuration_it_is_the_bundled_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert bundled.GGUF.stem in says(capsys, "models", "--url", "http://127.0.0.1:9")


def test_what_computes_a_model_is_said_wherever_it_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an engine with several libraries, with a server and without, installed or not."""
    ik = {"name": "other", "path": str(bundled.GGUF), "options": {"library": "ik"}}
    settings, why = {"models": [ik]}, "ik_llama.cpp: the options say so"
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings))
    assert f"other is computed by {why}" in says(capsys, "check", "--config", str(config))
    nowhere = ("--config", str(config), "--url", "http://127.0.0.1:9")
    [listed] = columns(says(capsys, "models", *nowhere))
    assert listed["COMPUTED BY"] == why
    with served(tmp_path, settings) as server:
        [listed] = columns(says(capsys, "models", "--url", server.url))
        assert listed["COMPUTED BY"] == why
        [shown] = server.client.get("/v1/admin/models").json()["models"]
        assert (shown["id"], shown["library"]) == ("other", why)


def test_no_server_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.fixture(params=[b"<html>hi</html>", b"{}", b"[]"])
def another(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that isn't ours and answers everything with 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-length", str(len(request.param)))
            self.end_headers()
            self.wfile.write(request.param)

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            """Nothing: the test looks at what commands print."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "command", ["models", "ps", "load x", "unload x", "pull hf:a/b", "run x Hello!"]
)
def test_a_server_that_is_no_roundhouse_is_named_as_such(
    command: str, another: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(" "), "--url", another]) == 1
    shown = capsys.readouterr()
    assert not shown.out
    assert f"{another} is not Roundhouse" in shown.err


def test_a_key_may_have_letters_of_any_alphabet_and_a_line_feed_at_its_end(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    says(capsys, "ps", "--url", url, "--key", "ключ\n")


def test_what_is_no_text_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "demo", os.fsdecode(b"\xff"), "--url", url]) == 1
    assert "not valid UTF-8" in capsys.readouterr().err


def columns(table: str) -> list[dict[str, str]]:
    """The rows of a table by its heads, which stand above their columns."""
    head, *rows = table.splitlines()
    starts = [match.start() for match in re.finditer(r"(?<!\S)\S+( \S+)*", head)]
    parts = list(zip(starts, [*starts[1:], None], strict=True))
    return [{head[a:b].strip(): row[a:b].strip() for a, b in parts} for row in rows]


def test_a_row_has_memory_device_engine_context_and_until_when(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["unload", "--url", url])
    capsys.readouterr()
    [listed] = columns(says(capsys, "models", "--url", url))
    assert (listed["MODEL"], listed["STATE"], listed["DEVICE"]) == ("demo", "unloaded", "cpu")
    assert (listed["ENGINE"], listed["CONTEXT"]) == ("scripted", "16384")
    assert (listed["UNTIL"], listed["FITS"]) == ("", "yes")
    assert re.fullmatch(r"[\d.]+ MiB", listed["MEMORY"])
    says(capsys, "load", "demo", "--url", url)
    [loaded] = columns(says(capsys, "ps", "--url", url))
    assert loaded == {
        "MODEL": "demo",
        "STATE": "loaded",
        "MEMORY": listed["MEMORY"],
        "DEVICE": "cpu",
        "ENGINE": "scripted",
        "CONTEXT": "16384",
        "IN USE": "0",
        "QUEUED": "0",
        "UNTIL": "forever",
    }


def test_a_preset_is_the_same_as_its_model_and_an_unload_says_what_came_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [{"key": "admin", "role": "admin"}, {"key": "user"}]
    demo = scripted(tmp_path, "demo", **SCRIPT)
    models = [demo, {"name": "coder", "of": "demo"}]
    with served(tmp_path, {"models": models, "keys": keys}) as server:
        to = ["--url", server.url, "--key", "admin"]
        says(capsys, "load", "coder", *to)
        rows = columns(says(capsys, "ps", *to))
        assert {(row["MODEL"], row["STATE"]) for row in rows} == {
            ("demo", "loaded"),
            ("coder", "same as demo"),
        }
        assert sorted(bool(row["MEMORY"]) for row in rows) == [False, True]
        said = says(capsys, "unload", *to)
        assert re.match(r"Model demo unloaded in [\d.]+ s: [\d.]+ [MG]iB of cpu came free", said)
        assert main(["load", "demo", "--url", server.url, "--key", "user"]) == 1
        assert "a request loads the model that it names" in capsys.readouterr().err


def test_memory_on_several_devices_is_told_apart() -> None:
    gib = 2**30
    one = {"devices": {"cuda:0": 20 * gib, "cpu": gib // 2}}
    assert _memory(one) == ("20.5 GiB", "cuda:0 20.0 GiB, cpu 512.0 MiB")
    assert _memory({}) == ("", "")
    turns = {"cuda:0": 20 * gib, "one of coders": 1}
    assert _memory({"devices": turns}) == ("20.0 GiB", "cuda:0 20.0 GiB, one of coders")
    assert _memory({"devices": {"one at a time": 1}}) == ("", "one at a time")
    left = {"remaining_time_seconds": 7_500.0}
    assert [_until(one, "loaded") for one in ({}, left, {"in_use": 1, **left})] == [
        "forever",
        "2 h 5 min",
        "in use",
    ]


def test_names_of_models_are_completed_and_none_is_run(tmp_path: Path) -> None:
    hostile = f"$(touch {tmp_path}/ran)"
    stand_in = tmp_path / "roundhouse"
    stand_in.write_text(f"#!/bin/sh\nprintf '%s\\n' qwen3-8b org/a:Q4 org/a:Q8 '{hostile}'\n")
    stand_in.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
    )

    def offered(line: str) -> list[str]:
        words = " ".join(map(shlex.quote, re.split(r"(?<=:)|(?=:)| ", line)))
        script = (
            f"{done.stdout}\nCOMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}\n"
            f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
            "_roundhouse; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        run = ["bash", "-c", script]
        said = subprocess.run(run, capture_output=True, text=True, env=path, check=True)
        return said.stdout.split("\n")[:-1]

    assert offered("roundhouse run q") == ["qwen3-8b"]
    assert offered("roundhouse chat org/a:") == ["Q4", "Q8"]
    assert offered("roundhouse load org/a:Q8") == ["Q8"]
    assert len(offered("roundhouse rm ")) == 4
    assert not (tmp_path / "ran").exists()


def test_the_names_alone_are_a_line_each(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says(capsys, "models", "--names", "--url", url) == "demo\n"
    main(["models", "--names", "--url", "http://127.0.0.1:9"])
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_neither_a_strange_alphabet_nor_a_full_disk_is_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "ключ.script.json").write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "gateway.cli", "check", "ключ.script.json"]
    variables = {"PYTHONPATH": str(Path.cwd()), "HOME": str(tmp_path), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path, env=variables)
    assert b"????" in done.stdout
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, check=False, cwd=tmp_path, env=variables
        )
    assert done.returncode == 1
    assert_sound(done.stderr.decode())
    assert b"No space left" in done.stderr


def test_run_prints_the_answer_and_nothing_that_moves_a_terminal(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = says(capsys, "run", "demo", "Hello!", "--url", url)
    assert "The engine turns." in text
    assert "It is a greeting." not in text  # reasoning, which a pipe couldn't tell from the answer
    assert "\x1b" not in text
    assert "\x07" not in text


def test_where_a_key_is_wanted_it_is_said_how_to_give_it() -> None:
    error = {"error": {"message": "No API key was given."}}
    assert "--key" in refusal(httpx.Response(401, json=error))
    assert refusal(httpx.Response(403, json=error)) == "No API key was given."


def test_run_reads_stdin_and_gives_json(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello!"))
    answer = json.loads(says(capsys, "run", "demo", "--json", "--url", url))
    assert answer["choices"][0]["message"]["content"].startswith("The engine turns.")


def test_a_refusal_is_the_servers_own(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nobody", "Hello!", "--url", url]) == 1
    shown = capsys.readouterr()
    assert "nobody" in shown.err
    assert not shown.out


def test_chat_goes_on_after_a_refusal(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "Hello!\n/model nobody\nHello?\n/retry\n/what\n/clear\n/retry\n/quit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["chat", "demo", "--url", url]) == 0
    said = capsys.readouterr()
    assert said.out.count("The engine turns.") == 3
    refused = said.err.splitlines()
    assert "nobody" in refused[0]  # and the model stays the one it was
    assert refused[1:] == [
        "(/what is not a command; /help lists all commands)",
        "(no answer yet)",
    ]


def test_chat_sets_parameters_and_lists_models(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "/models\n/set temperature -1\nHello?\n/set temperature\n/set user me\nHello!\n/quit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["chat", "demo", "--url", url]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("demo  ")
    assert said.out.count("The engine turns.") == 1
    assert "temperature" in said.err


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("unlod", "unload"),
        ("serve --prot 5", "--port"),
        ("import llamaswap x", "llama-swap"),
        ("launch cladue", "claude"),
    ],
)
def test_a_typing_error_is_told_what_was_meant(
    line: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(line.split())
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def test_chat_begins_where_there_is_a_server_and_a_model(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "--url", "127.0.0.1:9"]) == 1
    assert "no server answers" in capsys.readouterr().err
    assert main(["chat", "nobody", "--url", url]) == 1
    assert "nobody" in capsys.readouterr().err


def test_a_message_may_have_several_lines(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('"""one\ntwo"""\n"""\nthree\n"""\n"""four"""\n'))
    assert says(capsys, "chat", "demo", "--url", url).count("The engine turns.") == 3


def test_an_answer_that_was_cut_is_said_beside_it(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "demo", "Hello!", "--max-tokens", "12", "--url", url]) == 0
    assert "cut at the limit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"), [("nowhere.json", "No such file"), ("bad.json", "malformed")]
)
def test_a_schema_that_cannot_be_read_is_named(
    name: str, reason: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text("{,}")
    path = str(tmp_path / name)
    assert main(["run", "demo", "Hello!", "--schema", path, "--url", url]) == 1
    said = capsys.readouterr().err
    assert path in said
    assert reason in said


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:9000", "http://localhost:9000"),
        ("https://box.example/", "https://box.example"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://box:8000/v1/", "http://box:8000"),
    ],
)
def test_a_server_is_named_shortly(text: str, url: str) -> None:
    assert parser().parse_args(["ps", "--url", text]).url == url


@pytest.mark.parametrize("text", ["ftp://x", "http://", "localhost:port", "http://a:0"])
def test_what_is_no_address_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["ps", "--url", text])
    assert "is not a valid URL" in capsys.readouterr().err


def test_rm_asks_first(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "demo", "--url", url]) == 1
    assert "--yes" in capsys.readouterr().err


def test_bench_gives_a_row_for_each_number_of_streams(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = says(capsys, "bench", "demo", "--streams", "1,2", "--url", url).splitlines()
    assert [line.split()[0] for line in lines] == ["STREAMS", "1", "2"]
    assert "PREFILL" in lines[0]
    assert all(float(number.replace(",", "")) > 0 for number in lines[1].split()[3:])
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


def test_check_tells_why_a_model_can_not_be_planned_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = {"draft": {"model": str(tmp_path / "absent.gguf")}}
    models = [
        {"name": "drafting", "path": str(bundled.GGUF), "options": draft},
        scripted(tmp_path, "other"),
    ]
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"models": models}))
    assert main(["check", "--config", str(config)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("drafting") and "absent.gguf" in line for line in printed)
    assert any(line.startswith("other") and "yes" in line for line in printed)


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ("1GB", "all fit together"),
        ("15MB", "together they need 19.1 MiB of cpu, which has 14.3 MiB"),
    ],
)
def test_check_tells_whether_models_fit_together(
    budget: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [scripted(tmp_path, name, size_bytes=10_000_000) for name in ("one", "two")]
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"models": models, "swap": {"memory": {"cpu": budget}}}))
    assert main(["check", "--config", str(config)]) == 0
    assert told in capsys.readouterr().out


WRONG = """
hub: {endpoint: "http://127.0.0.1:9"}
server: {hosts: [ai.example]}
keys:
  - {key: user, models: [demo, dmeo]}
models:
  - {name: demo, path: demo.script.json}
  - {name: far, path: "hf:org/small"}
upstreams:
  - name: cluster
    urls: ["http://127.0.0.1:9/v1"]
    models: {large: meta}
    fallbacks: [demo]
model_dirs: [absent]
template_dir: templates
preset_dir: presets
swap: {memory: {cpu: 1GB, "cuda:7": 1GB}}
"""


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    scripted(tmp_path, "demo")
    config = tmp_path / "wrong.yaml"
    config.write_text(WRONG)
    return config


FOUND = (
    "$.model_dirs[0]: folder not found",
    "$.template_dir: folder not found",
    "$.preset_dir: folder not found",
    "$.swap.memory.cuda:7: this machine has no such device; available: cpu",
    "$.keys[0].models[1]: Model 'dmeo' not found. Nearest: demo",
)


def test_check_finds_what_is_named_and_not_there(
    wrong: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--config", str(wrong)]) == 1
    printed = capsys.readouterr().out
    for text in FOUND:
        assert text in printed
    assert "far: not downloaded yet; what it needs isn't known: can't reach http://127" in printed
    assert "upstream 'cluster': http://127.0.0.1:9/v1: " in printed
    assert "fallbacks" not in printed


def test_serve_warns_of_what_is_named_and_not_there(
    wrong: Path, tmp_path: Path, serve: Serve
) -> None:
    settings = yaml.safe_load(WRONG)
    settings["models"].pop()
    server = serve(settings)
    assert server.stop() == 0  # all of its log is read
    warned = [f"{one['option']}: {one['problem']}" for one in server.log.records("check the conf")]
    for text in FOUND:
        assert any(text in line for line in warned)


def test_check_refuses_what_serve_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "open.yaml"
    for text, problem in (
        ("server: {host: 0.0.0.0}", "$.server.host: 0.0.0.0: without API keys"),
        ("preset: absent", "absent"),
    ):
        config.write_text(text)
        assert main(["check", "--config", str(config)]) == 2
        assert problem in capsys.readouterr().err


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
