"""Ollama's store as models: manifests, blobs, parameters; what is broken costs itself alone."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import bundled
from config.errors import ConfigError
from gateway.cli import main
from gateway.cli.importing import ollama
from tests.served import served


def blob(store: Path, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    (store / "models" / "blobs").mkdir(parents=True, exist_ok=True)
    (store / "models" / "blobs" / f"sha256-{digest}").write_bytes(content)
    return f"sha256:{digest}"


def add(store: Path, name: str, **layers: bytes) -> Path:
    """A model by the kinds of its layers."""
    listed = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": blob(store, content)}
        for kind, content in layers.items()
    ]
    manifest = store / "models" / "manifests" / "registry.ollama.ai" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": listed}))
    return manifest


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / ".ollama"
    parameters = {"num_ctx": 96, "temperature": 0.3, "stop": ["<|im_end|>"], "num_gqa": 2}
    add(
        folder,
        "library/tiny/latest",
        model=bundled.GGUF.read_bytes(),
        params=json.dumps(parameters).encode(),
        system=b"Be brief.",
        template=b"{{ .Prompt }}",
    )
    add(folder, "someone/other/q8", model=b"GGUF")
    return folder


def test_models_have_their_names_files_and_parameters(store: Path) -> None:
    found = ollama.imported(store)
    other, tiny = sorted(found.config["models"], key=len)
    digest = hashlib.sha256(bundled.GGUF.read_bytes()).hexdigest()
    assert tiny == {
        "name": "tiny:latest",
        "path": str(store / "models" / "blobs" / f"sha256-{digest}"),
        "backend": "llamacpp",
        "options": {"context_length": 96},
        "sampling": {"temperature": 0.3},
        "system": "Be brief.",
        "aliases": ["tiny"],
    }
    assert other["name"] == "registry.ollama.ai/someone/other:q8"
    assert found.notes == (
        "tiny:latest: its Go template isn't read: the chat template in its GGUF file counts",
        "tiny:latest: num_gqa has no equal",
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda store: add(store, "library/bad/latest").write_text("{"),
        lambda store: add(store, "library/bad/latest", params=b"5"),
        lambda store: add(store, "library/bad/latest", model=b"GGUF", params=b"[5"),
        lambda store: add(store, "library/bad/latest", model=b"GGUF", system=b"\xff"),
        lambda store: add(store, "library/bad/latest").write_text(
            json.dumps({"layers": [{"mediaType": "a.model", "digest": "../../../etc/passwd"}]})
        ),
    ],
)
def test_what_is_damaged_is_named_and_the_others_stay(store: Path, damage: Any) -> None:
    damage(store)
    found = ollama.imported(store / "models")
    assert len(found.config["models"]) == 2
    assert [note for note in found.notes if note.startswith("bad:latest: it")]


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not Ollama's store"):
        ollama.imported(tmp_path)


def test_files_are_found_from_wherever_the_configuration_lies(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(store)
    (tmp_path / "elsewhere").mkdir()
    assert main(["import", "ollama", ".", "--output", str(tmp_path / "elsewhere" / "a.yaml")]) == 0
    assert "tiny:latest  llamacpp" in capsys.readouterr().err


def test_it_is_served(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "ollama", str(store)]) == 0
    assert "tiny:latest" in capsys.readouterr().out
    config = dict(ollama.imported(store).config)
    config["models"] = [one for one in config["models"] if one["name"] == "tiny:latest"]
    with served(tmp_path, config) as server:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}]}
        answer = server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
