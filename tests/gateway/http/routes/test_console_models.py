"""What administrators do with models from the console, on a real server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import bundled
from config.document import parse
from config.settings import ConsoleConfig, KeyConfig, ModelConfig
from gateway.reconfiguring.reloading import ConfigSource
from tests.gateway.http.serving import HELLO, Running, config, serving, state

pytestmark = pytest.mark.anyio

KEYS = (KeyConfig(key="admin", role="admin"), KeyConfig(key="user"))
BOSS, USER = {"x-api-key": "admin"}, {"x-api-key": "user"}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    before = config(tmp_path, keys=KEYS)
    async with serving(before, tmp_path, source=ConfigSource(lambda: before)) as server:
        yield server


async def post(running: Running, what: str, **fields: object) -> httpx.Response:
    url = f"/v1/admin/models/{what}"
    return await running.client.post(url, json=fields, headers=BOSS)


async def listed(running: Running) -> dict[str, dict[str, Any]]:
    answer = await running.client.get("/v1/admin/models", headers=BOSS)
    return {one["id"]: one for one in answer.json()["models"]}


def fault(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["param"]


async def test_a_load_is_begun_and_an_unload_waited_for(running: Running) -> None:
    begun = await post(running, "load", model="scripted", options={"context_length": 512})
    assert begun.status_code == 202
    assert begun.json()["id"] == "scripted"
    await state(running, "scripted", "loaded")
    assert (await listed(running))["scripted"]["context_length"] == 512
    gone = await post(running, "unload", model="scripted")
    assert (gone.status_code, gone.json()["state"]) == (200, "unloaded")
    await post(running, "load", model="scripted")
    await state(running, "scripted", "loaded")
    assert (await listed(running))["scripted"]["context_length"] == 4096


async def test_a_load_that_cant_be_is_refused_with_the_field(running: Running) -> None:
    assert (await post(running, "load", model="nobody")).status_code == 404
    bad = await post(running, "load", model="scripted", options={"context_length": "many"})
    assert fault(bad) == (400, "context_length")
    files = {"mmproj": "/etc/passwd"}
    assert fault(await post(running, "load", model="roundhouse-tiny", options=files)) == (
        400,
        "options.mmproj",
    )
    assert (await post(running, "load")).status_code == 400
    assert (await post(running, "load", model="scripted", options=[])).status_code == 400


async def test_pinning_is_reported_and_taken_back(running: Running) -> None:
    assert (await post(running, "pin", model="scripted")).json()["pinned"]
    assert (await listed(running))["scripted"]["pinned"]
    assert not (await post(running, "pin", model="scripted", pinned=False)).json()["pinned"]
    assert (await post(running, "pin", model="nobody")).status_code == 404


async def test_the_options_of_an_engine_are_reported_with_what_is_in_force(
    running: Running,
) -> None:
    url = "/v1/admin/models/options?model=roundhouse-tiny"
    found = (await running.client.get(url, headers=BOSS)).json()
    assert found["backend"] == "llamacpp"
    options = {one["name"]: one for one in found["options"]}
    assert "mmproj" not in options  # it names a file
    assert options["max_concurrent"]["value"] == options["max_concurrent"]["default"] == 16
    assert options["flash_attention"]["choices"] == ["auto", "on", "off"]
    context = options["context_length"]
    assert (context["type"], context["nullable"], context["minimum"]) == ("integer", True, 1)
    assert context["description"].startswith("The largest number of tokens per request")
    nobody = await running.client.get("/v1/admin/models/options?model=x", headers=BOSS)
    assert nobody.status_code == 404


async def test_a_copy_answers_beside_its_original_and_says_how_to_keep_it(running: Running) -> None:
    options = {"context_length": 512}
    made = await post(
        running, "duplicate", model="scripted", name="short", options=options, pinned=True
    )
    assert made.status_code == 201
    model = made.json()["model"]
    assert (model["copy_of"], model["pinned"], model["default"]) == ("scripted", True, False)
    assert (model["state"], model["context_length"]) == ("unloaded", 512)  # not the trained one
    (kept,) = msgspec.convert(parse(made.json()["yaml"], "here")[0], list[ModelConfig])
    assert (kept.name, kept.options, kept.pinned) == ("short", options, True)
    chat = {"model": "short", "messages": HELLO}
    answer = await running.client.post("/v1/chat/completions", json=chat, headers=USER)
    assert answer.json()["model"] == "short"
    rows = await listed(running)
    assert (rows["short"]["context_length"], rows["scripted"]["state"]) == (512, "unloaded")
    assert rows["short"]["aliases"] == []


async def test_a_context_beyond_the_trained_one_is_told_before_the_load(running: Running) -> None:
    options = {"context_length": 8192}
    made = await post(running, "duplicate", model="roundhouse-tiny", name="long", options=options)
    assert made.json()["model"]["context_length"] == 8192


async def test_a_copy_outlives_a_reload_and_can_be_forgotten(running: Running) -> None:
    await post(running, "duplicate", model="roundhouse-tiny", name="twin")
    assert (await running.client.post("/v1/admin/reload", headers=BOSS)).json()["models"] == {
        "added": [],
        "removed": [],
        "reloaded": [],
        "updated": [],
    }
    assert "twin" in await listed(running)
    assert (await post(running, "remove", model="twin")).json() == {"removed": "twin"}
    assert "twin" not in await listed(running)
    assert (await post(running, "remove", model="twin")).status_code == 404
    assert (await post(running, "remove", model="scripted")).status_code == 404


@pytest.mark.parametrize("name", ["scripted", "org/tiny", "default", "", "a\nb", "x" * 201])
async def test_a_copy_needs_a_name_of_its_own(name: str, running: Running) -> None:
    assert fault(await post(running, "duplicate", model="scripted", name=name)) == (400, "name")


async def test_a_copy_with_bad_options_is_none(running: Running) -> None:
    for options in ({"context_length": -1}, {"no_such_option": 1}, {"mmproj": "/etc/passwd"}):
        answer = await post(running, "duplicate", model="scripted", name="b", options=options)
        assert answer.status_code == 400
        assert "options" in answer.json()["error"]["param"]
    assert "b" not in await listed(running)


async def test_a_copy_of_what_lies_in_a_folder_is_not_the_default(tmp_path: Path) -> None:
    known = config(tmp_path)  # its script lies there, too
    alone = msgspec.structs.replace(known, models=(), model_dirs=(str(tmp_path),))
    async with serving(alone, tmp_path) as running:
        (name,) = await listed(running)
        assert (await post(running, "duplicate", model=name, name="twin")).status_code == 201
        assert {one: row["default"] for one, row in (await listed(running)).items()} == {
            name: True,
            "twin": False,
        }
        await post(running, "duplicate", model=name, name="triplet")
        await post(running, "remove", model="twin")
        assert (await listed(running)).keys() == {name, "triplet"}
        await post(running, "remove", model="triplet")
        assert (await listed(running)).keys() == {name}


async def test_a_model_is_added_by_its_path_below_a_folder_that_allows_it(tmp_path: Path) -> None:
    plain = config(tmp_path, keys=KEYS)
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(bundled.GGUF.read_bytes())
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "mine.gguf").write_bytes(outside.read_bytes())
    (folder / "broken.gguf").write_bytes(b"no model")
    (folder / "link.gguf").symlink_to(outside)
    before = msgspec.structs.replace(plain, console=ConsoleConfig(model_paths=(str(folder),)))
    async with serving(before, tmp_path, source=ConfigSource(lambda: before)) as running:
        made = await post(running, "add", path=f"{folder}/mine.gguf")
        assert (made.status_code, made.json()["model"]["state"]) == (201, "unloaded")
        (kept,) = msgspec.convert(parse(made.json()["yaml"], "here")[0], list[ModelConfig])
        assert (kept.name, kept.path) == ("mine", str(folder / "mine.gguf"))
        chat = {"model": "mine", "messages": HELLO, "max_tokens": 2}
        answer = await running.client.post("/v1/chat/completions", json=chat, headers=USER)
        assert answer.status_code == 200
        known = await listed(running)
        for path in (
            str(outside), f"{folder}/link.gguf", f"{folder}/../outside.gguf", f"{folder}/absent",
            f"{folder}/broken.gguf", "a\0b", "~nobody/x", "x" * 5_000, "",
        ):  # fmt: skip
            refused = await post(running, "add", path=path, name="other")
            assert fault(refused) == (400, "path"), path
        assert fault(await post(running, "add", path=f"{folder}/mine.gguf")) == (400, "name")
        assert (await listed(running)).keys() == known.keys()
        assert (await post(running, "remove", model="mine")).status_code == 200
        assert (folder / "mine.gguf").exists()


async def test_no_model_is_added_by_its_path_unless_a_folder_allows_it(running: Running) -> None:
    assert fault(await post(running, "add", path=str(bundled.GGUF))) == (400, "path")


async def estimated(running: Running, model: str, **options: object) -> httpx.Response:
    return await post(running, "estimate", model=model, options=options)


async def test_an_estimate_follows_the_options_and_loads_nothing(running: Running) -> None:
    found = [
        (await estimated(running, "roundhouse-tiny", **options)).json()
        for options in (
            {"context_length": 256, "max_concurrent": 1},
            {"context_length": 1024, "max_concurrent": 1},
            {"context_length": 1024, "max_concurrent": 4},
            {"context_length": 1024, "max_concurrent": 4, "cache_type_k": "q8_0"},
        )
    ]
    assert [one["context_length"] for one in found] == [256, 1024, 1024, 1024]
    assert {one["trained_context"] for one in found} == {2048}
    cache = [one["parts"]["cache"] for one in found]
    assert cache[0] < cache[1] <= cache[2]
    assert cache[3] < cache[2]
    for one in found:
        assert one["fit"]["verdict"] == "fits"
        (main,) = [device for device in one["devices"] if device["needs"]]
        assert main["needs"] == sum(one["parts"].values())
        assert (main["own"], main["others"]) == (0, 0)
        assert main["needs"] < main["budget"]
    assert (await listed(running))["roundhouse-tiny"]["state"] == "unloaded"


async def test_what_a_loaded_model_holds_counts_as_free_for_itself(running: Running) -> None:
    await post(running, "load", model="roundhouse-tiny")
    await state(running, "roundhouse-tiny", "loaded")
    one = (await estimated(running, "roundhouse-tiny", context_length=512)).json()
    assert one["fit"]["verdict"] == "fits"
    (main,) = [device for device in one["devices"] if device["needs"]]
    assert main["own"] > 0
    other = (await estimated(running, "scripted")).json()
    assert sum(device["others"] for device in other["devices"]) == main["own"]


async def test_an_estimate_that_cant_be_made_names_the_option(running: Running) -> None:
    assert fault(await estimated(running, "scripted", context_length="many")) == (
        400,
        "context_length",
    )
    assert fault(await estimated(running, "scripted", nothing=1))[0] == 400
    assert fault(await estimated(running, "roundhouse-tiny", mmproj="/etc/passwd")) == (
        400,
        "options.mmproj",
    )
    assert (await estimated(running, "nobody")).status_code == 404
    body = {"model": "scripted"}
    answer = await running.client.post("/v1/admin/models/estimate", json=body, headers=USER)
    assert answer.status_code == 403
