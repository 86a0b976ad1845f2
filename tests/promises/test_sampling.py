"""How tokens are drawn where a request doesn't say: who chose that, and what a request keeps."""

from pathlib import Path
from typing import Any

from tests.served import Serve, Served, scripted

CHOSEN = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


def used(server: Served, **asked: Any) -> dict[str, Any]:
    """Of an answer to this."""
    answer = server.client.post("/completion", json={"prompt": "Hi", "n_predict": 2, **asked})
    settings = answer.json()["generation_settings"]
    return {name: round(settings[name], 6) for name in CHOSEN}


def test_what_nobody_chose_is_cut_as_llama_server_does_and_called_default(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve({"models": [scripted(tmp_path, "plain")]})

    assert used(server, model="plain") == CHOSEN
    alone = used(server, model="plain", temperature=1.5)
    assert alone == {**CHOSEN, "temperature": 1.5}
    settings = server.client.get("/props?model=plain").json()["default_generation_settings"]
    assert settings["sampling"] == "default"
    assert {name: round(settings["params"][name], 6) for name in CHOSEN} == CHOSEN
    (card,) = server.client.get("/v1/models").json()["data"]
    assert card["sampling"] == "default"
    offered = server.client.get("/v1/admin/sampling?model=plain").json()["parameters"]
    assert {one["name"]: one["default"] for one in offered if one["name"] in CHOSEN} == CHOSEN


def test_the_configuration_and_a_request_come_before_it(serve: Serve, tmp_path: Path) -> None:
    model = scripted(tmp_path, "warm") | {"sampling": {"temperature": 1.2, "top_k": 0}}
    server = serve({"models": [model]})

    said = {**CHOSEN, "temperature": 1.2, "top_k": 0}
    assert used(server, model="warm") == said
    assert used(server, model="warm", min_p=0) == {**said, "min_p": 0}
    (card,) = server.client.get("/v1/models").json()["data"]
    assert card["sampling"] == "configuration"
