"""Models that are commands, on a server as users start it: their processes come and go with them,
whatever they do, and nothing of them is left.
"""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

import bundled
from backends.places.command.container import free_port
from tests.hang import HANG
from tests.served import ROOT, Served, events, scripted, served

CHAT = "/v1/chat/completions"
STANDIN = ROOT / "tests" / "backends" / "places" / "command" / "standin.py"
ANSWER = "Here is the answer."


class Commands:
    """Writes models that are commands into configurations, and knows their processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids = folder / "pids"

    def model(self, name: str, faults: str = "", **rest: Any) -> dict[str, Any]:
        """An entry of `models`: the stand-in with these faults. `rest`: further options of the
        engine.
        """
        words = [sys.executable, "-I", "-S", str(STANDIN), "--pids", str(self.pids)]
        command = f"{shlex.join(words)} --port {{port}} {faults}"
        return {"name": name, "command": command, "options": rest}

    def processes(self) -> list[psutil.Process]:
        """Those that are still there, of all that ever began."""
        return [*self._there()]

    def _there(self) -> Iterator[psutil.Process]:
        for pid in self.pids.read_text().split() if self.pids.exists() else ():
            with suppress(psutil.Error):  # it is gone, or goes
                process = psutil.Process(int(pid))
                if str(STANDIN) in " ".join(process.cmdline()):
                    yield process

    def assert_gone(self) -> None:
        """They are, or go now."""
        _, alive = psutil.wait_procs(self.processes(), HANG)
        assert alive == []


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """At the end none of their processes may be left: `serve` has stopped by then."""
    made = Commands(tmp_path)
    yield made
    made.assert_gone()


def start(commands: Commands, *models: dict[str, Any], **rest: Any) -> Any:
    """As the fixture `serve`, but it ends before `commands` looks."""
    return served(commands.folder, {"models": [*models], **rest})


def chat(server: Served, model: str, said: str = "Hello!") -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": said}]}
    return server.client.post(CHAT, json=body)


def text(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def error(answer: Any) -> str:
    message: str = answer.json()["error"]["message"]
    return message


def listed(server: Served) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = server.client.get("/v1/models").json()["data"]
    return models


def is_said(line: str) -> bool:
    """A slow start says ": loading" first."""
    return bool(line) and not line.startswith(":")


def test_a_command_is_started_for_a_request_and_stopped_when_it_is_unloaded(
    commands: Commands,
) -> None:
    model = {**commands.model("far", "--not-yet 3"), "aliases": ["other"]}
    with start(commands, model) as server:
        assert commands.processes() == []
        (one,) = listed(server)
        assert one["state"] == "unloaded"
        assert text(chat(server, "other")).startswith(ANSWER)
        (process,) = commands.processes()
        (one,) = listed(server)
        assert (one["backend"], one["state"]) == ("command", "loaded")
        assert server.log.wait_for("output")["line"] == "listens, with 1 thread"
        server.client.post("/models/unload", json={"model": "far"})
        server.log.wait_for("model unloaded")
        assert not process.is_running()
        assert text(chat(server, "far")).startswith(ANSWER)


def test_a_command_that_ends_while_it_loads_is_refused_with_its_last_words(
    commands: Commands,
) -> None:
    model = commands.model("far", "--dies 'no such model file'")
    with start(commands, model) as server:
        answer = chat(server, "far")
        assert answer.status_code == 503
        assert "its process exited with status 1: no such model file" in error(answer)
        (one,) = listed(server)
        assert one["state"] == "failed"
        assert "no such model file" in one["why_failed"]


def test_a_command_that_cannot_be_started_is_refused_with_the_reason(commands: Commands) -> None:
    models = [
        {"name": "nothing", "command": "/no/such/program --port {port}"},
        {**commands.model("lost"), "options": {"cwd": str(commands.folder / "nowhere")}},
    ]
    with start(commands, *models) as server:
        text = "it can't be started: No such file or directory"
        assert text in error(chat(server, "nothing"))
        assert "No such file or directory" in error(chat(server, "lost"))


def test_a_server_that_never_answers_its_health_route_is_stopped_in_time(
    commands: Commands,
) -> None:
    with start(commands, commands.model("far", "--never-up", load_timeout=1.0)) as server:
        answer = chat(server, "far")
        assert answer.status_code == 503
        assert "didn't answer at /health within 1 s (load_timeout): listens" in error(answer)
        commands.assert_gone()


@pytest.mark.slow
def test_a_health_route_that_there_is_none_of_is_said(commands: Commands) -> None:
    wrong = commands.model("far", load_timeout=5.0, health="/nowhere")
    with start(commands, wrong) as server:
        assert "didn't answer at /nowhere" in error(chat(server, "far"))
        server.log.wait_for("no such health route")
        (said,) = server.log.records("no such health route")
        assert said["health"] == "/nowhere"


def test_a_load_that_nobody_waits_for_any_more_is_given_up(commands: Commands) -> None:
    with start(commands, commands.model("far", "--never-up")) as server:
        body = {"model": "far", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        with server.client.stream("POST", CHAT, json=body):
            server.log.wait_for("output")
        server.log.wait_for("load cancelled")
        commands.assert_gone()


def test_a_process_that_ignores_sigterm_is_killed_with_all_that_it_started(
    commands: Commands,
) -> None:
    model = commands.model("far", "--ignores-sigterm --forks", stop_timeout=0.2)
    with start(commands, model) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        assert len(commands.processes()) == 3, "one left its group, one its parent"
        server.client.post("/models/unload", json={"model": "far"})
        server.log.wait_for("model unloaded")
        assert commands.processes() == []


def test_a_death_breaks_the_answers_with_its_reason_and_the_model_comes_back(
    commands: Commands,
) -> None:
    options = {"swap": {"backoff": 0.0}}
    with start(commands, commands.model("far"), **options) as server, ThreadPoolExecutor(1) as pool:
        body = {"model": "far", "messages": [{"role": "user", "content": "hold"}], "stream": True}
        with server.client.stream("POST", CHAT, json=body) as answer:
            lines = answer.iter_lines()
            assert next(filter(is_said, lines)).startswith("data: ")
            dying = pool.submit(chat, server, "far", "die")
            rest = "\n".join([*lines])
            assert "was ended by SIGKILL" in rest
            assert "[DONE]" not in rest
        refused = dying.result()
        assert refused.status_code == 502
        assert "SIGKILL: " in error(refused)
        assert "CUDA error: an illegal memory access" in error(refused)
        server.log.wait_for("model unloaded", lambda record: record["why"] == "broken")
        assert text(chat(server, "far")).startswith(ANSWER)


def test_a_death_that_nobody_sees_is_noticed_before_the_next_request(commands: Commands) -> None:
    with start(commands, commands.model("far"), swap={"backoff": 0.0}) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        (process,) = commands.processes()
        process.kill()
        server.log.wait_for("the model broke")
        assert text(chat(server, "far")).startswith(ANSWER)


def test_a_model_that_broke_rests_before_it_is_started_again(commands: Commands) -> None:
    with start(commands, commands.model("far"), swap={"backoff": 1000.0}) as server:
        assert "SIGKILL" in error(chat(server, "far", "die at once"))
        answer = chat(server, "far")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 900
        assert "SIGKILL" in error(answer)


@pytest.mark.parametrize("faults", ["", "--ignores-sigterm --forks"])
def test_nothing_is_left_of_a_command_when_the_server_is_killed(
    commands: Commands, faults: str
) -> None:
    with start(commands, commands.model("far", faults, stop_timeout=0.2)) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        assert commands.processes()
        os.kill(server.process.pid, signal.SIGKILL)
        commands.assert_gone()


def test_nothing_is_left_of_a_command_whose_guardian_is_killed(commands: Commands) -> None:
    with start(commands, commands.model("far"), swap={"backoff": 0.0}) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        (process,) = commands.processes()
        guardian = process.parent()
        assert guardian is not None
        guardian.kill()
        server.log.wait_for("the model broke")
        commands.assert_gone()
        assert text(chat(server, "far")).startswith(ANSWER)


def test_the_server_stops_its_commands_before_it_ends(commands: Commands) -> None:
    with start(commands, commands.model("far", "--forks", stop_timeout=0.2)) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        assert server.stop() == 0
        assert commands.processes() == []


def test_what_a_command_prints_is_read_to_the_end_and_logged_within_bounds(
    commands: Commands,
) -> None:
    with start(commands, commands.model("far", "--prints 20000")) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        assert server.stop() == 0
        dropped = [one["lines"] for one in server.log.records("output lines dropped")]
        shown = [one for one in server.log.records("output") if "line" in one]
        assert dropped, "more than a log takes"
        assert len(shown) + sum(dropped) == 20_001, (
            "and none is lost: the last says that it listens"
        )


def test_only_we_know_the_key_of_its_api(commands: Commands) -> None:
    model = commands.model("far", "--key {key}")
    with start(commands, model) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        (process,) = commands.processes()
        words = process.cmdline()
        port, key = (words[words.index(word) + 1] for word in ("--port", "--key"))
        asked = f"http://127.0.0.1:{port}/v1/chat/completions"
        assert server.client.post(asked, json={}).status_code == 401
        assert key not in server.log.text


def test_a_model_that_is_a_command_embeds_and_ranks(commands: Commands) -> None:
    with start(commands, commands.model("far")) as server:
        body: dict[str, Any] = {"model": "far", "input": ["one", "two"]}
        found = server.client.post("/v1/embeddings", json=body).json()
        assert [one["embedding"] for one in found["data"]] == [[1.0, 0.0]] * 2
        body = {"model": "far", "query": "one", "documents": ["two", "three"]}
        ranked = server.client.post("/v1/rerank", json=body).json()["results"]
        assert [one["relevance_score"] for one in ranked] == [1.0, 0.5]


def test_its_server_gets_the_name_and_the_parameters_that_the_configuration_says(
    commands: Commands,
) -> None:
    model = commands.model("far", "--model org/inner", drop=["min_p"], set={"top_k": 7})
    with start(commands, model) as server:
        body = {"model": "far", "messages": [{"role": "user", "content": "what"}]}
        answer = server.client.post(CHAT, json={**body, "min_p": 0.1, "temperature": 0.5})
        got = json.loads(text(answer).removeprefix(ANSWER))
        assert (got["model"], got["top_k"], got["temperature"]) == ("org/inner", 7, 0.5)
        assert "min_p" not in got
        assert answer.headers["x-roundhouse-ignored"] == "min_p"


def test_no_more_requests_run_at_a_time_than_its_limit(commands: Commands) -> None:
    model = commands.model("far", max_concurrent=1)
    with start(commands, model) as server, ThreadPoolExecutor(1) as pool:
        body = {"model": "far", "messages": [{"role": "user", "content": "hold"}], "stream": True}
        with server.client.stream("POST", CHAT, json=body) as answer:
            lines = answer.iter_lines()
            assert next(filter(is_said, lines)).startswith("data: ")
            second = pool.submit(chat, server, "far")
            (one,) = listed(server)
            assert one["in_use"] == 1
            assert not second.done()
        assert text(second.result()).startswith(ANSWER)


@pytest.mark.slow
def test_a_models_memory_is_promised_until_it_is_measured(commands: Commands) -> None:
    """It is the memory of its processes, which are promised to nobody else meanwhile."""
    size = 64 << 20
    big = commands.model("big", "--megabytes 64 --forks", memory={"cpu": size * 3})
    huge = commands.model("huge", memory={"cpu": size * 9})
    swap, engines = {"memory": {"cpu": size * 4}}, {"host": "worker"}
    with start(commands, big, huge, swap=swap, engines=engines) as server:
        assert "huge needs 576.0 MiB on cpu, which has 256.0 MiB" in error(chat(server, "huge"))
        (before,) = (one for one in listed(server) if one["id"] == "big")
        assert before["devices"] == {"cpu": size * 3}
        assert text(chat(server, "big")).startswith(ANSWER)
        (after,) = (one for one in listed(server) if one["id"] == "big")
        assert size < after["devices"]["cpu"] < size * 2
        assert "(measured)" in after["memory"]


def test_commands_and_engines_take_turns_in_the_same_memory(commands: Commands) -> None:
    """A budget that holds one of them: answers under way end whole, and the memory is free before
    the other comes.
    """
    size = 100 << 20
    inner = scripted(commands.folder, "inner", "word " * 20, size_bytes=size, tokens_per_second=200)
    far = commands.model("far", "--megabytes 60", memory={"cpu": size})
    swap = {"memory": {"cpu": size * 3 // 2}, "min_stay": 0.0}
    with start(commands, far, inner, swap=swap) as server, ThreadPoolExecutor(12) as pool:
        wanted = ["far", "inner", "far"] * 4
        answers = list(pool.map(lambda model: text(chat(server, model)), wanted))
        expected = {"far": f"{ANSWER}Hello!", "inner": "word " * 20}
        assert [one.strip() for one in answers] == [expected[model].strip() for model in wanted]
        assert_one_at_a_time(server, {"far", "inner"})


def assert_one_at_a_time(server: Served, names: set[str]) -> None:
    loads = [
        (record["event"], record["model"])
        for record in server.log.records("model ")
        if record["event"] in ("model loaded", "model unloaded")
    ]
    assert {name for _, name in loads} == names
    held: set[str] = set()
    for event, name in loads:
        (held.add if event == "model loaded" else held.remove)(name)
        assert len(held) <= 1


@pytest.mark.slow
def test_the_page_s_tabbyapi_and_two_files_take_turns(commands: Commands) -> None:
    """As on a card of 24 GB, in main memory and smaller."""
    page = (ROOT / "docs" / "commands.md").read_text()
    example = next(one for one in page.split("```yaml\n") if "exl3" in one).partition("```")[0]
    models = yaml.safe_load(example)["models"]
    size = 90 << 20
    for model in models:
        if "command" in model:
            (device,) = model["options"]["memory"]
            assert device == "cuda:0"
            model.update(commands.model("exl3", "--megabytes 60", memory={"cpu": size}))
        else:
            model["path"] = str(bundled.GGUF)
    swap = {"memory": {"cpu": size}, "min_stay": 0.0}
    with start(commands, *models, swap=swap) as server:
        for name in ("exl3", "coder", "chat", "exl3", "chat", "coder"):
            assert chat(server, name).status_code == 200
        assert_one_at_a_time(server, {"exl3", "coder", "chat"})


def test_an_idle_command_is_stopped(commands: Commands) -> None:
    model = {**commands.model("far"), "ttl": 0.1}
    with start(commands, model) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        assert server.log.wait_for("model unloaded")["why"] == "idle"
        commands.assert_gone()


@pytest.mark.slow
def test_an_answer_that_takes_longer_than_the_idle_time_ends_whole(commands: Commands) -> None:
    model = {**commands.model("far"), "ttl": 0.1}
    body = {"model": "far", "messages": [{"role": "user", "content": "hold"}], "stream": True}
    with start(commands, model) as server:
        with server.client.stream("POST", CHAT, json=body) as answer:
            lines = filter(is_said, answer.iter_lines())
            assert all(line.startswith("data: {") for line in islice(lines, 30)), "20 ms for each"
            assert len(commands.processes()) == 1
        assert server.log.wait_for("model unloaded")["why"] == "idle"


def test_who_leaves_within_an_answer_ends_nobody_else_s(commands: Commands) -> None:
    body = {"model": "far", "messages": [{"role": "user", "content": "hold"}], "stream": True}
    with start(commands, commands.model("far", max_concurrent=1)) as server:
        with server.client.stream("POST", CHAT, json=body) as answer:
            next(answer.iter_lines())
            before = commands.processes()
        assert text(chat(server, "far")).startswith(ANSWER)
        assert commands.processes() == before


@pytest.mark.slow
def test_many_first_requests_start_one_process(commands: Commands) -> None:
    with (
        start(commands, commands.model("far", "--not-yet 3")) as server,
        ThreadPoolExecutor(10) as pool,
    ):
        answers = [*pool.map(lambda number: text(chat(server, "far", str(number))), range(10))]
        assert answers == [f"{ANSWER}{number}" for number in range(10)]
        assert len(commands.pids.read_text().split()) == 1


def test_commands_with_one_port_take_turns(commands: Commands) -> None:
    """The one is gone before the other listens."""
    port = free_port()
    models = [commands.model(name, port=port, memory={"group:0": 1}) for name in ("one", "two")]
    swap = {"memory": {"group:0": 1}, "min_stay": 0.0}
    with start(commands, *models, swap=swap) as server, ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda model: text(chat(server, model)), ["one", "two"] * 3)
        assert {*answers} == {f"{ANSWER}Hello!"}


@pytest.mark.slow
def test_a_server_that_stops_gives_up_a_command_that_never_comes_up(
    commands: Commands,
) -> None:
    model = commands.model("far", "--never-up", load_timeout=HANG * 10)
    grace = {"shutdown_grace": 0.0}
    with start(commands, model, server=grace) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(chat, server, "far")
        server.log.wait_for("output")
        assert server.stop() == 0
        assert answer.result().status_code == 503
        assert commands.processes() == []


def test_a_command_that_ends_without_an_error_while_it_loads_is_no_server(
    commands: Commands,
) -> None:
    model = {"name": "far", "command": "true {port}", "options": {}}
    with start(commands, model) as server:
        assert "its process exited with status 0" in error(chat(server, "far"))


def test_one_figure_of_memory_is_promised_until_it_is_measured(commands: Commands) -> None:
    big = commands.model("big", "--megabytes 64", memory="192MiB")
    huge = commands.model("huge", memory="576MiB")
    swap = {"memory": {"cpu": "256MiB"}}
    with start(commands, big, huge, swap=swap) as server:
        assert "huge needs 576.0 MiB on cpu, which has 256.0 MiB" in error(chat(server, "huge"))
        (before,) = (one for one in listed(server) if one["id"] == "big")
        assert before["devices"] == {"cpu": 192 << 20}
        assert text(chat(server, "big")).startswith(ANSWER)


def test_a_command_that_changes_is_started_anew_when_its_answers_have_ended(
    commands: Commands,
) -> None:
    with start(commands, commands.model("far")) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        (process,) = commands.processes()
        config = json.loads((commands.folder / "roundhouse.yaml").read_text())
        config["models"] = [commands.model("far", "--model new")]
        (commands.folder / "roundhouse.yaml").write_text(json.dumps(config))
        assert server.client.post("/v1/admin/reload").json()["models"]["reloaded"] == ["far"]
        assert '"new"' in text(chat(server, "far", "what"))
        assert not process.is_running()


@pytest.mark.slow
def test_a_roundhouse_is_a_command_too(commands: Commands) -> None:
    home = commands.folder / "home"  # where it finds no roundhouse.yaml: that would be ours
    home.mkdir()
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(home)}
    command = f"{sys.executable} -m gateway.cli serve {{path}} --port {{port}}"
    model = {"name": "far", "command": command, "path": str(bundled.GGUF)}
    options = {"env": environment, "cwd": str(home)}
    with start(commands, {**model, "options": options}) as server:
        body = {"model": "far", "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
        answer = server.client.post(CHAT, json={**body, "temperature": 0})
        deltas = [event["choices"][0]["delta"] for event in events(answer.text)]
        assert "".join(one.get("reasoning_content") or "" for one in deltas)
        assert "".join(one.get("content") or "" for one in deltas)
        (one,) = listed(server)
        assert one["context_length"] == 2048, "its list says so"
        body = {"model": "far", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        assert server.client.post("/v1/messages", json=body).json()["type"] == "message"
        process = psutil.Process(server.process.pid).children(recursive=True)
        assert server.stop() == 0
        assert psutil.wait_procs(process, HANG)[1] == []


def test_no_request_can_name_a_command(commands: Commands) -> None:
    """An administrator's options of a load neither, nor those of a copy."""
    with start(commands, commands.model("far"), scripted(commands.folder, "near")) as server:
        for name in ("command", "env", "cwd", "shell", "health", "port"):
            for model in ("far", "near"):
                order = {"model": model, "options": {name: "/bin/true"}}
                refused = server.client.post("/v1/admin/models/load", json=order)
                assert refused.status_code == 400, (model, name, refused.text)
                copy = {"model": model, "name": "copy", "options": {name: "/bin/true"}}
                refused = server.client.post("/v1/admin/models/duplicate", json=copy)
                assert refused.status_code == 400, (model, name, refused.text)
        shown = server.client.get("/v1/admin/models/options", params={"model": "far"}).json()
        assert "command" not in [option["name"] for option in shown["options"]]
        assert commands.processes() == []


