"""Downloads and deletion over HTTP: who may, how it is told, and that the new model can be used."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import bundled
from config.settings import Config, HubConfig, KeyConfig
from tests.backends.pairs import quick
from tests.backends.projectors import write_projector
from tests.gateway.http.serving import Running, config, events, serving
from tests.gateway.hub.standin import StandIn, standin

pytestmark = pytest.mark.anyio

USER, ADMIN = {"x-api-key": "user"}, {"x-api-key": "admin"}
SCRIPT = b'{"lines": [{"say": "Fetched."}]}'
NAME = "small/talk"


def settings(stand: StandIn, folder: Path) -> Config:
    keys = (KeyConfig(key="user"), KeyConfig(key="admin", role="admin"))
    return msgspec.structs.replace(
        config(folder, keys=keys),
        model_dirs=(str(folder / "models"),),
        hub=HubConfig(endpoint=stand.url, deletion=True),
    )


@pytest.fixture
async def stand() -> AsyncIterator[StandIn]:
    async with standin({"talk.script.json": SCRIPT}) as running:
        yield running


@pytest.fixture
async def fetching(stand: StandIn, tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(settings(stand, tmp_path), tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
async def refusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server for all orders that come to nothing."""
    folder = tmp_path_factory.mktemp("refusing")
    async with (
        standin({"talk.script.json": SCRIPT}) as stand,
        serving(settings(stand, folder), folder) as running,
    ):
        yield running


async def test_a_download_is_reported_and_its_model_answers(fetching: Running) -> None:
    headers = {**ADMIN, "accept": "text/event-stream"}
    answer = await fetching.client.post(
        "/v1/download", json={"repo_id": "org/small"}, headers=headers
    )
    steps = events(answer.text)
    assert steps[-1]["status"] == "finished"
    assert steps[-1]["done"] == steps[-1]["total"] == len(SCRIPT)
    assert steps[-1]["download_path"].endswith("models/small")
    body = {"model": NAME, "prompt": "Hi"}
    said = await fetching.client.post("/v1/completions", json=body, headers=USER)
    assert said.json()["choices"][0]["text"] == "Fetched."


