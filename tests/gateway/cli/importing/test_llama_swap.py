"""llama-swap's configurations as ours: what they mean stays, and what has no equal is said."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import bundled
from config.errors import ConfigError
from config.loader import load_config
from gateway.cli import main
from gateway.cli.importing.imported import Imported, written
from gateway.cli.importing.llama_swap import translated
from tests.served import ROOT, served

STANDIN = ROOT / "tests" / "backends" / "places" / "command" / "standin.py"
ENVIRONMENT = {"HOME": "/home/u", "TOKEN": "s3cret"}


def imported(text: str) -> Imported:
    """And it is a configuration of ours."""
    found = translated(text, "config.yaml", ENVIRONMENT)
    load_config(Path("/nowhere/roundhouse.yaml"), ENVIRONMENT, text=written(found.config))
    return found


def model(text: str) -> dict[str, Any]:
    """The one in `text`."""
    (one,) = imported(text).config["models"]
    found: dict[str, Any] = one
    return found


def test_the_smallest_configuration() -> None:
    text = "models: {model1: {cmd: 'llama-server --port ${PORT} --model /path/to/model.gguf'}}"
    assert imported(text) == Imported(
        {"models": [{"name": "model1", "path": "/path/to/model.gguf"}]}, ()
    )


def test_on_request_it_stays_a_command_whose_file_is_known() -> None:
    line = "llama-server --port ${PORT} --model /path/to/model.gguf"
    config = translated(
        f"models: {{model1: {{cmd: '{line}'}}}}", "config.yaml", ENVIRONMENT, commands=True
    ).config
    assert config == {
        "models": [{"name": "model1", "path": "/path/to/model.gguf", "command": line}],
        "engines": {"command": {"load_timeout": 120}},
    }


def test_settings_of_a_model_that_becomes_one_of_ours() -> None:
    found = imported("""
macros: {server: "/opt/llama.cpp/llama-server --host 0.0.0.0 --port ${PORT}"}
models:
  coder:
    cmd: |
      ${server}
      # the large one
      -m /models/coder.gguf -c 32768 -np 2
      -ngl 99 --no-webui --grammar-file /x.gbnf
    aliases: [gpt-4o]
    ttl: 0
    env: [CUDA_VISIBLE_DEVICES=1]
    concurrencyLimit: 3
    checkEndpoint: /v1/models
    filters:
      stripParams: temperature
      setParams: {repeat_penalty: 1.1, max_tokens: 5}
      setParamsByID:
        "${MODEL_ID}:high": {chat_template_kwargs: {reasoning_effort: high}, temperature: 0.2}
""")
    assert found.config["models"] == [
        {
            "name": "coder",
            "path": "/models/coder.gguf",
            "options": {"max_concurrent": 3, "cache_tokens": 32768, "context_length": 16384},
            "sampling": {"repetition_penalty": 1.1},
            "aliases": ["gpt-4o"],
            "ttl": -1,
        },
        {
            "name": "coder:high",
            "of": "coder",
            "sampling": {"temperature": 0.2},
            "template_kwargs": {"reasoning_effort": "high"},
        },
    ]
    assert found.notes == (
        "models.coder.cmd (line 5): --grammar-file /x.gbnf has no equal",
        "models.coder.filters.setParams: max_tokens can be sent by clients only",
        "models.coder.filters.stripParams: what clients send counts",
        "models.coder.env: CUDA_VISIBLE_DEVICES=1: not set for a model here",
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("llama-server --port ${PORT}", "it names no file"),
        ("llama-server --port ${PORT} -m /a.gguf -c many", "-c many: not a value of it"),
        ("llama-server --port ${PORT} /a.gguf", "'/a.gguf' belongs to no flag"),
    ],
)
def test_a_line_that_says_too_little_stays_a_command(line: str, reason: str) -> None:
    found = imported(f"models: {{a: {{cmd: '{line}'}}}}")
    assert found.config["models"][0]["command"] == line
    assert found.notes[0].startswith(f"models.a.cmd (line 1): it stays a command: {reason}")


def test_containers_and_shells_stay_commands() -> None:
    for line in (
        "docker run -p ${PORT}:80 x llama-server -m a.gguf",
        "sh -c 'llama-server ${PORT}'",
    ):
        assert model(f"models: {{a: {{cmd: {json.dumps(line)}}}}}")["command"] == line


def test_macros_are_replaced_from_the_last_to_the_first_and_a_models_own_win() -> None:
    text = """
macros:
  server: llama-server --port ${PORT}
  context: 4096
  arguments: --ctx-size ${context} ${server}
