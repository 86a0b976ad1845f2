"""The command as a user meets it: a process of its own, its words, its exit status."""

import ctypes
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread

import bundled
from backends.machine.ggml import offloads
from config.settings import Config
from gateway.cli.configured import with_downloads
from gateway.hub.downloads import CHUNK
from tests.gateway.hub.standin import standin
from tests.hang import HANG
from tests.served import ROOT, Serve, Served, command, scripted

SCRIPT = {"lines": [{"say": "The engine turns. " * 50}]}
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}]}


def script(folder: Path) -> str:
    path = folder / "demo.script.json"
    path.write_text(json.dumps(SCRIPT))
    return str(path)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_serves_and_exits_with_0(
    kind: signal.Signals, serve: Serve, tmp_path: Path
) -> None:
    server = serve({}, script(tmp_path))
    server.out.line_with("try:")
    _, listens, page, model, room, attempt = map(str.strip, server.out.text.splitlines()[:6])
    url = listens.rpartition(" ")[2]
    assert url.startswith("http://127.0.0.1:")
    assert page == f"page:   {url}/"
    assert model == "model:  demo"
    assert re.search(r"\bcpu \d+\.\d [MG]iB$", room)
    assert f"curl {url}/v1/chat/completions" in attempt
    answer = server.client.post(CHAT, json={**HELLO, "max_tokens": 3}).json()
    assert answer["choices"][0]["message"]["content"] == "The"
    assert server.stop(kind) == 0


def test_a_link_is_followed_as_it_is_to_a_blob_of_the_hub_s_cache(
    serve: Serve, tmp_path: Path
) -> None:
    """As `hf download` prints it. Its name is the link's."""
    blob, link = tmp_path / "blobs/0c5f", tmp_path / "snapshots/main/Tiny-Q8_0.gguf"
    blob.parent.mkdir()
    link.parent.mkdir(parents=True)
    blob.symlink_to(bundled.GGUF)
    link.symlink_to("../../blobs/0c5f")
    with command("check", str(link), folder=tmp_path) as checked:
        pass
    assert checked.status() == 0
    assert "Tiny-Q8_0" in checked.out.text
    server = serve({}, str(link.parent))  # a folder with one file is called as that
    assert server.client.post(CHAT, json={**HELLO, "model": "Tiny-Q8_0"}).is_success


@pytest.mark.parametrize("read", ["not any more", "not yet"])
def test_a_log_that_nobody_reads_holds_up_neither_answers_nor_the_end(
    read: str, serve: Serve, tmp_path: Path
) -> None:
    reader, end = os.pipe()
    fill(end)
    try:
        server = serve({}, script(tmp_path), stderr=end)
        os.close(end)
        if read == "not any more":
            os.close(reader)
        for _ in range(3):
            answer = server.client.post(CHAT, json={**HELLO, "stream": True})
            assert answer.text.endswith("data: [DONE]\n\n")
        assert server.stop(signal.SIGINT) == 0
    finally:
        if read == "not yet":
            os.close(reader)


