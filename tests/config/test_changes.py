"""What becomes of each option when the file is read again."""

import pytest

from config.changes import EFFECTS, differences, effect_of, in_force
from config.settings import Config, KeyConfig, ModelConfig, ServerConfig, SwapConfig
from config.shape import Option, leaves


@pytest.mark.parametrize("option", [option for option, _ in leaves(Config)], ids=".".join)
def test_every_option_says_what_a_change_of_it_does(option: Option) -> None:
    assert effect_of(option) in ("live", "models", "restart")


def test_the_table_names_nothing_else() -> None:
    known = {
        ".".join(option[:n]) for option, _ in leaves(Config) for n in range(1, len(option) + 1)
    }
    assert EFFECTS.keys() <= known


OLD = Config(keys=(KeyConfig(key="a"),))
NEW = Config(
    server=ServerConfig(port=9000, loading_text=True),
    keys=(KeyConfig(key="b"),),
    models=(ModelConfig(name="m", path="m.gguf"),),
    swap=SwapConfig(memory={"cpu": 1}),
)


def test_differences_are_named_by_what_they_do() -> None:
    found = differences(OLD, NEW)
    assert found["live"] == ("server.loading_text", "keys", "swap.memory")
    assert found["models"] == ("models",)
    assert found["restart"] == ("server.port",)


def test_what_needs_a_restart_stays_as_it_is() -> None:
    running = in_force(OLD, NEW)
    assert running.server == ServerConfig(loading_text=True)
    assert running.keys == NEW.keys
    assert differences(running, NEW)["restart"] == ("server.port",)
    assert differences(OLD, OLD) == differences(NEW, NEW)
