"""Variables and the command line go over the file."""

from pathlib import Path

import pytest

from config.errors import ConfigError
from config.loader import load_config, variables
from config.settings import Config, KeyConfig
from config.shape import leaves


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "roundhouse.yaml"
    path.write_text("server: {host: 0.0.0.0, port: 1}\nmodel_dirs: [a]\n", encoding="utf-8")
    return path


def test_a_variable_goes_over_the_file_and_leaves_the_rest(file: Path) -> None:
    server = load_config(file, {"ROUNDHOUSE_SERVER_PORT": "9000"}).server

    assert (server.host, server.port) == ("0.0.0.0", 9000)


def test_the_command_line_goes_over_both(file: Path) -> None:
    config = load_config(file, {"ROUNDHOUSE_SERVER_PORT": "2"}, overrides={"server.port": "3"})

    assert config.server.port == 3


@pytest.mark.parametrize(
    ("name", "text", "option", "value"),
    [
        ("ENGINES_LLAMACPP_GPU_LAYERS", "-1", "engines.llamacpp.gpu_layers", -1),
        ("ENGINES_LLAMACPP_TENSOR_SPLIT", "1, 2.5", "engines.llamacpp.tensor_split", (1.0, 2.5)),
        ("ENGINES_LLAMACPP_MMAP", "false", "engines.llamacpp.mmap", False),
        ("ENGINES_LLAMACPP_THREADS", "", "engines.llamacpp.threads", None),
        ("LOG_LEVEL", "debug", "log.level", "debug"),
        ("MODEL_DIRS", "/a,/b", "model_dirs", ("/a", "/b")),
        ("MODEL_DIRS", '["/a,b"]', "model_dirs", ("/a,b",)),
        ("MODEL_DIRS", "", "model_dirs", ()),
        ("SWAP_MEMORY", '{"cpu": 1000}', "swap.memory", {"cpu": 1000}),
        ("ENGINES_COMMAND_ENV", '{"A": "b"}', "engines.command.env", {"A": "b"}),
        ("ENGINES_COMMAND_MEMORY", '{"cpu": "1KB"}', "engines.command.memory", {"cpu": 1000}),
        ("ENGINES_COMMAND_MEMORY", "1KB", "engines.command.memory", 1000),
        ("SWAP_TTL", "300", "swap.ttl", 300.0),
        ("DEFAULT_MODEL", "123", "default_model", "123"),
        ("KEYS", '[{"key": "k", "role": "admin"}]', "keys", (KeyConfig(key="k", role="admin"),)),
    ],
)
def test_text_is_read_as_the_option_is_typed(
    file: Path, name: str, text: str, option: str, value: object
) -> None:
    from_variable: object = load_config(file, {f"ROUNDHOUSE_{name}": text})
    from_command_line: object = load_config(file, {}, overrides={option: text})
    for part in option.split("."):
        from_variable = getattr(from_variable, part)
        from_command_line = getattr(from_command_line, part)

    assert from_variable == from_command_line == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("SERVER_PROT", "1", r"ROUNDHOUSE_SERVER_PROT: .*did you mean 'ROUNDHOUSE_SERVER_PORT'"),
        ("SERVER_PORT", "high", r"ROUNDHOUSE_SERVER_PORT: \$\.server\.port: expected a whole"),
        ("LOG_LEVEL", "warn", r"'warn' is not valid; did you mean 'warning'"),
        ("SWAP_MEMORY", "much", r"ROUNDHOUSE_SWAP_MEMORY: \$\.swap\.memory: not JSON"),
        ("MODELS", '[{"name": "a"}]', r"\$\.models\[0\]: the option 'path' is missing"),
        (
            "MODELS",
            '[{"name":"a","path":"b","backend":"c"}]',
            r"ROUNDHOUSE_MODELS: .*unknown backend 'c'",
        ),
    ],
)
def test_a_mistake_names_the_variable(file: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(file, {f"ROUNDHOUSE_{name}": text})


def test_a_mistake_on_the_command_line_names_the_option(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"the command line: \$\.server\.port: expected a whole"):
        load_config(file, {}, overrides={"server.port": "1.5"})


def test_variables_of_commands_that_talk_to_a_server_set_nothing(file: Path) -> None:
    variables = {"ROUNDHOUSE_URL": "http://there:8000", "ROUNDHOUSE_KEY": "secret"}
    assert load_config(file, variables) == load_config(file, {})


def test_variables_of_others_are_left_alone(file: Path) -> None:
    assert load_config(file, {"PATH": "/bin", "ROUND": "x"}) == load_config(file, {})


def test_every_option_has_a_variable_of_its_own() -> None:
    assert len(variables(Config)) == len(list(leaves(Config)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROUNDHOUSE_PORT", "tcp://10.96.0.1:8000"),
        ("ROUNDHOUSE_SERVER_PORT", "tcp://10.96.0.1:8000"),  # of a service roundhouse-server
        ("ROUNDHOUSE_SERVICE_HOST", "10.96.0.1"),
        ("ROUNDHOUSE_SERVICE_PORT_HTTP", "8000"),
        ("ROUNDHOUSE_PORT_8000_TCP_ADDR", "10.96.0.1"),
    ],
)
def test_what_kubernetes_sets_of_a_service_is_passed_over(
    file: Path, name: str, value: str
) -> None:
    assert load_config(file, {name: value}) == load_config(file, {})