def fill(end: int) -> None:
    """Until a pipe takes no more."""
    os.set_blocking(end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(end, bytes(1))
    os.set_blocking(end, True)


def test_without_a_model_the_bundled_one_is_served(serve: Serve) -> None:
    server = serve()
    assert server.out.line_with("model:").strip() == f"model:  {bundled.GGUF.stem}"
    assert server.stop() == 0


def test_a_taken_port_is_exit_status_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with command("serve", "--port", port, script(tmp_path), folder=tmp_path) as start:
            assert start.status() == 1
    errors = start.log.text
    assert "address already in use" in errors
    assert f":{port}" in errors
    assert "--port" in errors
    assert len(errors.splitlines()) == 1


def slow(folder: Path, grace: float) -> dict[str, Any]:
    """A configuration whose model answers for minutes."""
    model = scripted(folder, "slow", "The engine turns. " * 5000, tokens_per_second=20)
    return {"server": {"shutdown_grace": grace}, "models": [model]}


def test_a_signal_lets_an_answer_end_and_lets_nobody_else_in(serve: Serve, tmp_path: Path) -> None:
    model = scripted(tmp_path, "slow", "The engine turns.", tokens_per_second=20)
    server = serve({"models": [model]})
    with server.client.stream("POST", CHAT, json={**HELLO, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        server.signal(signal.SIGTERM)
        while lets_in(server):
            pass
        assert [*lines][-2] == "data: [DONE]"
    assert server.status() == 0


def test_what_is_not_over_within_the_grace_is_told_why_it_ends(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve(slow(tmp_path, grace=0.5))
    with server.client.stream("POST", CHAT, json={**HELLO, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        server.signal(signal.SIGTERM)
        rest = [line for line in lines if line.startswith("data:")]
        assert "the server is stopping" in "".join(rest[-2:])
    assert server.status() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once_and_every_stream_hears_why(
    second: signal.Signals, serve: Serve, tmp_path: Path
) -> None:
    server = serve(slow(tmp_path, grace=600))
    with server.client.stream("POST", CHAT, json={**HELLO, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        server.signal(signal.SIGTERM)
        while lets_in(server):
            pass
        server.signal(second)
        rest = [line for line in lines if line.startswith("data:")]
        assert "the server is stopping" in "".join(rest[-2:])
    assert server.status() == 128 + second


def lets_in(server: Served) -> bool:
    """Whether it takes a new connection."""
    try:
        return httpx.get(f"{server.url}/health", timeout=HANG).is_success
    except httpx.TransportError:
        return False


def test_a_hangup_reads_the_configuration_again(serve: Serve, tmp_path: Path) -> None:
    server = serve({"models": [scripted(tmp_path, "one")]})
    (tmp_path / "roundhouse.yaml").write_text("models: [{name: one, pth: x}]\n")
    server.log.expect("the configuration is unchanged")
    server.signal(signal.SIGHUP)
    line = server.log.line_with("the configuration is unchanged")
    assert "roundhouse.yaml:1: $.models[0].pth: unknown option; did you mean 'path'?" in line
    two = f"models: [{{name: two, path: {script(tmp_path)}}}]\n"
    (tmp_path / "roundhouse.yaml").write_text(two)
    server.signal(signal.SIGHUP)
    assert server.log.wait_for("configuration reloaded")["added"] == ["two"]
    listed = server.client.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["two"]
    assert server.stop() == 0


@pytest.mark.slow
def test_an_engine_that_is_missing_is_reported_before_it_listens(
    serve: Serve, tmp_path: Path
) -> None:
    """In an environment of its own, which has what the engine needs, and not the engine."""
    without = tmp_path / "sitecustomize.py"
    without.write_text(
        "from importlib import metadata\n"
        "found = metadata.version\n"
        "def version(name):\n"
        "    if name == 'transformers':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return '9' if name in ('torch', 'accelerate') else found(name)\n"
        "metadata.version = version\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    (tmp_path / "refused").mkdir()
    for refuses, status in (("serve", 2), ("check", 1)):
        asked = (refuses, str(bundled.SAFETENSORS))
        with command(*asked, folder=tmp_path / "refused", environment=path) as refused:
            assert refused.status() == status
        said = refused.log.text + refused.out.text
        assert "transformers is not installed: scripts/install transformers" in said
    config = {"models": [{"name": "m", "path": str(bundled.SAFETENSORS)}]}
    server = serve(config, environment=path)
    line = server.log.wait_for("an engine is not installed")
    assert line["missing"] == ["transformers"]
    assert line["install"] == "scripts/install transformers"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("newer", "it was written by a newer release"),
        ("damaged", "file is not a database"),
        ("another", "it is another program's database"),
        ("folder", "it is a folder"),
    ],
)
def test_what_can_not_be_the_store_is_said_by_check_and_serve(
    what: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "store.db"
    if what == "folder":
        file.mkdir()
    elif what == "damaged":
        file.write_bytes(b"no database at all, however long it is" * 100)
    else:
        with closing(sqlite3.connect(file)) as connection:
            table = "responses" if what == "newer" else "bookmarks"
            connection.executescript(f"CREATE TABLE {table} (a); PRAGMA user_version = 99;")
    config = {"models": [scripted(tmp_path, "m")], "store": {"path": str(file)}}
    (tmp_path / "roundhouse.yaml").write_text(json.dumps(config))
    for asked in ("serve", "check"):
        with command(asked, folder=tmp_path) as started:
            assert started.status() == 2
        (line,) = started.log.text.splitlines()
        assert f"$.store.path: {file}: {reason}" in line


def test_a_user_without_a_home_is_told_so(tmp_path: Path) -> None:
    """As in a container whose user the system's list doesn't have."""
    without = "import pwd, sys\nfrom gateway.cli import main\nsys.exit(main(['check']))"
    done = subprocess.run(
        ["unshare", "-U", "--map-user=4242", sys.executable, "-c", without],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip("no user namespaces on this machine")
    assert (done.returncode, done.stderr) == (
        2,
        "roundhouse: this user has no home folder: set HOME\n",
    )


def test_layers_for_a_card_on_a_build_without_one_are_a_warning_and_a_load_says_where_it_lies(
    serve: Serve,
) -> None:
    if offloads():
        pytest.skip("this llama.cpp was built for cards")
    config = {
        "engines": {"llamacpp": {"gpu_layers": 99}},
        "models": [{"name": "tiny", "path": str(bundled.GGUF), "preload": True}],
    }
    server = serve(config)
    line = server.log.wait_for("no GPU is used")
    assert line["gpu_layers"] == 99
    assert line["rebuild"] == "CMAKE_ARGS=-DGGML_CUDA=on scripts/install llamacpp"
    loaded = server.log.wait_for("model loaded")
    assert re.fullmatch(r"cpu \d+\.\d [MG]iB with 5 layers", loaded["devices"])
    assert server.stop() == 0


def test_an_import_of_an_engine_does_not_outlast_the_grace(serve: Serve, tmp_path: Path) -> None:
    """A stand-in for torch, whose import takes longer than anybody waits."""
    slow = tmp_path / "torch.py"
    slow.write_text("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    config = {
        "server": {"shutdown_grace": 0},
        "models": [{"name": "tiny", "path": str(bundled.SAFETENSORS), "preload": True}],
    }
    server = serve(config, environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    server.out.line_with("importing")
    assert server.stop() == 0


@pytest.mark.parametrize("folders", ["/nowhere/a,/nowhere/b", "empty"])
def test_model_folders_without_a_model_are_served_with_a_warning(
    folders: str, serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    server = serve({}, environment={"ROUNDHOUSE_MODEL_DIRS": folders})
    assert "none yet" in server.out.line_with("model:")
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ("server: {prot: 1}", (), "did you mean 'port'"),
        ("server: {host: 0.0.0.0}", (), "without API keys"),
        ("{}", ("missing.gguf",), "file or folder not found: missing.gguf"),
        ("{}", ("nonsense.gguf",), "nonsense.gguf is not a usable GGUF file"),
        ("{}", ("notes.txt",), "notes.txt is not a model that"),
        ("{}", ("empty",), "no model found in the folder empty"),
        ("{}", ("--model-dir", "nowhere"), "folder not found: nowhere"),
        ("{}", ("--api-key", "env:NOT_SET"), "the environment variable NOT_SET is not set"),
        ("{keys: [{key: a}]}", ("--api-key", "a"), "the same key is listed twice"),
        ("{}", ("--host", "0.0.0.0"), "start with --new-key"),
        ("server: {host: '[::1]'}", (), "'[::1]' is not an address"),
        ("{}", ("--host", "127.0.0.1:8000"), "is not an address"),
        ("{}", ("--host", "127.0.0.1.1"), "is not an address"),
        (
            "models: [{name: demo, path: x}]",
            ("demo.script.json", "--config", "roundhouse.yaml"),
            "demo is also in the configuration",
        ),
        ("{}", ("--host", "0.0.0.0"), "without API keys"),
        (
            "models: [{name: x, path: demo.script.json, format: hermess}]",
            (),
            "did you mean 'hermes_json'",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line_with_exit_status_2(
    config: str, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    script(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "nonsense.gguf").write_bytes(b"nonsense")
    (tmp_path / "notes.txt").write_text("nonsense")
    (tmp_path / "roundhouse.yaml").write_text(config)
    with command("serve", *arguments, folder=tmp_path) as start:
        assert start.status() == 2
    (error,) = start.log.text.splitlines()
    assert message in error


def is_waiting(pid: int, folder: Path) -> bool:
    """Whether all whole chunks are on the disk, and the main thread sleeps."""
    come = sum(part.stat().st_size for part in folder.rglob("*.part"))
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return come >= 2 * CHUNK and "State:\tS" in status


def interrupt(pid: int, thread: str) -> None:
    """SIGINT to the main thread, or to another."""
    threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    chosen = pid if thread == "main" else max(threads)
    assert (chosen == pid) == (thread == "main")
    assert ctypes.CDLL(None).tgkill(pid, chosen, signal.SIGINT) == 0


@pytest.mark.anyio
@pytest.mark.parametrize("thread", ["main", "other"])
async def test_a_download_before_the_start_can_be_interrupted(thread: str, tmp_path: Path) -> None:
    """The system may hand a signal to any thread, or just before the main one begins to wait."""
    async with standin({"model.gguf": bytes(9_000_000)}) as hub:
        hub.cut["model.gguf"] = 3_000_000
        elsewhere = {"HF_ENDPOINT": hub.url}
        with command("serve", "hf:org/small", folder=tmp_path, environment=elsewhere) as start:
            with anyio.fail_after(HANG):
                await hub.sent_cut.wait()
                while not is_waiting(start.process.pid, tmp_path):
                    await anyio.sleep(0.005)
            interrupt(start.process.pid, thread)
            status = await to_thread.run_sync(start.status)
    assert status == 130  # not that of a download that ended by itself


@pytest.mark.anyio
async def test_a_model_pulled_without_any_configuration_is_offered(
    serve: Serve, tmp_path: Path
) -> None:
    async with standin({"model.gguf": bundled.GGUF.read_bytes()}) as hub:
        server = serve(environment={"HF_ENDPOINT": hub.url})
        with command("pull", "hf:org/small", "--url", server.url, folder=tmp_path) as pull:
            assert await to_thread.run_sync(pull.status) == 0, pull.log.text
        assert (tmp_path / ".cache/roundhouse/models/small/model.gguf").is_file()
        listed = server.client.get("/v1/models").json()["data"]
        assert [one["id"] for one in listed] == [bundled.GGUF.stem, "small/model"]
    assert server.stop() == 0


@pytest.mark.anyio
async def test_a_pull_reports_its_choice_and_progress_and_its_name_can_be_run(
    serve: Serve, tmp_path: Path
) -> None:
    data = bundled.GGUF.read_bytes()
    async with standin({"m-Q4_K_M.gguf": data, "m-Q8_0.gguf": data}) as hub:
        server = serve(environment={"HF_ENDPOINT": hub.url})

        async def said(*arguments: str) -> tuple[str, str]:
            with command(*arguments, "--url", server.url, folder=tmp_path) as process:
                await to_thread.run_sync(process.status)
            return process.out.text, process.log.text

        output, progress = await said("pull", "hf:org/small")
        assert output == "downloaded org/small:Q4_K_M"
        assert "org/small:Q4_K_M was chosen (" in progress
        assert "downloading org/small: 100 %" in progress
        output, progress = await said("pull", "hf:org/small:q8_0")
        assert output == "downloaded org/small:Q8_0"
        assert "downloading org/small:q8_0: 100 %" in progress
        _, refusal = await said("pull", "hf:org/small:Q6_K")
        problem = "no file of org/small matches Q6_K; available: Q4_K_M, Q8_0"
        assert refusal == f"roundhouse: {problem}"
        for name in ("hf:org/small", "org/small:q8_0"):
            output, problem = await said("run", name, "Hello!")
            assert output.strip(), problem


def test_folders_that_are_configured_take_the_downloads() -> None:
    config = Config(model_dirs=("/srv/models",))
    assert with_downloads(config) is config


def test_a_stop_says_what_it_waits_for(serve: Serve, tmp_path: Path) -> None:
    server = serve(slow(tmp_path, grace=600))
    with server.client.stream("POST", CHAT, json={**HELLO, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        server.signal(signal.SIGINT)
        said = server.log.wait_for("stopping")
        text = "stopping: 1 answer has 600 s; Ctrl-C or a second signal ends them"
        assert (said["event"], said["answers"], said["seconds"]) == (text, 1, 600)
        server.signal(signal.SIGINT)
        assert any("the server is stopping" in line for line in lines)
    assert server.status() == 128 + signal.SIGINT


def attempt(server: Served, **environment: str) -> dict[str, Any]:
    """What the greeting's command gives, as a shell runs it."""
    command = server.out.line_with("try:").partition("try:")[2]
    done = subprocess.run(
        ["sh", "-c", command.replace("curl", "curl -fsS", 1)],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_greeting_s_command_works_as_it_is_printed(serve: Serve, tmp_path: Path) -> None:
    model = scripted(tmp_path, 'it\'s a "model"', say="Hello!")
    server = serve({"models": [model]}, "--host", "0.0.0.0", "--new-key")
    assert attempt(server)["choices"][0]["message"]["content"] == "Hello!"
    page = server.out.line_with("page:").partition("page:")[2].strip()
    assert httpx.get(page, follow_redirects=True, timeout=HANG).is_success
    assert httpx.get(f"{server.url}/v1/models", timeout=HANG).status_code == 401
    key = server.out.line_with("key:").split()[1]
    assert key.startswith("rh-")
    assert key not in server.log.text


def test_keys_of_the_command_line_stand_beside_the_configured_ones(
    serve: Serve, tmp_path: Path
) -> None:
    config = {"keys": [{"key": "configured"}], "models": [scripted(tmp_path, "demo")]}
    (tmp_path / "secret").write_text("from-a-file\n")
    arguments = ("--api-key", "given", "--api-key", "env:THE_KEY", "--api-key", "file:secret")
    server = serve(config, *arguments, environment={"THE_KEY": "from-a-variable"})
    server.signal(signal.SIGHUP)
    server.log.wait_for("configuration reloaded")
    told = {}
    for key in ("configured", "given", "from-a-variable", "from-a-file", "another"):
        headers = {"authorization": f"Bearer {key}"}
        told[key] = server.client.get("/v1/admin/settings", headers=headers).status_code
    assert told == {
        "configured": 403,
        "given": 200,
        "from-a-variable": 200,
        "from-a-file": 200,
        "another": 401,
    }
    assert attempt(server, ROUNDHOUSE_KEY="configured")["model"] == "demo"


@pytest.mark.parametrize("named", ["argument", "option"])
def test_a_folder_of_models_is_searched(named: str, serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "below").mkdir(parents=True)
    scripted(folder, "one")
    scripted(folder / "below", "two")
    server = serve({}, *(["models"] if named == "argument" else ["--model-dir", "models"]))
    listed = server.client.get("/v1/models").json()["data"]
    assert {one["id"] for one in listed} == {"one", "below/two"}


def test_the_command_line_s_models_are_served_instead_of_those_of_a_file_nobody_named(
    serve: Serve, tmp_path: Path
) -> None:
    model = scripted(tmp_path, "one")
    scripted(tmp_path, "two")
    config = {"models": [{**model, "name": "two"}], "default_model": "two", "apis": {"tgi": False}}
    server = serve(config, "one.script.json", "two.script.json")
    assert [one["id"] for one in server.client.get("/v1/models").json()["data"]] == ["one", "two"]
    assert server.client.get("/info").status_code == 404
    told = server.out.line_with("config:").strip()
    assert told == f"config: {tmp_path / 'roundhouse.yaml'}, without its models"


def test_a_model_to_preload_that_can_not_fit_is_exit_status_2(tmp_path: Path) -> None:
    model = {**scripted(tmp_path, "big", size_bytes=10**15), "preload": True}
    config = {"server": {"port": 0}, "models": [model]}
    (tmp_path / "roundhouse.yaml").write_text(json.dumps(config))
    with command("serve", folder=tmp_path) as start:
        assert start.status() == 2
    assert "roundhouse: preload: big needs " in start.log.text
    assert "listens on" not in start.out.text