def test_what_a_command_is_given_is_masked_in_the_settings(commands: Commands) -> None:
    model = commands.model("far", env={"TOKEN": "s3cret"}, set={"token": "s3cret"})
    with start(commands, model) as server:
        shown = server.client.get("/v1/admin/settings")
        assert shown.status_code == 200
        assert "s3cret" not in shown.text


def test_another_model_answers_where_the_command_does_not_come_up(commands: Commands) -> None:
    far = commands.model("far", "--dies 'no card'", fallbacks=["near"])
    near = scripted(commands.folder, "near", "From the other one.")
    with start(commands, far, near) as server:
        answer = chat(server, "far")
        assert text(answer) == "From the other one."
        assert answer.headers["x-roundhouse-model"] == "near"


def test_a_command_that_can_sleep_keeps_its_process_while_another_has_its_memory(
    commands: Commands,
) -> None:
    """A budget for one of them; what is parked is charged to main memory, and is awake sooner."""
    options = {"sleep": "/sleep?level=1", "wake": "/wake_up", "parked_memory": "30MiB"}
    turns = {"group:0": 1, "cpu": 60 << 20}
    first = commands.model("first", "--megabytes 40", memory=turns, **options)
    second = commands.model("second", "--megabytes 40", memory=turns)
    swap = {"memory": {"cpu": 200 << 20, "group:0": 1}, "min_stay": 0.0}
    with start(commands, first, second, swap=swap) as server:
        assert text(chat(server, "first")).startswith(ANSWER)
        (process,) = commands.processes()
        assert text(chat(server, "second")).startswith(ANSWER)
        parked = server.log.wait_for("model parked")
        assert parked["model"] == "first"
        assert process.is_running()
        (one,) = (model for model in listed(server) if model["id"] == "first")
        assert one["state"] == "unloaded"
        assert set(one["devices"]) == {"cpu"}
        assert 0 < one["devices"]["cpu"] < 40 << 20, "it gave the most of it back"
        assert text(chat(server, "first")).startswith(ANSWER)
        assert process.is_running(), "it was woken"
        server.client.post("/models/unload", json={"model": "first"})
        server.log.wait_for("model unloaded", lambda record: record["model"] == "first")
        assert not process.is_running()


