"""The models of the lab answer as what they are, through a served process."""

from pathlib import Path

import pytest

from tests.real import lab
from tests.served import Serve

pytestmark = pytest.mark.slow
ASKED = "What is the opposite of hot?"


def test_the_same_weights_answer_sensibly_at_four_and_at_sixteen_bits(serve: Serve) -> None:
    paths = {"four": lab.smollm2(), "sixteen": lab.smollm2_half()}
    server = serve({"models": [{"name": name, "path": str(p)} for name, p in paths.items()]})

    said = {
        name: server.client.post(
            "/v1/chat/completions",
            json={
                "model": name,
                "messages": [{"role": "user", "content": ASKED}],
                "temperature": 0,
            },
        ).json()["choices"][0]["message"]["content"]
        for name in paths
    }

    assert all("cold" in text.lower() for text in said.values()), said


def test_the_models_of_a_named_folder_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hybrid"
    folder.mkdir()
    (folder / "config.json").touch()
    for name in ("Qwen2.5-Coder-0.5B.gguf", "notes.txt", lab.smollm2().name):
        (tmp_path / name).touch()
    monkeypatch.setenv(lab.MORE, str(tmp_path))

    assert [path.name for path in lab.others()] == ["Qwen2.5-Coder-0.5B.gguf", "hybrid"]