models:
  far:
    macros: {context: 8192, heat: 0.5, on: true}
    cmd: |
      # ${server} in a comment is none
      ${arguments} --home ${env.HOME} --name ${MODEL_ID}
    filters:
      setParams: {temperature: "${heat}", text: "heat ${heat}", flag: "${on}"}
"""
    far = model(text)
    expected = "--ctx-size 8192 llama-server --port ${PORT} --home /home/u --name far"
    assert far["command"] == expected
    assert far["options"]["set"] == {"temperature": 0.5, "text": "heat 0.5", "flag": True}


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("env: [A=b, 'C=d=e']", {"options": {"env": {"A": "b", "C": "d=e"}}}),
        ("checkEndpoint: /up", {"options": {"health": "/up"}}),
        ("checkEndpoint: none", {"options": {"health": "none"}}),
        ("checkEndpoint: /health", {}),
        ("ttl: 60", {"ttl": 60}),
        ("ttl: 0", {"ttl": -1}),
        ("ttl: -1", {}),
        ("unloadTimeout: 30", {"options": {"stop_timeout": 30}}),
        ("concurrencyLimit: 3", {"options": {"max_concurrent": 3}}),
        ("concurrencyLimit: 0", {}),
        ("useModelName: org/m", {"options": {"served_name": "org/m"}}),
        ("aliases: [a, b]", {"aliases": ["a", "b"]}),
        ("filters: {stripParams: 'top_k, b,model,'}", {"options": {"drop": ["top_k", "b"]}}),
        ("filters: {strip_params: top_k}", {"options": {"drop": ["top_k"]}}),
        ("capabilities: {in: [image]}", {"options": {"capabilities": ["vision"]}}),
        ("capabilities: {tools: true}", {"options": {"capabilities": ["tools"]}}),
        ("capabilities: {context: 99}", {"options": {"context_length": 99}}),
        ("timeouts: {responseHeader: 60}", {"options": {"first_byte_timeout": 60}}),
    ],
)
def test_a_models_settings(setting: str, found: dict[str, Any]) -> None:
    far = model(f"models: {{far: {{cmd: 'server ${{PORT}}', {setting}}}}}")
    assert far == {"name": "far", "command": "server ${PORT}", **found}


def test_a_command_with_a_port_of_its_own() -> None:
    far = model("models: {far: {cmd: server --port 8999, proxy: 'http://127.0.0.1:8999'}}")
    assert far["options"] == {"port": 8999}


@pytest.mark.parametrize(
    ("setting", "note"),
    [
        ("unlisted: true", "models.far.unlisted: every model is listed"),
        ("description: text", "models.far.description: "),
        ("compat: {ignoreWebsockets: true}", "models.far.compat: "),
        ("cmdStop: docker stop far", "models.far.cmdStop: commands are stopped by SIGTERM"),
        ("filters: {setParamsByID: {far:high: {a: 1}}}", "models.far.filters.setParamsByID: "),
        ("proxy: 'http://10.0.0.1:${PORT}'", "models.far.proxy: "),
        ("something: new", "models.far.something: it is not known"),
    ],
)
def test_what_has_no_equal_is_said(setting: str, note: str) -> None:
    notes = imported(f"models: {{far: {{cmd: 'server ${{PORT}}', {setting}}}}}").notes
    assert [one for one in notes if one.startswith(note)], notes


def test_docker_is_stopped_by_the_signal_that_its_client_passes_on() -> None:
    text = "models: {far: {cmd: 'docker run --rm -p ${PORT}:80 x', cmdStop: docker stop far}}"
    (note,) = imported(text).notes
    assert "SIGTERM goes to `docker run`" in note


def grouped(groups: str, names: str) -> dict[str, tuple[Any, Any]]:
    """Whom each model takes turns with, and whether it is pinned."""
    models = ", ".join(f"{name}: {{cmd: 'server ${{PORT}}'}}" for name in names)
    config = imported(f"models: {{{models}}}\n{groups}").config
    return {one["name"]: (one.get("one_of"), one.get("pinned")) for one in config["models"]}


def test_without_groups_one_command_runs_at_a_time() -> None:
    assert grouped("", "ab") == dict.fromkeys("ab", ("ungrouped", None))
    files = "models: {a: {cmd: llama-server -m /a.gguf}, b: {cmd: llama-server -m /b.gguf}}"
    assert [one.get("one_of") for one in imported(files).config["models"]] == [None, None]


def test_a_group_may_have_the_name_of_the_models_that_are_in_none() -> None:
    groups = "groups: {default: {members: [a, b]}, 1: {members: [c, d]}}"
    assert grouped(groups, "abcdef") == {
        **dict.fromkeys("ab", ("default", None)),
        **dict.fromkeys("cd", ("1", None)),
        **dict.fromkeys("ef", ("ungrouped", None)),
    }


def test_groups_take_turns_and_persistent_ones_stay() -> None:
    groups = """