def test_a_parked_command_leaves_where_its_main_memory_is_needed(commands: Commands) -> None:
    options = {"sleep": "/sleep", "wake": "/wake_up", "parked_memory": "30MiB"}
    first = commands.model("first", memory={"group:0": 1, "cpu": 10 << 20}, **options)
    second = commands.model("second", memory={"group:0": 1, "cpu": 10 << 20})
    big = scripted(commands.folder, "big", size_bytes=95 << 20)
    swap = {"memory": {"cpu": 100 << 20, "group:0": 1}, "min_stay": 0.0}
    with start(commands, first, second, big, swap=swap) as server:
        assert text(chat(server, "first")).startswith(ANSWER)
        assert text(chat(server, "second")).startswith(ANSWER)
        server.log.wait_for("model parked")
        assert chat(server, "big").status_code == 200
        commands.assert_gone()
        assert text(chat(server, "first")).startswith(ANSWER)


def test_a_command_that_does_not_sleep_is_stopped(commands: Commands) -> None:
    options = {"sleep": "/no/such/route", "wake": "/wake_up"}
    first = commands.model("first", memory={"group:0": 1}, **options)
    second = commands.model("second", memory={"group:0": 1})
    swap = {"memory": {"group:0": 1}, "min_stay": 0.0}
    with start(commands, first, second, swap=swap) as server:
        assert text(chat(server, "first")).startswith(ANSWER)
        assert text(chat(server, "second")).startswith(ANSWER)
        server.log.wait_for("a model can't be parked")
        assert len(commands.processes()) == 1
        assert text(chat(server, "first")).startswith(ANSWER)


