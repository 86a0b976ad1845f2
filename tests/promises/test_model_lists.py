"""Lists of models on a real server: what stands first, what is left out, and who may see what."""

from pathlib import Path

import anyio
import msgspec
import openai
import pytest

from config.settings import KeyConfig
from tests.gateway.http.serving import HELLO, SCRIPT, Running, config, serving

pytestmark = pytest.mark.anyio

LISTS = ("/v1/models", "/v1/model/list", "/models")
KEYS = (
    KeyConfig(key="admin", role="admin"),
    KeyConfig(key="user"),
    KeyConfig(key="one", models=("roundhouse-tiny",)),
)


def header(key: str) -> dict[str, str]:
    return {"x-api-key": key}


async def listed(running: Running, path: str, key: str = "admin") -> list[str]:
    answer = await running.client.get(path, headers=header(key))
    return [one["id"] for one in answer.json()["data"]]


async def test_the_first_of_every_list_is_the_model_that_answers(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(config(tmp_path, keys=KEYS), default_model="scripted")
    async with serving(settings, tmp_path) as running:
        for path in LISTS:
            assert await listed(running, path) == ["scripted", "roundhouse-tiny"], path
        await running.registry.load("roundhouse-tiny")
        for path in LISTS:
            assert await listed(running, path) == ["roundhouse-tiny", "scripted"], path
            assert await listed(running, path, "one") == ["roundhouse-tiny"], path
        async with (
            openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="user") as client,
            running.registry.lease("scripted"),
        ):
            assert (await client.models.list()).data[0].id == "scripted"
            status = (await running.client.get("/status", headers=header("user"))).json()
            assert status["loaded_model"] == "scripted"
            assert [one["model"] for one in status["models"]] == ["scripted", "roundhouse-tiny"]


async def test_what_was_used_last_stands_before_what_was_loaded_first(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        for name in ("roundhouse-tiny", "scripted", "roundhouse-tiny"):
            async with running.registry.lease(name):
                await anyio.lowlevel.checkpoint()
            assert (await listed(running, "/v1/models"))[0] == name
            assert (await running.client.get("/props")).json()["model_alias"] == name


async def test_unusable_files_in_a_folder_are_listed_with_their_reason(tmp_path: Path) -> None:
    root = tmp_path / "models"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "torn.gguf").write_bytes(b"GGUF")
    (root / "notes.txt").write_text("no model")
    settings = msgspec.structs.replace(config(tmp_path, keys=KEYS), model_dirs=(str(root),))
    async with serving(settings, tmp_path) as running:
        reason = ""  # as administrators read it
        for key in ("admin", "user"):
            answer = await running.client.get("/models", headers=header(key))
            [*_, torn] = answer.json()["data"]
            assert (torn["id"], torn["state"], torn["status"]["failed"]) == (
                "sub/torn",
                "failed",
                True,
            )
            status = (await running.client.get("/status", headers=header(key))).json()
            assert status["failed"] == [{"model": "sub/torn", "reason": torn["why_failed"]}]
            assert "not a usable GGUF file" in torn["why_failed"]
            reason = reason or torn["why_failed"]
            assert (str(root) in torn["why_failed"]) == (key == "admin")
            body = {"model": "sub/torn", "prompt": "Hi"}
            refused = await running.client.post("/v1/completions", json=body, headers=header(key))
            assert refused.status_code == 503
            assert (str(root) in refused.text) == (key == "admin")
        for path in ("/unload", "/models/unload", "/v1/admin/models/unload"):
            order = {"model": "sub/torn"}
            unloaded = await running.client.post(path, json=order, headers=header("admin"))
            assert unloaded.status_code == 200, (path, unloaded.text)
            if path.startswith("/v1/"):
                shown = unloaded.json()
                assert (shown["state"], shown["why_failed"]) == ("failed", reason)
        assert "torn" not in (await running.client.get("/models", headers=header("one"))).text
        assert "torn" not in (await running.client.get("/status", headers=header("one"))).text
        for path in ("/v1/models", "/v1/model/list"):
            assert await listed(running, path) == ["roundhouse-tiny", "scripted"]


async def test_the_default_is_named_while_nothing_is_loaded(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(config(tmp_path, keys=KEYS), default_model="scripted")
    async with serving(settings, tmp_path) as running:
        card = (await running.client.get("/v1/model", headers=header("user"))).json()
        assert (card["id"], card["state"], card["parameters"]) == ("scripted", "unloaded", None)
        props = (await running.client.get("/props", headers=header("user"))).json()
        assert props["model_alias"] == "scripted"
        assert props["default_generation_settings"]["n_ctx"] == 4096
        for path in ("/v1/model", "/props"):  # the default isn't for this key
            answer = await running.client.get(path, headers=header("one"))
            assert answer.status_code == 503, path
            assert "scripted" not in answer.text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_model_whose_file_has_a_line_feed_in_its_name_answers(
    tmp_path: Path, *, stream: bool
) -> None:
    """It stands in a header and in comments of the stream."""
    name = "two\ndata: lines"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / f"{name}.script.json").write_text(SCRIPT)
    settings = msgspec.structs.replace(config(tmp_path), model_dirs=(str(tmp_path / "models"),))
    async with serving(settings, tmp_path) as running:
        body = {"model": name, "messages": HELLO, "stream": stream}
        answer = await running.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-roundhouse-model"] == "two?data: lines"
