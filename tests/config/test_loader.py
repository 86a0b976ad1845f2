"""What a person who writes a configuration may rely on."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from backends.contract.samplers import Sampling
from config.engines import LlamaCppOptions, TransformersOptions
from config.errors import MOST, ConfigError
from config.loader import load_config, locate
from config.models import options_for, sampling_for, written
from config.settings import Config, KeyConfig, ModelConfig


def loaded(folder: Path, text: str, **environment: str) -> Config:
    path = folder / "roundhouse.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment, sampling=Sampling)


def refused(folder: Path, text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text, **environment)
    return str(caught.value).replace(str(folder), "…")


ONE_MODEL = "models:\n  - name: one\n    path: one.gguf\n"

MISTAKES = [
    ("server:\n  prot: 1", "2: $.server.prot: unknown option; did you mean 'port'?"),
    ("sever: {}", "1: $.sever: unknown option; did you mean 'server'?"),
    (
        "server: {port: high}",
        "1: $.server.port: expected a whole number from 0 to 65535, got 'high'",
    ),
    (
        "server: {port: 70000}",
        "1: $.server.port: expected a whole number from 0 to 65535, got 70000",
    ),
    ("server: 3", "1: $.server: expected options by name, got a number"),
    ("model_dirs: here", "1: $.model_dirs: expected a list, got a text"),
    ("swap: {memory: {cpu: much}}", "1: $.swap.memory.cpu: expected a size: bytes, or with a unit"),
    ("log: {level: warn}", "1: $.log.level: 'warn' is not valid; did you mean 'warning'?"),
    ("models:\n  - path: a", "2: $.models[0]: the option 'name' is missing"),
    (
        ONE_MODEL + "    backend: llamcpp",
        "4: $.models[0].backend: unknown backend 'llamcpp'; did you mean 'llamacpp'?",
    ),
    (
        ONE_MODEL + "    options: {gpu_layer: 3}",
        "4: $.models[0].options.gpu_layer: no backend has this option; did you mean 'gpu_layers'?",
    ),
    (
        ONE_MODEL + "    options: {context: 3}",
        "4: $.models[0].options.context: no backend has this option; did you mean 'context_len",
    ),
    (
        ONE_MODEL + "    backend: transformers\n    options:\n      cpu_experts: 3",
        "6: $.models[0].options.cpu_experts: unknown option; available: adapters",
    ),
    (
        ONE_MODEL + "    options: {cpu_experts: 3, device: cpu}",
        "4: $.models[0].options: no backend has all of these options together",
    ),
    (
        ONE_MODEL + "    options: {gpu_layers: many}",
        "4: $.models[0].options.gpu_layers: 'many' is not valid; available: auto",
    ),
    (
        ONE_MODEL + "    sampling:\n      top_pp: 0.9",
        "5: $.models[0].sampling.top_pp: unknown option; did you mean 'top_p'?",
    ),
    (
        ONE_MODEL + "    sampling: {top_k: often}",
        "4: $.models[0].sampling.top_k: expected a whole number, got 'often'",
    ),
    (
        ONE_MODEL + "  - name: two\n    path: two.gguf\n    aliases: [one]",
        "6: $.models[1].aliases[0]: 'one' is taken already, by $.models[0].name",
    ),
    (
        """
