"""llama-server's slots on a real socket: told to all, saved and put back by administrators, in
files of one folder alone.
"""

import json
import random
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from backends.machine.paths import replace_file
from config.settings import Config, KeyConfig, LlamaServerConfig, ModelConfig
from gateway.http.routes import llamaserver
from tests.backends import random_gguf
from tests.gateway.http.serving import LASTING, Running, config, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

TINY = "roundhouse-tiny"
FIRST, SECOND = "What is the capital of France?", "What is the capital of Germany?"
KEYS = (KeyConfig(key="user"), KeyConfig(key="admin", role="admin"))
USER, ADMIN = {"x-api-key": "user"}, {"x-api-key": "admin"}


def settings(folder: Path, **options: Any) -> Config:
    saved = LlamaServerConfig(slot_save_path=str(folder / "saved"))
    return msgspec.structs.replace(config(folder, **options), llamaserver=saved)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(settings(tmp_path), tmp_path) as running:
        yield running


async def complete(running: Running, prompt: str, slot: int) -> dict[str, Any]:
    body = {"model": TINY, "prompt": prompt, "id_slot": slot, "n_predict": 8, "temperature": 0}
    answer: dict[str, Any] = (await running.client.post("/completion", json=body)).json()
    return answer


async def order(running: Running, slot: object, action: str, **fields: Any) -> httpx.Response:
    body = {"model": TINY, **fields}
    return await running.client.post(f"/slots/{slot}?action={action}", json=body)


async def test_a_slot_s_cache_is_saved_and_restored(running: Running, tmp_path: Path) -> None:
    first = await complete(running, FIRST, 1)
    assert first["tokens_cached"] == 0
    saved = (await order(running, 1, "save", filename="slot1.bin")).json()
    assert saved["n_saved"] == first["tokens_evaluated"] + first["tokens_predicted"] - 1
    file = tmp_path / "saved" / "slot1.bin"
    assert saved["n_written"] == file.stat().st_size
    assert file.stat().st_mode & 0o077 == 0
    other = await complete(running, SECOND, 1)
    common = other["tokens_cached"]
    assert 0 < common < other["tokens_evaluated"] - 1
    restored = (await order(running, 0, "restore", filename="slot1.bin")).json()
    assert restored["n_restored"] == saved["n_saved"]
    assert restored["n_read"] == saved["n_written"]
    assert (await complete(running, SECOND, 0))["tokens_cached"] == common
    again = await complete(running, SECOND, 1)
    assert again["tokens_cached"] == again["tokens_evaluated"] - 1


async def test_what_is_saved_outlives_the_model(running: Running) -> None:
    first = await complete(running, FIRST, 0)
    await order(running, 0, "save", filename="a.bin")
    await running.client.post("/unload", json={})
    await order(running, 3, "restore", filename="a.bin")
    again = await complete(running, FIRST, 3)
    assert again["content"] == first["content"]
    assert again["tokens_cached"] == again["tokens_evaluated"] - 1


async def test_an_erased_slot_is_empty(running: Running) -> None:
    first = await complete(running, FIRST, 1)
    erased = (await order(running, 1, "erase")).json()
    kept = first["tokens_evaluated"] + first["tokens_predicted"] - 1
    assert erased == {"id_slot": 1, "n_erased": kept}
    assert (await complete(running, FIRST, 1))["tokens_cached"] == 0


OUTSIDE = [
    "",
    ".",
    "..",
    "../out.bin",
    "/etc/passwd",
    "a/b.bin",
    "..\\out.bin",
    "C:out.bin",
    ".hidden",
    "a\nb",
    "a\0b",
    "link.bin",
    "x" * 300,
]


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_no_name_leads_out_of_the_folder(tmp_path: Path, action: str) -> None:
    outside = tmp_path / "outside.bin"
    outside.write_bytes(b"untouched")
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "link.bin").symlink_to(outside)
    async with serving(settings(tmp_path), tmp_path) as running:
        for name in OUTSIDE:
            answer = await order(running, 0, action, filename=name)
            assert answer.status_code == 400, name
            assert answer.json()["error"]["param"] == "filename", name
    assert outside.read_bytes() == b"untouched"
    assert [file.name for file in folder.iterdir()] == ["link.bin"]


async def test_what_is_no_saved_slot_is_refused(running: Running, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "other.bin").write_bytes(b"GGUF" * 100)
    for name in ("other.bin", "none.bin"):
        answer = await order(running, 0, "restore", filename=name)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "filename")