def test_a_parked_command_that_ends_is_started_anew(commands: Commands) -> None:
    options = {"sleep": "/sleep", "wake": "/wake_up"}
    first = commands.model("first", memory={"group:0": 1}, **options)
    second = commands.model("second", memory={"group:0": 1})
    swap = {"memory": {"group:0": 1}, "min_stay": 0.0}
    with start(commands, first, second, swap=swap) as server:
        assert text(chat(server, "first")).startswith(ANSWER)
        (process,) = commands.processes()
        assert text(chat(server, "second")).startswith(ANSWER)
        server.log.wait_for("model parked")
        process.kill()
        server.log.wait_for("the model broke")
        assert text(chat(server, "first")).startswith(ANSWER)


def test_a_process_may_take_its_time_to_end_within_its_timeout(commands: Commands) -> None:
    done = commands.folder / "done"
    model = commands.model("far", f"--tidies {done}", stop_timeout=HANG)
    with start(commands, model) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        server.client.post("/models/unload", json={"model": "far"})
        server.log.wait_for("model unloaded")
        assert done.read_text() == "done", "it was not killed"


def test_a_request_while_it_is_stopped_waits_and_gets_a_new_one(commands: Commands) -> None:
    done = commands.folder / "done"
    model = commands.model("far", f"--tidies {done}", stop_timeout=HANG)
    with start(commands, model) as server, ThreadPoolExecutor(1) as pool:
        assert text(chat(server, "far")).startswith(ANSWER)
        (before,) = commands.processes()
        unloading = pool.submit(server.client.post, "/models/unload", json={"model": "far"})
        while listed(server)[0]["state"] == "loaded":
            pass
        assert text(chat(server, "far")).startswith(ANSWER)
        assert unloading.result().is_success
        (after,) = commands.processes()
        assert before.pid != after.pid