models:
- {name: a, path: a, pinned: true, one_of: x}
- {name: b, path: b, pinned: true, one_of: x}
""",
        "4: $.models[1].pinned: a is pinned, and only one of 'x' is in memory at a time",
    ),
    (
        ONE_MODEL + "default_model: on",
        "4: $.default_model: unknown model 'on'; did you mean 'one'?",
    ),
    ("log: {}\nlog: {}", "2: $.log: given twice; first in line 1"),
    ("server: [", "1: $: not YAML: "),
    ("a: \0", " $: not YAML: special characters are not allowed"),
    ("a: *b", "1: $: not YAML: found undefined alias"),
    ("a: &a [*a]", " $: a part of it contains itself"),
    ("a: !!python/name:os.system", "1: $: not YAML: could not determine a constructor"),
    (
        "engines: {command: {env: secret}}",
        "1: $.engines.command.env: expected options by name, got a text",
    ),
    (
        "models: [{name: one, path: /one, options: secret}]",
        "1: $.models[0].options: expected options by name, got a text",
    ),
    (
        "upstreams: [{name: one, urls: ['http://one'], set: secret}]",
        "1: $.upstreams[0].set: expected options by name, got a text",
    ),
    ("server: true", "1: $.server: expected options by name, got true or false"),
    ("model_dirs: {}", "1: $.model_dirs: expected a list, got options by name"),
    ("server: {port: 010}", "1: $.server.port: expected a whole number from 0 to 65535, got '010'"),
    ("- a", "1: $: expected options by name, got a list"),
    ("1: a", "1: $: expected a name, got 1"),
    ("keys: [{key: env:NOT_SET}]", "1: $.keys[0].key: the environment variable NOT_SET is not set"),
    ("keys: [{key: $NAME}]", "1: $.keys[0].key: write env:NAME or ${NAME} for a variable's value"),
    (
        "keys: [{key: '${NOT_SET}'}]",
        "1: $.keys[0].key: the environment variable NOT_SET is not set",
    ),
    ("keys: [{key: file:none}]", "1: $.keys[0].key: …/none can't be read: No such file"),
    (
        "keys: [{key: 12345}]",
        "1: $.keys[0].key: expected a text that isn't empty, got a number; put",
    ),
    (ONE_MODEL + "    pinned: yes", "4: $.models[0].pinned: expected true or false; write true"),
    (ONE_MODEL + "    pinned: Off", "4: $.models[0].pinned: expected true or false; write false"),
    ("images: {max_bytes: 8G}", "1: $.images.max_bytes: expected a size: bytes, or with a unit"),
    ("swap: {max_wait: 5 min 3}", "1: $.swap.max_wait: expected a time: seconds, or with a unit"),
    ("server:\n\tport: 1", "2: $: not YAML: indented with a tab; indent with spaces"),
    (
        "swap: {memory: {gpu0: 8GB}}",
        "1: $.swap.memory.gpu0: unknown device; expected cpu or cuda:0",
    ),
    (
        "swap: {memory: {box-b/cuda:0: 8GB}}",
        "1: $.swap.memory.box-b/cuda:0: other machines' devices need a `cluster`",
    ),
    ("server: {hosts: ['*']}", "1: $.server.hosts[0]: expected a name without scheme or path"),
    ("server: {hosts: [a b]}", "1: $.server.hosts[0]: expected a name without scheme or path"),
    (
        "server: {hosts: ['https://ai.example']}",
        "1: $.server.hosts[0]: expected a name without scheme or path, got 'https://ai.example'",
    ),
    (
        "server: {trusted_proxies: [proxy.lan]}",
        "1: $.server.trusted_proxies[0]: expected an address, a network like 10.0.0.0/8, or '*'",
    ),
    (
        "server: {cors_origins: [ai.example]}",
        "1: $.server.cors_origins[0]: expected an origin like https://chat.example, got 'ai.ex",
    ),
    (
        "tracing: {headers: {'': a}}",
        "1: $.tracing.headers.: expected a text that isn't empty",
    ),
    (
        "engines:\n  exllamav3:\n    tensor_parallel_limits: {mpl: 1}",
        "3: $.engines.exllamav3.tensor_parallel_limits.mpl: 'mpl' is not valid; did you mean",
    ),
    ("keys: [{key: a}, {key: a}]", "1: $.keys[1].key: the same key is listed twice"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_named_with_file_line_path_and_what_was_meant(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refused(tmp_path, text).startswith(f"…/roundhouse.yaml:{message}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.yaml", "binary.yaml", "."):
        with pytest.raises(ConfigError, match="can't be read"):
            load_config(tmp_path / name, {})


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, "# nothing yet\n") == Config()


def test_no_file_at_all_is_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert load_config(None, {"HOME": str(tmp_path)}) == Config()


@pytest.mark.parametrize(
    ("written", "read"),
    [("off", "off"), ("on", "on"), ("'auto'", "auto")],
)
def test_words_stay_words(tmp_path: Path, written: str, read: str) -> None:
    config = loaded(tmp_path, f"engines: {{llamacpp: {{flash_attention: {written}}}}}")

    assert config.engines.llamacpp.flash_attention == read


@pytest.mark.parametrize(
    ("written", "read"), [("1e3", 1000.0), ("15", 15.0), (".5", 0.5), ("2.", 2.0)]
)
def test_numbers_are_read_as_people_write_them(tmp_path: Path, written: str, read: float) -> None:
    assert loaded(tmp_path, f"swap: {{max_wait: {written}}}").swap.max_wait == read


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("5m", 300.0),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("1.5 h", 5400.0),
        ("250ms", 0.25),
        ("2d", 172_800.0),
    ],
)
def test_times_may_have_a_unit(tmp_path: Path, written: str, seconds: float) -> None:
    assert loaded(tmp_path, f"swap: {{max_wait: {written}, ttl: {written}}}").swap.ttl == seconds


@pytest.mark.parametrize(
    ("written", "size"),
    [("8GB", 8 * 10**9), ("24 GiB", 24 * 2**30), ("1.5MB", 1_500_000), ("512KiB", 2**19), ("7", 7)],
)
def test_sizes_may_have_a_unit(tmp_path: Path, written: str, size: int) -> None:
    config = loaded(
        tmp_path, f"swap: {{memory: {{cpu: {written}}}}}\nimages: {{max_bytes: {written}}}"
    )
    assert (config.swap.memory["cpu"], config.images.max_bytes) == (size, size)
    variables = {"ROUNDHOUSE_IMAGES_MAX_BYTES": written, "ROUNDHOUSE_SWAP_MEMORY": '{"cpu": "1KB"}'}
    config = loaded(tmp_path, "", **variables)
    assert (config.swap.memory["cpu"], config.images.max_bytes) == (1000, size)


def test_devices_of_other_machines_have_their_names(tmp_path: Path) -> None:
    config = loaded(tmp_path, "cluster: auto\nswap: {memory: {box-b/cuda:0: 0, box_c.lan/cpu: 7}}")
    assert config.swap.memory == {"box-b/cuda:0": 0, "box_c.lan/cpu": 7}


# ------------------------------------------------------------------------------ where the file lies


def test_the_working_folder_comes_before_the_home(tmp_path: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    (home / "roundhouse").mkdir(parents=True)
    here.mkdir()
    environment = {"XDG_CONFIG_HOME": str(home)}
    assert locate(environment, here) is None

    (home / "roundhouse" / "config.yaml").touch()
    assert locate(environment, here) == home / "roundhouse" / "config.yaml"

    (here / "roundhouse.yaml").touch()
    assert locate(environment, here) == here / "roundhouse.yaml"


def test_without_xdg_the_home_has_its_usual_place(tmp_path: Path) -> None:
    path = tmp_path / ".config" / "roundhouse" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.touch()

    assert locate({"HOME": str(tmp_path)}, tmp_path) == path


# -------------------------------------------------------------------------------------------- paths


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        """
        model_dirs: [models, /srv/models]
        engines: {exllamav2: {adapters: {poet: lora/poet}}}
        models:
          - name: one
            path: one.gguf
            template: one.jinja
            options: {mmproj: one.mmproj.gguf, gpu_layers: 0}
          - {name: far, path: "https://example.org/v1"}
          - {name: hub, path: "hf:owner/name", options: {adapters: {poet: poet}}}
        """,
    )
    one, far, hub = config.models
    assert config.model_dirs == (str(tmp_path / "models"), "/srv/models")
    assert config.engines.exllamav2.adapters == {"poet": str(tmp_path / "lora/poet")}
    assert (one.path, one.template) == (str(tmp_path / "one.gguf"), str(tmp_path / "one.jinja"))
    assert one.options == {"mmproj": str(tmp_path / "one.mmproj.gguf"), "gpu_layers": 0}
    assert (far.path, hub.path) == ("https://example.org/v1", "hf:owner/name")
    assert hub.options == {"adapters": {"poet": str(tmp_path / "poet")}}


def test_a_tilde_is_the_home(tmp_path: Path) -> None:
    assert loaded(tmp_path, "model_dirs: [~/models]").model_dirs == (str(Path.home() / "models"),)


# --------------------------------------------------------------------------------------------- keys


def test_a_key_may_stand_in_a_variable_even_in_one_with_our_prefix(tmp_path: Path) -> None:
    text = "keys: [{key: env:ROUNDHOUSE_ADMIN_KEY, role: admin}, {key: plain}]"

    keys = loaded(tmp_path, text, ROUNDHOUSE_ADMIN_KEY="secret").keys

    assert keys == (KeyConfig(key="secret", role="admin"), KeyConfig(key="plain"))


def test_a_key_may_stand_in_a_file_or_in_braces(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    text = f"keys: [{{key: file:key}}, {{key: '${{MY_KEY}}'}}, {{key: file:{tmp_path}/other}}]"
    (tmp_path / "other").write_text("absolute")
    keys = loaded(tmp_path, text, MY_KEY="from a variable").keys
    assert [one.key for one in keys] == ["from a file", "from a variable", "absolute"]


def test_a_key_is_never_shown(tmp_path: Path) -> None:
    config = loaded(tmp_path, "keys: [{key: secret, models: [one]}]")

    assert "secret" not in repr(config)
    more = """
        {join: {key: secret}, tracing: {headers: {key: secret}}, kept: {encrypt: secret}, engines:
        {command: {env: {KEY: secret}, set: {key: [secret]}}}, models: [{name: one, command: "serve
        {port} --key secret", options: {env: {KEY: secret}}}]}
    """
    assert "secret" not in repr(loaded(tmp_path, more))
    assert "secret" not in refused(tmp_path, "keys: [{key: secret}, {key: secret}]")


# ----------------------------------------------------------------------------- options and sampling


def model(**fields: Any) -> ModelConfig:
    return ModelConfig(name="one", path="/one", **fields)


def test_a_models_own_options_win_over_its_engines() -> None:
    config = msgspec.convert(
        {"engines": {"llamacpp": {"gpu_layers": 0, "threads": 3, "tensor_split": [1, 2]}}}, Config
    )

    assert options_for(config, model(options={"threads": 8}), "llamacpp") == LlamaCppOptions(
        gpu_layers=0, threads=8, tensor_split=(1.0, 2.0)
    )
    assert options_for(config, model(), "transformers") == TransformersOptions()


def test_where_a_model_runs_is_said_of_it_of_its_engine_or_of_all() -> None:
    config = msgspec.convert({"engines": {"host": "auto", "llamacpp": {"host": "worker"}}}, Config)

    def host(backend: str, **options: str) -> str | None:
        return options_for(config, model(options=options), backend).host

    assert host("llamacpp", host="process") == "process"
    assert host("llamacpp") == "worker"
    assert host("transformers") == "auto"
    assert options_for(Config(), model(), "llamacpp").host is None


def test_an_option_set_back_to_its_default_wins_too() -> None:
    config = msgspec.convert({"engines": {"llamacpp": {"threads": 3}}}, Config)

    assert options_for(config, model(options={"threads": "auto"}), "llamacpp") == LlamaCppOptions()


def test_options_of_another_backend_are_refused_once_the_files_told_which_it_is() -> None:
    with pytest.raises(
        ConfigError, match=r"model 'one' \(transformers\): \$\.options\.cpu_experts"
    ):
        options_for(Config(), model(options={"cpu_experts": 3}), "transformers")


def test_sampling_defaults_become_the_struct_of_the_floor_above() -> None:
    assert sampling_for(model(sampling={"top_k": 40}), Sampling) == Sampling(top_k=40)
    with pytest.raises(ConfigError, match="did you mean 'top_k'"):
        sampling_for(model(sampling={"topk": 40}), Sampling)


def test_a_section_may_have_comments_alone_and_anchors_a_place(tmp_path: Path) -> None:
    text = (
        "x-common: &common {ttl: 60}\nserver:\n  # port: 9000\n"
        "models:\n  - {<<: *common, name: a, path: a.gguf, options: {draft: }}\n"
    )
    config = loaded(tmp_path, text)
    assert (config.server.port, config.models[0].ttl) == (8000, 60)


def test_all_mistakes_are_told_at_once_and_where_an_option_belongs() -> None:
    text = "server: {prot: 1, host: 5}\nmodels: [{name: a, path: x, context: 5}]\nlog: {levl: a}"
    with pytest.raises(ConfigError) as refused:
        load_config(Path("r.yaml"), {}, text=text)
    told = str(refused.value).splitlines()
    assert [line.split(": ")[1] for line in told] == [
        "$.server.prot",
        "$.server.host",
        "$.models[0].context",
        "$.log.levl",
    ]
    assert told[2].endswith("did you mean 'options.context_length'?")


def test_no_more_mistakes_are_looked_at_than_anybody_reads() -> None:
    models = ", ".join(f"{{name: m{number}, paht: x, contxt: 1}}" for number in range(5_000))
    with pytest.raises(ConfigError) as refused:
        load_config(Path("r.yaml"), {}, text=f"models: [{models}]")
    assert MOST <= str(refused.value).count("\n") + 1 < 2 * MOST


def test_mistakes_of_all_models_are_told_at_once() -> None:
    one = "{name: %s, path: x, options: {contxt_length: 5}}"
    with pytest.raises(ConfigError) as refused:
        load_config(Path("r.yaml"), {}, text=f"models: [{one % 'a'}, {one % 'b'}]")
    assert str(refused.value).count("did you mean 'context_length'?") == 2


def test_mistakes_of_form_and_of_meaning_are_told_in_one_pass() -> None:
    text = """
server: {prot: 1, host: "a b", hosts: [http://a, c, http://b]}
default_model: nothing
keys: [{label: one}, {key: "env:NOT_SET"}]
models:
  - {path: nameless.gguf}
  - {name: small, path: small.gguf, contxt: 5, options: {contxt_length: 5}}
  - {name: empty}
  - {name: large, path: large.gguf, ttl: soon, mcp: [files], of: small}
  - {name: small, path: other.gguf, aliases: [empty]}
upstreams:
  - {name: far, fallbacks: [empty, absent]}
  - {name: near, urls: ["http://127.0.0.1:9/v1"], fallbacks: [empty, absent], fetch: true}
swap: {memory: {gpu: 5GB, cpu: much}}
"""
    with pytest.raises(ConfigError) as refused:
        load_config(Path("r.yaml"), {}, text=text)
    told = [line.split(": ")[:2] for line in str(refused.value).splitlines()]
    assert [(int(place.removeprefix("r.yaml:")), path) for place, path in told] == [
        (2, "$.server.prot"),
        (2, "$.server.host"),
        (2, "$.server.hosts[0]"),
        (2, "$.server.hosts[2]"),
        (4, "$.keys[0]"),
        (4, "$.keys[1].key"),
        (6, "$.models[0]"),
        (7, "$.models[1].contxt"),
        (7, "$.models[1].options.contxt_length"),
        (8, "$.models[2]"),
        (9, "$.models[3].ttl"),
        (9, "$.models[3].path"),
        (9, "$.models[3].mcp[0]"),
        (10, "$.models[4].name"),
        (12, "$.upstreams[0]"),
        (13, "$.upstreams[1].fetch"),
        (14, "$.swap.memory.cpu"),
        (14, "$.swap.memory.gpu"),
    ]
    assert "taken already, by $.models[1].name" in str(refused.value)


def test_what_only_follows_from_a_mistake_is_none() -> None:
    text = "models: [{name: 5, path: x}, {name: a}, {name: b, path: x}]\ndefault_model: a\n"
    with pytest.raises(ConfigError) as refused:
        load_config(Path("r.yaml"), {}, text=text)
    told = [line.split(": ")[1] for line in str(refused.value).splitlines()]
    assert told == ["$.models[0].name", "$.models[1]"]


def test_a_model_is_written_as_it_is_read() -> None:
    model = ModelConfig(name="a", path="/a.gguf", ttl=-1, lora={}, keep_reasoning=False)
    text = written(model)
    assert list(yaml.safe_load(text)[0]) == ["name", "path", "ttl", "lora", "keep_reasoning"]
    assert load_config(Path("r.yaml"), {}, text=f"models:\n{text}").models == (model,)