async def test_a_changed_file_is_never_restored(running: Running, tmp_path: Path) -> None:
    """A byte, a piece, an end: whatever changed, and however little."""
    await complete(running, FIRST, 0)
    assert (await order(running, 0, "save", filename="a.bin")).status_code == 200
    file, digest = (tmp_path / "saved" / name for name in ("a.bin", "a.bin.sha256"))
    whole, dice = file.read_bytes(), random.Random(0)
    assert digest.stat().st_mode & 0o077 == 0
    assert digest.read_text() == f"{sha256(whole).hexdigest()}  a.bin\n"
    for number in range(200):
        at, count = dice.randrange(len(whole)), dice.choice((1, 1, 4, 100))
        changed = bytes(255 - byte for byte in whole[at : at + count])
        match number % 4:
            case 0:
                file.write_bytes(whole[:at])
            case 1:
                file.write_bytes(whole[:at] + changed + whole[at:])
            case _:
                file.write_bytes(whole[:at] + changed + whole[at + count :])
        answer = await order(running, 1, "restore", filename="a.bin")
        assert answer.status_code == 400
        assert "not what was saved" in answer.json()["error"]["message"]
    states = (await running.client.get(f"/slots?model={TINY}")).json()
    assert states[1]["n_prompt_tokens_cache"] == 0
    file.write_bytes(whole)
    assert (await order(running, 1, "restore", filename="a.bin")).json()["verified"] is True
    for text in ("", "0" * 64, sha256(b"").hexdigest()):
        digest.write_text(text)
        assert (await order(running, 1, "restore", filename="a.bin")).status_code == 400


