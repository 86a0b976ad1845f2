"""Which models exist: config and folders, their names, and what changes while the server runs."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

import bundled
from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed, UnsupportedModel
from config.engines import ScriptedOptions
from config.errors import ConfigError
from config.settings import Config, EnginesConfig, ModelConfig, SwapConfig
from gateway.registry import ModelLibrary
from gateway.registry.library import MAX_UNUSABLE
from gateway.terms.errors import ModelNotFound, ModelUnavailable
from tests.backends.projectors import write_projector


class Readers:
    """Knows `*.gguf` files and folders with a config.json, and counts how often it reads each."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, path: Path, backend: str | None) -> ModelFiles:
        is_folder = (path / "config.json").is_file()
        if not is_folder and not (path.suffix == ".gguf" and path.is_file()):
            raise UnsupportedModel(f"{path} is not a model")
        self.read.append(path.name)
        weights = path / "config.json" if is_folder else path
        if weights.read_text() == "broken":
            raise LoadFailed(f"{path.name} is broken")
        return ModelFiles(
            path=path,
            backend=backend or "scripted",
            format="safetensors" if is_folder else "gguf",
            architecture="llama",
            size_bytes=weights.stat().st_size,
            context_length=64,
            cache_bytes_per_token=0,
        )


def put(path: Path, content: str = "weights") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def library(*roots: Path, models: tuple[ModelConfig, ...] = (), **settings: str) -> ModelLibrary:
    config = Config(models=models, model_dirs=tuple(map(str, roots)), **settings)  # type: ignore[arg-type]
    return ModelLibrary(config, recognise=Readers())


def names(shelf: ModelLibrary) -> list[str]:
    return [entry.name for entry in shelf.entries()]


# ---------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    ["../outside/secret", "/etc/passwd", "inside/../inside", "inside.gguf", "./inside", "INSIDE"],
)
def test_only_the_exact_name_reaches_a_model(tmp_path: Path, name: str) -> None:
    put(tmp_path / "root" / "inside.gguf")
    put(tmp_path / "outside" / "secret.gguf")
    with pytest.raises(ModelNotFound):
        library(tmp_path / "root").resolve(name)


def test_the_tag_of_ollama_s_clients_may_stand_behind_a_name(tmp_path: Path) -> None:
    put(tmp_path / "a.gguf")
    put(tmp_path / "b:latest.gguf")
    shelf = library(tmp_path)
    assert shelf.resolve("a:latest") is shelf.resolve("a")
    assert shelf.resolve("b:latest").name == "b:latest"
    for name in (":latest", "b", "a:latest:latest"):
        with pytest.raises(ModelNotFound):
            shelf.resolve(name)


# ---------------------------------------------------------------------------------- config


def test_a_configured_model_has_what_its_entry_says(tmp_path: Path) -> None:
    template = put(tmp_path / "chat.jinja", "{{ messages }}")
    model = ModelConfig(
        name="small",
        path=str(put(tmp_path / "a.gguf")),
        options={"context_length": 32},
        aliases=("tiny",),
        pinned=True,
        ttl=5.0,
        sampling={"temperature": 0.5},
        format="qwen3",
        template=str(template),
    )
    entry = library(models=(model,)).resolve("tiny")
    assert (entry.name, entry.pinned, entry.ttl, entry.format) == ("small", True, 5.0, "qwen3")
    assert entry.options == ScriptedOptions(context_length=32)
    assert entry.template == "{{ messages }}"
    assert entry.sampling.named == {"temperature"}
    assert entry.sampling.values.temperature == 0.5
    assert entry.created > 0


def test_what_an_entry_does_not_say_the_engine_and_the_defaults_say(tmp_path: Path) -> None:
    config = Config(
        models=(ModelConfig(name="a", path=str(put(tmp_path / "a.gguf"))),),
        engines=EnginesConfig(scripted=ScriptedOptions(max_concurrent=3)),
        swap=SwapConfig(ttl=60.0),
    )
    entry = ModelLibrary(config, recognise=Readers()).resolve("a")
    assert entry.options.max_concurrent == 3
    assert entry.ttl == 60.0