async def test_who_reads_only_the_status_gets_one_answer_at_the_end(fetching: Running) -> None:
    answer = await fetching.client.post(
        "/v1/download", json={"repo_id": "org/small", "folder_name": "x/y"}, headers=ADMIN
    )
    assert answer.status_code == 200
    assert answer.json()["download_path"].endswith("models/x/y")
    again = await fetching.client.post(
        "/v1/download", json={"repo_id": "org/small", "folder_name": "x/y"}, headers=ADMIN
    )
    assert again.status_code == 400
    assert "already a folder y" in again.json()["detail"]


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*"])
async def test_a_download_that_takes_too_long_says_so(
    accept: str, stand: StandIn, fetching: Running
) -> None:
    stand.cut["talk.script.json"] = 5
    answer = await fetching.client.post(
        "/v1/download",
        json={"repo_id": "org/small", "timeout": 0.5},
        headers={**ADMIN, "accept": accept},
    )
    last = events(answer.text)[-1] if answer.status_code == 200 else answer.json()
    assert "took longer than 0.5 s" in last["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"repo_id": "org/small", "folder_name": "../x"}, 400),
        ({"repo_id": "org/small", "repo_type": "lora"}, 400),
        ({"repo_id": "org/none"}, 404),
    ],
)
async def test_bad_orders_are_refused_before_anything_is_reported(
    body: dict[str, str], status: int, refusing: Running
) -> None:
    headers = {**ADMIN, "accept": "text/event-stream"}
    answer = await refusing.client.post("/v1/download", json=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["detail"]


async def test_users_neither_fetch_nor_delete(refusing: Running) -> None:
    body = {"repo_id": "org/small", "model": "org/small"}
    for method, path in (
        ("POST", "/v1/download"),
        ("POST", "/models"),
        ("DELETE", "/models?model=scripted"),
    ):
        answer = await refusing.client.request(method, path, json=body, headers=USER)
        assert answer.status_code == 403


async def test_open_webui_fetches_and_deletes(fetching: Running, tmp_path: Path) -> None:
    fetched = await fetching.client.post("/models", json={"model": "org/small"}, headers=ADMIN)
    assert fetched.json() == {"success": True}
    await fetching.registry.load(NAME)
    deleted = await fetching.client.delete("/models", params={"model": NAME}, headers=ADMIN)
    assert deleted.json() == {"success": True}
    assert not (tmp_path / "models" / NAME).exists()
    gone = await fetching.client.delete("/models", params={"model": NAME}, headers=ADMIN)
    assert gone.status_code == 404
    elsewhere = await fetching.client.delete("/models?model=scripted", headers=ADMIN)
    assert elsewhere.status_code == 403


@pytest.mark.parametrize(
    ("asked", "folder", "files"),
    [
        ("hf:org/small", "small-Q4_0", {"m-Q4_0.gguf"}),
        ("hf:org/small:Q8_0", "small-Q8_0", {"m-Q8_0.gguf"}),
        ("org/small:q8_0", "small-Q8_0", {"m-Q8_0.gguf"}),
    ],
)
async def test_a_model_is_fetched_as_a_configuration_names_it(
    asked: str, folder: str, files: set[str], stand: StandIn, fetching: Running, tmp_path: Path
) -> None:
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf"):
        stand.add(name, bundled.GGUF.read_bytes())
    del stand.files["talk.script.json"]
    fetched = await fetching.client.post("/models", json={"model": asked}, headers=ADMIN)
    assert fetched.json() == {"success": True}
    assert {file.name for file in (tmp_path / "models" / folder).glob("*.gguf")} == files
    listed = (await fetching.client.get("/v1/models", headers=USER)).json()["data"]
    there = {f"{folder}/{file.removesuffix('.gguf')}" for file in files}
    assert there <= {one["id"] for one in listed}


SPELLINGS = ["org/small", "hf:org/small", "org/small:Q8_0", "org/small:q8_0"]


@pytest.mark.parametrize("asked", quick(SPELLINGS, "hf:org/small"))
async def test_what_was_fetched_is_called_and_deleted_by_the_name_it_was_fetched_by(
    asked: str, stand: StandIn, fetching: Running, tmp_path: Path
) -> None:
    stand.add("m-Q8_0.gguf", bundled.GGUF.read_bytes())
    del stand.files["talk.script.json"]
    for _ in range(2):  # what was deleted can be fetched again
        fetched = await fetching.client.post("/models", json={"model": asked}, headers=ADMIN)
        assert fetched.json() == {"success": True}
        for name in (asked, "hf:org/small", "org/small:Q8_0"):
            body = {"model": name, "prompt": "Hi", "max_tokens": 2}
            said = await fetching.client.post("/v1/completions", json=body, headers=USER)
            assert said.status_code == 200, said.text
        deleted = await fetching.client.delete("/models", params={"model": asked}, headers=ADMIN)
        assert deleted.json() == {"success": True}
        assert [path.name for path in (tmp_path / "models").glob("[!.]*")] == []


async def test_a_repository_s_name_is_the_model_s_that_was_fetched_by_it(
    stand: StandIn, fetching: Running
) -> None:
    for name in ("m-Q2_K.gguf", "m-Q4_K_M.gguf"):
        stand.add(name, bundled.GGUF.read_bytes())
    del stand.files["talk.script.json"]

    async def after(asked: str) -> str:
        fetched = await fetching.client.post("/models", json={"model": asked}, headers=ADMIN)
        assert fetched.status_code == 200
        return fetching.registry.resolve("org/small").name

    assert await after("org/small:Q2_K") == "small-Q2_K/m-Q2_K"
    assert await after("org/small") == "small-Q4_K_M/m-Q4_K_M"
    assert fetching.registry.resolve("org/small:q2_k").name == "small-Q2_K/m-Q2_K"


@pytest.mark.parametrize("model", ["hf:", "hf:small", "hf:org/../up", "org/small:a:b"])
async def test_a_name_that_is_no_place_on_a_hub_is_refused(model: str, refusing: Running) -> None:
    answer = await refusing.client.post("/models", json={"model": model}, headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"


async def test_a_projector_goes_with_the_last_model_that_sees_through_it(
    fetching: Running, tmp_path: Path
) -> None:
    folder = tmp_path / "models" / "pair"
    folder.mkdir(parents=True)
    for name in ("m-Q4.gguf", "m-Q8.gguf"):
        shutil.copy(bundled.GGUF, folder / name)
    write_projector(folder / "mmproj-m-F16.gguf")
    await fetching.registry.refresh()
    for name, left in (("m-Q4", {"m-Q8.gguf", "mmproj-m-F16.gguf"}), ("m-Q8", set())):
        status = fetching.registry.status(f"pair/{name}")
        assert status.modalities == ("text", "image")
        deleted = await fetching.client.delete(f"/models?model={status.id}", headers=ADMIN)
        assert deleted.json() == {"success": True}
        assert {file.name for file in folder.iterdir()} == left