routing:
  router:
    settings:
      groups:
        together: {swap: false, exclusive: false, members: [a, b]}
        turns: {members: [c, d]}
        ever: {persistent: true, swap: false, exclusive: false, members: [e]}
        a/b: {persistent: true, members: [f, g]}
"""
    assert grouped(groups, "abcdefg") == {
        **dict.fromkeys("ab", (None, None)),
        **dict.fromkeys("cd", ("turns", None)),
        "e": (None, True),
        **dict.fromkeys("fg", ("a-b", None)),
    }


def test_commands_and_files_of_a_group_take_turns() -> None:
    text = """
groups: {turns: {members: [a, b, c]}}
models:
  a: {cmd: 'llama-server --port ${PORT} -m /a.gguf'}
  b: {cmd: 'server --port ${PORT} -m /b.gguf'}
  c: {cmd: 'server --port ${PORT}'}
"""
    found = imported(text)
    assert [one["one_of"] for one in found.config["models"]] == ["turns"] * 3
    assert found.config["models"][1]["path"] == "/b.gguf"  # whose size is its need
    assert any("without `one_of`" in note for note in found.notes)


def test_what_is_loaded_at_the_start() -> None:
    text = """
models: {a: {cmd: 's ${PORT}', aliases: [c]}, b: {cmd: 's ${PORT}'}}
hooks: {on_startup: {preload: [c]}}
"""
    assert [one.get("preload") for one in imported(text).config["models"]] == [True, None]


def test_the_servers_settings_keys_and_peers() -> None:
    text = """
healthCheckTimeout: 5
globalTTL: 300
unloadTimeout: 3
logLevel: warn
sendLoadingState: true
apiKeys: [plain, "${env.TOKEN}"]
models: {}
peers:
  other:
    proxy: http://192.168.1.2
    apiKey: "${env.TOKEN}"
    models: [m]
    filters: {stripParams: top_k}
"""
    config = imported(text).config
    assert config["server"] == {"loading_text": True}
    assert config["keys"] == [{"key": "plain"}, {"key": "env:TOKEN"}]
    assert config["log"] == {"level": "warning"}
    assert config["swap"] == {"ttl": 300}
    assert config["engines"] == {"command": {"load_timeout": 15, "stop_timeout": 3}}
    assert config["upstreams"] == [
        {
            "name": "other",
            "urls": ["http://192.168.1.2/v1"],
            "key": "env:TOKEN",
            "models": {"other/m": "m"},
            "drop": ["top_k"],
        }
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models: [a]", "`models` by name"),
        ("models: {far: {cmd: ''}}", "`cmd` is missing"),
        ("models: {far: {cmd: '${env.NOT_SET} ${PORT}'}}", "NOT_SET is not set"),
        ("models: {far: {cmd: '${binary} ${PORT}'}}", r"the macro \$\{binary\} is not defined"),
        ("", "`models` by name are expected"),
        (
            "models:\n  a: {cmd: 'x ${PORT}', aliases: [c]}\n  b: {cmd: 'x ${PORT}', aliases: [c]}",
            r"config.yaml:3: \$.models.b: 'c' is a name of 'a', too",
        ),
        ("models: {far: {cmd: 'a ${PORT}'}", "not YAML"),
    ],
)
def test_what_is_no_such_configuration_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        imported(text)


def test_it_is_printed_or_written_to_a_new_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours = tmp_path / "config.yaml", tmp_path / "roundhouse.yaml"
    theirs.write_text("models: {far: {cmd: 'server ${PORT}', unlisted: true}}")
    assert main(["import", "llama-swap", str(theirs)]) == 0
    said = capsys.readouterr()
    assert "models.far.unlisted" in said.err
    assert main(["import", "llama-swap", str(theirs), "--output", str(ours)]) == 0
    assert ours.read_text() == said.out
    assert yaml.safe_load(said.out)["models"][0]["name"] == "far"
    assert main(["import", "llama-swap", str(theirs), "--output", str(ours)]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("groups", "turns"),
    [
        ({}, "all fit together"),
        ({"g": {"members": ["a", "b"]}}, "they need more than one of g: they take turns"),
    ],
)
def test_the_import_says_what_check_says_of_it(
    groups: dict[str, Any],
    turns: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    theirs, ours = tmp_path / "config.yaml", tmp_path / "roundhouse.yaml"
    files = {"a": bundled.GGUF, "b": bundled.GGUF, "gone": tmp_path / "gone.gguf"}
    models = {name: {"cmd": f"llama-server -m {file}"} for name, file in files.items()}
    theirs.write_text(yaml.safe_dump({"models": models, "groups": groups}))
    assert main(["import", "llama-swap", str(theirs), "--output", str(ours)]) == 0
    said = capsys.readouterr()
    assert main(["check", "--config", str(ours)]) == 1
    checked = capsys.readouterr().out.partition("cpu ")[2]  # times of logged lines stand before
    assert not said.out
    assert checked in said.err
    assert turns in checked
    assert f"gone: file or folder not found: {tmp_path}" in checked


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("llama-swap", "models: {a: 5}"),
        ("llama-swap", "models: {a: {cmd: x, filters: [b]}}"),
        ("tabbyapi", "model: {model_name: a, backend: exllamav3}\nlora: {loras: [{scaling: 1}]}"),
        ("tabbyapi", "model: {model_name: a, backend: exllamav2}\nlora: {loras: 5}"),
    ],
)
def test_what_has_another_shape_is_named_and_not_a_traceback(
    program: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yml").write_text(text)
    assert main(["import", program, str(tmp_path / "config.yml")]) in (1, 2)
    assert "config.yml" in capsys.readouterr().err


def test_an_imported_configuration_is_served_and_its_models_take_turns(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", str(STANDIN), "--pids", str(tmp_path / "pids")]
    text = f"""