async def test_two_that_save_to_one_file_leave_one_s(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the first takes between its two files."""
    taken = threading.Semaphore(1)

    def slowly(path: Path, data: bytes) -> None:
        replace_file(path, data)
        if taken.acquire(blocking=False):
            time.sleep(0.5)

    monkeypatch.setattr(llamaserver, "replace_file", slowly)
    for slot, prompt in enumerate((FIRST, SECOND)):
        await complete(running, prompt, slot)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(order, running, 0, "save", filename="a.bin"))
        await anyio.sleep(0.2)
        tasks.start_soon(partial(order, running, 1, "save", filename="a.bin"))
    assert (await order(running, 0, "restore", filename="a.bin")).status_code == 200


async def test_a_file_of_llama_server_has_no_digest(running: Running, tmp_path: Path) -> None:
    await complete(running, FIRST, 0)
    await order(running, 0, "save", filename="a.bin")
    (tmp_path / "saved" / "a.bin.sha256").unlink()
    assert (await order(running, 1, "restore", filename="a.bin")).json()["verified"] is False
    answer = await order(running, 0, "save", filename="a.sha256")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "filename")


async def test_orders_that_mean_nothing_are_named(running: Running) -> None:
    answer = await order(running, 0, "burn")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "action")
    answer = await order(running, "x", "erase")
    assert answer.status_code == 404
    answer = await order(running, 99, "erase")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "id_slot")


async def test_an_engine_without_such_slots_says_so(running: Running) -> None:
    answer = await order(running, 0, "erase", model="scripted")
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")


async def test_without_a_folder_nothing_is_saved(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        answer = await order(running, 0, "save", filename="a.bin")
        assert answer.status_code == 501
        assert (await order(running, 0, "erase")).status_code == 200


async def test_slots_are_reported_without_loading(running: Running) -> None:
    for model in (TINY, "scripted"):
        slots = (await running.client.get(f"/slots?model={model}")).json()
        assert [one["id"] for one in slots] == list(range(16))
        for one in slots:
            assert one["is_processing"] is False
            assert one["next_token"] == [{"has_next_token": False, "n_remain": -1, "n_decoded": 0}]
            assert "params" not in one
        assert running.registry.status(model).state == "unloaded"


async def test_a_busy_slot_is_reported_and_its_parameters_to_administrators(tmp_path: Path) -> None:
    slow = settings(tmp_path, max_concurrent=2, tokens_per_second=LASTING)
    slow = msgspec.structs.replace(slow, keys=KEYS)
    body = {
        "model": "scripted",
        "prompt": "long",
        "n_predict": 1800,
        "temperature": 0.5,
        "stop": ["secret"],
    }
    async with serving(slow, tmp_path) as running:
        stream = running.client.stream(
            "POST", "/completion", json={**body, "stream": True}, headers=USER
        )
        async with stream as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            path = "/slots?model=scripted&fail_on_no_slot=1"
            slots = (await running.client.get(path, headers=USER)).json()
            seen = (await running.client.get(path, headers=ADMIN)).json()
        assert [one["is_processing"] for one in slots] == [True, False]
        assert slots[0]["n_prompt_tokens"] == len("long")
        (next_token,) = slots[0]["next_token"]
        assert next_token["n_decoded"] + next_token["n_remain"] == 1800
        assert "params" not in slots[0]
        assert seen[0]["params"]["temperature"] == 0.5
        assert "secret" not in str(seen)
        with anyio.fail_after(HANG):
            while (await running.client.get(path, headers=USER)).json()[0]["is_processing"]:
                await anyio.sleep(0.01)


async def test_a_server_of_which_all_slots_are_busy_fails_where_that_is_asked(
    tmp_path: Path,
) -> None:
    slow = settings(tmp_path, max_concurrent=1, tokens_per_second=LASTING)
    body = {"model": "scripted", "prompt": "long", "stream": True}
    async with serving(slow, tmp_path) as running:
        async with running.client.stream("POST", "/completion", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            path = "/slots?model=scripted"
            assert (await running.client.get(path)).status_code == 200
            assert (await running.client.get(f"{path}&fail_on_no_slot=1")).status_code == 503


async def test_slots_may_be_nobody_s_business(tmp_path: Path) -> None:
    closed = msgspec.structs.replace(config(tmp_path), llamaserver=LlamaServerConfig(slots=False))
    async with serving(closed, tmp_path) as running:
        assert (await running.client.get("/slots")).status_code == 501


async def test_only_administrators_order(tmp_path: Path) -> None:
    keyed = msgspec.structs.replace(settings(tmp_path), keys=KEYS)
    async with serving(keyed, tmp_path) as running:
        for action in ("save", "restore", "erase"):
            answer = await running.client.post(
                f"/slots/0?action={action}", json={"filename": "a"}, headers=USER
            )
            assert answer.status_code == 403


# ---------------------------------------------------------------------------- properties and tokens


async def test_props_tell_what_a_request_gets_by_default(tmp_path: Path) -> None:
    keyed = msgspec.structs.replace(settings(tmp_path), keys=KEYS)
    tiny = msgspec.structs.replace(
        keyed.models[0],
        sampling={"seed": 42, "temperature": 0.3},
        options={"context_length": 256},
    )
    keyed = msgspec.structs.replace(keyed, models=(tiny, *keyed.models[1:]))
    async with serving(keyed, tmp_path) as running:
        path = f"/props?model={TINY}"
        asleep = (await running.client.get(path, headers=USER)).json()
        assert asleep["is_sleeping"] is True
        assert "model_path" not in asleep
        await running.client.post("/tokenize", json={"model": TINY, "content": "a"}, headers=USER)
        awake = (await running.client.get(path, headers=ADMIN)).json()
    assert awake["is_sleeping"] is False
    assert awake["model_path"].endswith(".gguf")
    assert awake["eos_token"] == "<|im_end|>"
    assert awake["build_info"].startswith("roundhouse-")
    params = awake["default_generation_settings"]["params"]
    assert (params["seed"], params["temperature"]) == (42, 0.3)
    assert params == asleep["default_generation_settings"]["params"]
    assert params["n_ctx"] == awake["default_generation_settings"]["n_ctx"] == 256


async def test_tokens_come_with_their_pieces(running: Running) -> None:
    text = "unicode 媽 and emoji 🤗"
    body = {"model": TINY, "content": text, "with_pieces": True}
    tokens = (await running.client.post("/tokenize", json=body)).json()["tokens"]
    pieces = [
        one["piece"].encode() if isinstance(one["piece"], str) else bytes(one["piece"])
        for one in tokens
    ]
    assert b"".join(pieces).decode() == text
    assert any(isinstance(one["piece"], list) for one in tokens)
    plain = (await running.client.post("/tokenize", json={**body, "with_pieces": False})).json()
    assert [one["id"] for one in tokens] == plain["tokens"]


async def test_props_say_the_same_before_a_model_is_loaded(tmp_path: Path) -> None:
    """Also of what stands beside its file, and after that has changed."""
    (tmp_path / "own").mkdir()
    model = random_gguf.write(tmp_path / "own" / "model.gguf", random_gguf.Dimensions())
    known = msgspec.structs.replace(
        config(tmp_path), models=(ModelConfig(name="own", path=str(model)),)
    )
    async with serving(known, tmp_path) as running:
        for temperature in (0.25, 0.5):
            said = json.dumps({"temperature": temperature})
            (tmp_path / "own" / "generation_config.json").write_text(said)
            await running.registry.refresh()
            for is_sleeping in (True, False):
                found = (await running.client.get("/props?model=own")).json()
                assert found["is_sleeping"] is is_sleeping
                params = found["default_generation_settings"]["params"]
                assert params["temperature"] == temperature
                body = {"model": "own", "prompt": "a", "n_predict": 1}
                assert (await running.client.post("/completion", json=body)).status_code == 200
            await running.client.post("/unload", json={})