def test_a_model_of_the_config_is_not_listed_again_for_its_folder(tmp_path: Path) -> None:
    path = put(tmp_path / "a.gguf")
    put(tmp_path / "b.gguf")
    shelf = library(tmp_path, models=(ModelConfig(name="mine", path=str(path)),))
    assert names(shelf) == ["mine", "b"]


def test_the_config_wins_a_name_over_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "root" / "a.gguf")
    other = put(tmp_path / "elsewhere" / "other.gguf")
    shelf = library(tmp_path / "root", models=(ModelConfig(name="a", path=str(other)),))
    assert shelf.resolve("a").files.path == other


@pytest.mark.parametrize(
    "taken",
    [
        {"name": "mine", "aliases": ("a",)},
        {"name": "mine", "aliases": ("a",), "replicas": 2},
        {"name": "mine", "presets": "a"},
    ],
)
def test_so_does_whatever_name_it_gives_and_what_is_passed_over_is_logged_once(
    tmp_path: Path, taken: dict[str, Any]
) -> None:
    put(tmp_path / "root" / "a.gguf")
    preset = taken.pop("presets", None)
    models = [ModelConfig(path=str(put(tmp_path / "other.gguf")), **taken)]
    models += [ModelConfig(name=preset, of="mine")] if preset else []
    with capture_logs() as logs:
        shelf = library(tmp_path / "root", models=tuple(models))
        shelf.refresh()
        shelf.successor(Config(models=tuple(models), model_dirs=(str(tmp_path / "root"),)), None)
    assert shelf.resolve("a").files.path == tmp_path / "other.gguf"
    (told,) = [one for one in logs if "passed over" in one["event"]]
    assert told["at"] == str(tmp_path / "root" / "a.gguf")
    assert told["by"] == ("$.models[1].name" if preset else "$.models[0].aliases[0]")


def test_unusable_files_in_folders_are_reported_once_and_never_the_default(tmp_path: Path) -> None:
    root = tmp_path / "models"
    put(root / "a" / "torn.gguf", "broken")
    put(root / "b" / "config.json", "broken")
    put(root / "c.gguf")
    shelf = library(root)
    assert [(one.name, one.reason) for one in shelf.unusable()] == [
        ("a/torn", "torn.gguf is broken"),
        ("b", "b is broken"),
    ]
    assert shelf.default_name() == "c"
    with pytest.raises(ModelUnavailable, match=r"a/torn can't be used: torn\.gguf is broken"):
        shelf.resolve("a/torn")
    put(root / "a" / "torn.gguf", "whole by now")
    shelf.refresh()
    assert names(shelf) == ["c", "a/torn"]
    assert [one.name for one in shelf.unusable()] == ["b"]


def test_an_unusable_file_takes_no_name_from_a_configured_model(tmp_path: Path) -> None:
    root = tmp_path / "models"
    put(root / "torn.gguf", "broken")
    put(root / "called.gguf", "broken")
    whole = put(tmp_path / "whole.gguf")
    shelf = library(
        root,
        models=(
            ModelConfig(name="m", path=str(whole), aliases=("called",)),
            ModelConfig(name="n", path=str(root / "torn.gguf")),
        ),
    )
    assert shelf.resolve("called").name == "m"
    assert [one.name for one in shelf.unusable()] == ["n"]


def test_only_so_many_unusable_files_are_listed(tmp_path: Path) -> None:
    for number in range(MAX_UNUSABLE + 5):
        put(tmp_path / f"{number}.gguf", "broken")
    assert len(library(tmp_path).unusable()) == MAX_UNUSABLE