def test_a_wrapper_in_a_shell_leaves_nothing_behind(commands: Commands) -> None:
    words = [sys.executable, "-I", "-S", str(STANDIN), "--pids", str(commands.pids)]
    line = f"{shlex.join(words)} --port $PORT --ignores-sigterm & wait"
    options = {"shell": True, "stop_timeout": 0.2}
    with start(commands, {"name": "far", "command": line, "options": options}) as server:
        assert text(chat(server, "far")).startswith(ANSWER)
        server.client.post("/models/unload", json={"model": "far"})
        server.log.wait_for("model unloaded")
        assert commands.processes() == []


def test_loads_and_unloads_of_many_at_a_time_end_in_order(commands: Commands) -> None:
    with start(commands, commands.model("far")) as server, ThreadPoolExecutor(6) as pool:
        calls = ["load", "unload"] * 6
        orders = [
            pool.submit(server.client.post, f"/models/{call}", json={"model": "far"})
            for call in calls
        ]
        assert all(order.result().status_code in (200, 503) for order in orders)
        assert text(chat(server, "far")).startswith(ANSWER)
        assert len(commands.processes()) == 1


def test_any_route_of_its_server_is_passed_on(commands: Commands) -> None:
    model = {**commands.model("a/b", "--key {key}"), "aliases": ["short"]}
    with start(commands, model) as server:
        headers = {"x-mine": "yes", "authorization": "Bearer anything"}
        for name in ("a/b", "a%2Fb", "short"):
            url = f"/upstream/{name}/told?a=%20b"
            answer = server.client.post(url, json={"x": 1}, headers=headers)
            assert answer.status_code == 202, answer.text
            told = answer.json()
            assert (told["path"], told["body"]) == ("/told?a=%20b", {"x": 1})
            assert told["headers"]["x-mine"] == "yes"
            assert "anything" not in told["headers"]["authorization"]
        assert server.client.get("/upstream/short/health").json() == {"status": "ok"}
        assert server.client.delete("/upstream/short/health").status_code == 501
        running = server.client.get("/running").json()["running"]
        assert [one["model"] for one in running] == ["a/b"]


def test_an_answer_that_its_server_cuts_is_cut(commands: Commands) -> None:
    expected = ("without completing", "command ended")
    with served(commands.folder, {"models": [commands.model("a")]}, expected=expected) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            server.client.post("/upstream/a/half", json={})
        cut = server.log.wait_for("a command's answer was cut")
        assert "The model broke" in cut["reason"]