macros: {{standin: {shlex.join(words)}}}
models:
  one: {{cmd: "${{standin}} --port ${{PORT}}", aliases: [first]}}
  two: {{cmd: "${{standin}} --port ${{PORT}}", useModelName: inner}}
  three: {{cmd: "llama-server -m {bundled.GGUF} -c 512"}}
  four: {{cmd: "llama-server -m {bundled.GGUF} -c 512"}}
groups: {{files: {{exclusive: false, members: [three, four]}}}}
"""
    config = json.loads(json.dumps(imported(text).config))
    config["swap"] = {"min_stay": 0.0}
    with served(tmp_path, config) as server:
        for name, others in {
            "first": [],
            "three": ["one"],
            "two": ["three"],
            "four": ["two"],
        }.items():
            body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}]}
            answer = server.client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            models = server.client.get("/v1/models").json()["data"]
            loaded = [one["id"] for one in models if one["state"] == "loaded"]
            assert sorted(loaded) == sorted([{"first": "one"}.get(name, name), *others])


TABBY = """
model: {model_dir: models, model_name: mine.gguf, max_seq_len: 512, cache_mode: Q8, rope_alpha: 2.5}
sampling: {override_preset: safe}
network: {port: 5000}
"""


@pytest.mark.parametrize("script", ["main.py --config FOLDER/config.yml", "FOLDER/main.py"])
def test_a_tabbyapi_becomes_a_model(script: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.gguf").symlink_to(bundled.GGUF)
    (tmp_path / "config.yml").write_text(TABBY)
    line = f"{script.replace('FOLDER', str(tmp_path))} --port ${{PORT}} --disable-auth true"
    found = imported(
        f"models:\n  a:\n    cmd: python3 {line} --max-seq-len 256\n    aliases: [b]\n"
    )
    assert found.config["models"] == [
        {
            "name": "a",
            "path": str(tmp_path / "models" / "mine.gguf"),
            "backend": "llamacpp",
            "options": {"context_length": 256, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
            "aliases": ["b"],
        }
    ]
    problem = "model.rope_alpha: llamacpp has no option like rope_alpha"
    assert f"models.a.cmd (line 3): {problem}" in found.notes


def test_flags_alone_name_a_tabbyapis_model(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").symlink_to(bundled.GGUF)
    line = f"venv/bin/python main.py --model-dir {tmp_path} --model-name=mine.gguf --cache-size 512"
    (model,) = imported(f"models: {{a: {{cmd: '{line} --port ${{PORT}}'}}}}").config["models"]
    assert model["path"] == str(tmp_path / "mine.gguf")
    assert model["options"] == {"cache_tokens": 512}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--config /none/config.yml", "/none/config.yml: /none/config.yml: $: can't be read"),
        ("--model-name gone", f"its model isn't there: {Path.cwd()}/models/gone"),
        ("--listen", "its model isn't there: none is named"),  # another program's main.py
    ],
)
def test_a_tabbyapi_whose_model_is_not_here_stays_a_command(line: str, reason: str) -> None:
    found = imported(f"models:\n  a:\n    cmd: python main.py {line} --port ${{PORT}}\n")
    assert found.config["models"][0]["command"] == f"python main.py {line} --port ${{PORT}}"
    start = f"models.a.cmd (line 3): it stays a command: {reason}"
    assert any(note.startswith(start) for note in found.notes), found.notes