def test_a_projector_that_comes_to_lie_beside_a_configured_model_is_seen(tmp_path: Path) -> None:
    shutil.copy(bundled.GGUF, tmp_path / "model.gguf")
    model = ModelConfig(name="m", path=str(tmp_path / "model.gguf"))
    shelf = ModelLibrary(Config(models=(model,)))
    blind = shelf.resolve("m")
    assert blind.files.modalities == ("text",)
    put(tmp_path / "notes.txt")
    shelf.refresh()
    assert shelf.resolve("m") is blind
    write_projector(tmp_path / "mmproj-F16.gguf")
    shelf.refresh()
    assert shelf.resolve("m").files.modalities == ("text", "image")


def test_unusable_files_are_reported_and_may_become_usable(tmp_path: Path) -> None:
    path = put(tmp_path / "a.gguf", "broken")
    shelf = library(models=(ModelConfig(name="a", path=str(path)),))
    (problem,) = shelf.unusable()
    assert problem.reason == "a.gguf is broken"
    with pytest.raises(ModelUnavailable, match=r"a\.gguf is broken"):
        shelf.resolve("a")
    path.write_text("repaired by now")
    shelf.refresh()
    assert shelf.unusable() == ()
    assert shelf.resolve("a").name == "a"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"options": {"contextlength": 1}}, "context_length"),
        ({"sampling": {"temprature": 1}}, "temperature"),
        ({"template": "/nowhere/chat.jinja"}, "template"),
    ],
)
def test_mistakes_of_an_entry_stop_the_start(
    tmp_path: Path, settings: dict[str, object], named: str
) -> None:
    entry = {"name": "a", "path": str(put(tmp_path / "a.gguf")), **settings}
    with pytest.raises(ConfigError, match=named):
        library(models=(msgspec.convert(entry, type=ModelConfig),))


def test_a_configured_path_that_is_not_there_is_reported_as_such(tmp_path: Path) -> None:
    model = ModelConfig(name="a40", path=str(tmp_path / "a40"))
    [missing] = ModelLibrary(Config(models=(model,))).unusable()
    assert missing.reason == f"file or folder not found: {tmp_path / 'a40'}"


# ---------------------------------------------------------------------------------- the default


@pytest.mark.parametrize("name", ["", "default"])
def test_the_default_is_what_the_config_says_else_its_first_model_else_the_first_by_name(
    tmp_path: Path, name: str
) -> None:
    for file in "zba":
        put(tmp_path / f"{file}.gguf")
    models = (ModelConfig(name="mine", path=str(tmp_path / "z.gguf")),)
    assert library(tmp_path, models=models, default_model="b").resolve(name).name == "b"
    assert library(tmp_path, models=models).resolve(name).name == "mine"
    assert library(tmp_path).resolve(name).name == "a"
    with pytest.raises(ModelNotFound, match="o model is available yet"):
        library().resolve(name)


def test_a_default_that_is_not_there_is_not_answered_by_another(tmp_path: Path) -> None:
    put(tmp_path / "a.gguf")
    with pytest.raises(ModelNotFound, match="'b'"):
        library(tmp_path, default_model="b").resolve("")


def test_a_model_may_really_be_called_default(tmp_path: Path) -> None:
    put(tmp_path / "default.gguf")
    put(tmp_path / "a.gguf")
    assert library(tmp_path).resolve("default").name == "default"


@pytest.mark.parametrize(
    ("model_ttl", "engine_ttl", "ttl"), [(None, None, 9.0), (None, 5.0, 5.0), (3.0, 5.0, 3.0)]
)
def test_the_nearest_ttl_counts(
    model_ttl: float | None, engine_ttl: float | None, ttl: float, tmp_path: Path
) -> None:
    path = str(put(tmp_path / "a.gguf"))
    config = Config(
        models=(ModelConfig(name="a", path=path, ttl=model_ttl),),
        engines=EnginesConfig(scripted=ScriptedOptions(ttl=engine_ttl)),
        swap=SwapConfig(ttl=9.0),
    )
    assert ModelLibrary(config, recognise=Readers()).resolve("a").ttl == ttl
