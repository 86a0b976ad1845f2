"""TabbyAPI's routes on a real server: its shapes, its rights, and what that server does badly."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

import bundled
from config.settings import Config, KeyConfig, ModelConfig
from tests.gateway.http.held_loads import HeldLoads
from tests.gateway.http.serving import LASTING, Running, config, events, send_chat, serving, state
from tests.hang import HANG

pytestmark = pytest.mark.anyio

KEYS = (KeyConfig(key="user"), KeyConfig(key="admin", role="admin"))
USER, ADMIN = {"x-api-key": "user"}, {"x-admin-key": "admin"}
JSON = {"accept": "application/json"}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(config(tmp_path, keys=KEYS), tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
async def asked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server for all that is refused or only asked for: it leaves nothing behind."""
    folder = tmp_path_factory.mktemp("asked")
    async with serving(config(folder, keys=KEYS), folder) as running:
        yield running


# -------------------------------------------------------------------------------------------
# loading


async def test_a_load_is_reported_in_modules_and_ends_with_one_finished(guarded: Running) -> None:
    answer = await guarded.client.post(
        "/v1/model/load", json={"model_name": "scripted"}, headers=ADMIN
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    sent = events(answer.text)
    assert {event["model_type"] for event in sent} == {"model"}
    assert [event["status"] for event in sent].count("finished") == 1
    assert sent[-1]["status"] == "finished"
    assert sent[-1]["module"] == sent[-1]["modules"]
    steps = [event["module"] for event in sent]
    assert steps == sorted(steps)
    assert "[DONE]" not in answer.text
    assert guarded.registry.status("scripted").state == "loaded"


async def test_a_model_that_is_there_is_loaded_in_one_step(guarded: Running) -> None:
    await guarded.registry.load("scripted")
    answer = await guarded.client.post("/v1/model/load", json={"name": "scripted"}, headers=ADMIN)
    step = {"model_type": "model", "module": 1, "modules": 1}
    assert events(answer.text) == [{**step, "status": "processing"}, {**step, "status": "finished"}]


async def test_who_wants_json_gets_one_answer(guarded: Running) -> None:
    answer = await guarded.client.post(
        "/v1/model/load", json={"model_name": "scripted"}, headers={**ADMIN, **JSON}
    )
    assert answer.json() == {
        "model_type": "model",
        "module": 1,
        "modules": 1,
        "status": "finished",
    }


async def test_the_loader_extensions_old_form_is_understood(guarded: Running) -> None:
    body = {
        "name": "scripted",
        "max_seq_len": 2048,
        "max_batch_size": 3,
        "rope_scale": 1,
        "rope_alpha": 1,
        "gpu_split_auto": True,
        "gpu_split": [],
        "cache_mode": "FP16",
        "fasttensors": True,
        "draft": {"draft_model_name": ""},
    }
    answer = await guarded.client.post("/v1/model/load", json=body, headers=ADMIN)
    assert events(answer.text)[-1]["status"] == "finished"
    parameters = (await guarded.client.get("/v1/model", headers=USER)).json()["parameters"]
    assert parameters["max_seq_len"] == 2048
    assert parameters["max_batch_size"] == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cache_mode": "Q6"}, "cache_mode"),
        ({"flux_capacitor": 1}, "flux_capacitor"),
        ({"max_seq_len": "long"}, "max_seq_len"),
        ({"tensor_parallel": True}, "tensor_parallel"),
        ({"backend": "exllamav2"}, "backend"),
        ({"vision": True}, "vision"),
        ({"draft_model": {"draft_model_name": "roundhouse-tiny"}}, "draft_model"),
        ({"prompt_template": "nothing"}, "prompt_template"),
        ({"cache_size": 0}, "cache_size"),
        ({"max_seq_len": 512, "warp": 9}, "warp"),
        ({"tokens_per_second": "fast"}, "tokens_per_second"),
    ],
)
async def test_an_option_that_cant_be_met_is_named_and_nothing_moves(
    options: dict[str, Any], named: str, asked: Running
) -> None:
    await asked.registry.load("scripted")
    body = {"model_name": "scripted", **options}
    answer = await asked.client.post("/v1/model/load", json=body, headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == named
    assert named in answer.json()["detail"] or named == "prompt_template"
    assert asked.registry.status("scripted").state == "loaded"


async def test_two_callers_share_one_load(tmp_path: Path) -> None:
    loads, body = HeldLoads(), {"model_name": "scripted"}
    streams: list[list[dict[str, Any]]] = [[], []]

    async def ask(steps: list[dict[str, Any]]) -> None:
        async with running.client.stream("POST", "/v1/model/load", json=body) as answer:
            async for line in answer.aiter_lines():
                steps += events(line)
                if all(streams):
                    loads.go.set()

    async with serving(config(tmp_path), tmp_path, loads.catalog) as running:
        async with anyio.create_task_group() as tasks:
            for steps in streams:
                tasks.start_soon(ask, steps)
    for steps in streams:
        assert [one["status"] for one in steps] == ["processing", "finished"]
        assert steps[0]["module"] * 2 == steps[0]["modules"]
    assert loads.begun == 1


async def test_a_client_that_leaves_doesnt_stop_a_load(tmp_path: Path) -> None:
    async with serving(config(tmp_path, load_seconds=0.5), tmp_path) as running:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                lambda: running.client.post("/v1/model/load", json={"model_name": "scripted"})
            )
            await state(running, "scripted", "loading")
            tasks.cancel_scope.cancel()
        await state(running, "scripted", "loaded")


@pytest.mark.parametrize("headers", [{}, JSON])
async def test_a_load_that_fails_says_why_and_leaves_the_others(
    headers: dict[str, str], tmp_path: Path
) -> None:
    loads = HeldLoads()
    async with serving(config(tmp_path), tmp_path, loads.catalog) as running:
        await running.registry.load("roundhouse-tiny")
        answers: list[httpx.Response] = []

        async def ask() -> None:
            body = {"model_name": "scripted"}
            answers.append(await running.client.post("/v1/model/load", json=body, headers=headers))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await state(running, "scripted", "loading")
            running.registry.resolve("scripted").files.path.write_text("no script any more")
            loads.go.set()
        (answer,) = answers
        if headers == JSON:
            assert answer.status_code == 503
            error = answer.json()["error"]
        else:
            assert not any(event.get("status") == "finished" for event in events(answer.text))
            error = events(answer.text)[-1]["error"]
        assert "scripted could not be loaded" in error["message"]
        assert running.registry.status("roundhouse-tiny").state == "loaded"


async def test_a_model_whose_file_is_cut_off_says_so_and_nothing_moves(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(bundled.GGUF.read_bytes()[:300_000])
    settings = config(tmp_path)
    models = (*settings.models, ModelConfig(name="broken", path=str(broken)))
    async with serving(msgspec.structs.replace(settings, models=models), tmp_path) as running:
        answer = await running.client.post("/v1/model/load", json={"model_name": "broken"})
        assert answer.status_code == 503
        assert "cut off" in answer.json()["detail"]
        listed = (await running.client.get("/models")).json()["data"]
        card = next(one for one in listed if one["id"] == "broken")
        assert card["state"] == "failed"
        assert "cut off" in card["why_failed"]
        assert card["status"] == {"value": "unloaded", "failed": True, "percent": None}
        gone = await running.client.post("/unload", json={"model": "broken"})
        assert (gone.status_code, gone.json()["message"]) == (200, "No model was loaded.")


async def test_an_unknown_model_is_not_found_and_leaves_the_others(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        await running.registry.load("scripted")
        answer = await running.client.post("/v1/model/load", json={"model_name": "nothing-there"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["detail"]
        assert running.registry.status("scripted").state == "loaded"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "scripted/../scripted"])
async def test_names_dont_leave_their_root(name: str, asked: Running) -> None:
    answer = await asked.client.post("/v1/model/load", json={"model_name": name}, headers=ADMIN)
    assert answer.status_code == 404
    for path, field in (
        ("/v1/template/switch", "prompt_template_name"),
        ("/v1/sampling/override/switch", "preset"),
    ):
        answer = await asked.client.post(path, json={field: name}, headers=ADMIN)
        assert answer.status_code == 400


async def test_unloading_names_one_model_or_all(guarded: Running) -> None:
    await guarded.registry.load("scripted")
    answer = await guarded.client.post(
        "/v1/model/unload", json={"model": "scripted"}, headers=ADMIN
    )
    assert answer.status_code == 200
    assert answer.json() is None
    again = await guarded.client.post("/v1/model/unload", headers=ADMIN)
    assert again.status_code == 503
    assert "detail" in again.json()


async def test_force_ends_running_answers_with_an_error_event(tmp_path: Path) -> None:
    async with serving(config(tmp_path, tokens_per_second=LASTING), tmp_path) as running:
        body = {
            "model": "scripted",
            "stream": True,
            "messages": [{"role": "user", "content": "long"}],
        }
        async with await send_chat(running, msgspec.json.encode(body)) as stream:
            received = b""
            with anyio.fail_after(HANG):
                while b"content" not in received:
                    received += await stream.receive()
            gone = await running.client.post(
                "/v1/model/unload", json={"model": "scripted", "force": True}
            )
            assert gone.status_code == 200
            with anyio.fail_after(HANG):
                while b'"error"' not in received:
                    received += await stream.receive()
            assert b"unloaded by an administrator" in received
            assert b"[DONE]" not in received
        assert running.registry.status("scripted").state == "unloaded"


# --------------------------------------------------------------------------------------------
# rights


@pytest.mark.parametrize(
    "path",
    [
        "/v1/model/load",
        "/v1/model/unload",
        "/v1/template/switch",
        "/v1/template/unload",
        "/v1/sampling/override/switch",
        "/v1/sampling/override/unload",
        "/v1/lora/load",
        "/v1/lora/unload",
    ],
)
async def test_users_may_not_change_anything(path: str, asked: Running) -> None:
    for headers, status in ((USER, 403), ({}, 401), ({"x-admin-key": "wrong"}, 401)):
        answer = await asked.client.post(path, json={}, headers=headers)
        assert answer.status_code == status
        assert set(answer.json()) == {"error", "detail"}
        assert answer.json()["detail"] == answer.json()["error"]["message"]


async def test_a_key_learns_what_it_may_do(asked: Running) -> None:
    for headers, permission in (
        (USER, "api"),
        (ADMIN, "admin"),
        ({"authorization": "Bearer admin"}, "admin"),
    ):
        answer = await asked.client.get("/v1/auth/permission", headers=headers)
        assert answer.json() == {"permission": permission}


async def test_pages_may_call_only_where_the_configuration_says_so(tmp_path: Path) -> None:
    settings = config(tmp_path)
    page = {
        "origin": "http://127.0.0.1:8123",
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-admin-key,x-api-key,x-csrf-token,content-type",
    }
    async with serving(settings, tmp_path) as running:
        answer = await running.client.options("/v1/model/load", headers=page)
        assert "access-control-allow-origin" not in answer.headers
    server = msgspec.structs.replace(settings.server, cors_origins=("http://127.0.0.1:8123",))
    async with serving(msgspec.structs.replace(settings, server=server), tmp_path) as running:
        answer = await running.client.options("/v1/model/load", headers=page)
        assert answer.headers["access-control-allow-origin"] == page["origin"]
        allowed = answer.headers["access-control-allow-headers"]
        assert all(name in allowed for name in ("x-admin-key", "x-api-key", "x-csrf-token"))
        other = {**page, "origin": "http://evil.example"}
        answer = await running.client.options("/v1/model/load", headers=other)
        assert answer.headers.get("access-control-allow-origin") != other["origin"]


# --------------------------------------------------------------------------------------------
# asking


async def test_the_list_and_the_current_model(guarded: Running) -> None:
    default = (await guarded.client.get("/v1/model", headers=USER)).json()
    assert (default["id"], default["parameters"]) == ("roundhouse-tiny", None)
    listed = (await guarded.client.get("/v1/model/list", headers=USER)).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["roundhouse-tiny", "scripted"]
    await guarded.registry.load("roundhouse-tiny")
    card = (await guarded.client.get("/v1/model", headers=USER)).json()
    assert card["id"] == "roundhouse-tiny"
    assert card["parameters"]["prompt_template_content"]
    assert card["output_format"]["id"]
    assert card["output_format"]["why"]
    assert set(card["capabilities"]) == {"tools", "reasoning"}


async def test_capabilities_are_reported_before_a_load_and_created_isnt_now(
    guarded: Running,
) -> None:
    answer = await guarded.client.get("/v1/models/roundhouse-tiny", headers=USER)
    card = answer.json()
    assert card["state"] == "unloaded"
    assert set(card["capabilities"]) == {"tools", "reasoning"}
    assert card["status"]["value"] == "unloaded"
    assert "needs" in card["memory"]
    entry = guarded.registry.resolve("roundhouse-tiny")
    assert card["created"] == int(entry.files.path.stat().st_mtime)


async def test_the_list_answers_while_a_model_loads(tmp_path: Path) -> None:
    async with serving(config(tmp_path, load_seconds=2 * HANG), tmp_path) as running:
        async with running.registry.loading("scripted"):
            with anyio.fail_after(HANG):
                while running.registry.status("scripted").progress is None:
                    await anyio.sleep(0.005)
            for path in ("/v1/models", "/v1/model/list"):
                listed = (await running.client.get(path)).json()["data"]
                card = next(one for one in listed if one["id"] == "scripted")
                assert card["state"] == card["status"]["value"] == "loading"
                assert card["status"]["percent"] in range(101)


async def test_tokens_there_and_back(asked: Running) -> None:
    text = "Hello, wörld!<|im_end|>"
    body = {"text": text, "model": "roundhouse-tiny", "add_bos_token": False}
    encoded = (await asked.client.post("/v1/token/encode", json=body, headers=USER)).json()
    assert encoded["length"] == len(encoded["tokens"]) > 0
    decode = {"tokens": encoded["tokens"], "model": "roundhouse-tiny"}
    decoded = (await asked.client.post("/v1/token/decode", json=decode, headers=USER)).json()
    assert decoded == {"text": text}
    plain = {**decode, "decode_special_tokens": False}
    decoded = (await asked.client.post("/v1/token/decode", json=plain, headers=USER)).json()
    assert decoded == {"text": "Hello, wörld!"}
    as_text = {**body, "encode_special_tokens": False}
    longer = (await asked.client.post("/v1/token/encode", json=as_text, headers=USER)).json()
    assert longer["length"] > encoded["length"]


async def test_a_conversation_is_counted_as_its_answers_prompt(asked: Running) -> None:
    messages = [{"role": "user", "content": "Hello!"}]
    body = {"text": messages, "model": "roundhouse-tiny"}
    encoded = (await asked.client.post("/v1/token/encode", json=body, headers=USER)).json()
    chat = {"model": "roundhouse-tiny", "messages": messages, "max_tokens": 1}
    usage = (await asked.client.post("/v1/chat/completions", json=chat, headers=USER)).json()[
        "usage"
    ]
    assert encoded["length"] == usage["prompt_tokens"]


async def test_a_message_makes_no_control_token_unless_it_may(asked: Running) -> None:
    async def ends(**fields: Any) -> int:
        body = {"text": [{"role": "user", "content": "a<|im_end|>b"}], "model": "roundhouse-tiny"}
        answer = await asked.client.post("/v1/token/encode", json={**body, **fields}, headers=USER)
        return int(answer.json()["tokens"].count(end))

    body = {"text": "<|im_end|>", "model": "roundhouse-tiny"}
    encoded = await asked.client.post("/v1/token/encode", json=body, headers=USER)
    (end,) = encoded.json()["tokens"]
    assert (await ends(), await ends(allow_control_tokens=True)) == (1, 2)


async def test_without_a_name_the_loaded_model_counts(guarded: Running) -> None:
    body = {"text": "abc"}
    await guarded.registry.load("scripted")
    counted = await guarded.client.post("/v1/token/encode", json=body, headers=USER)
    assert counted.json() == {"tokens": [97, 98, 99], "length": 3}


async def test_without_a_name_and_a_loaded_model_the_default_counts(guarded: Running) -> None:
    body = {"text": "abc"}
    unnamed = (await guarded.client.post("/v1/token/encode", json=body, headers=USER)).json()
    named = await guarded.client.post(
        "/v1/token/encode", json={**body, "model": "roundhouse-tiny"}, headers=USER
    )
    assert unnamed == named.json()
    assert guarded.registry.status("roundhouse-tiny").state == "loaded"


@pytest.mark.parametrize(
    ("body", "named"),
    [({"tokens": [-1]}, "tokens[0]"), ({"tokens": [10**9]}, "tokens"), ({}, "tokens")],
)
async def test_tokens_that_dont_exist_are_refused(
    body: dict[str, Any], named: str, asked: Running
) -> None:
    answer = await asked.client.post(
        "/v1/token/decode", json={**body, "model": "scripted"}, headers=USER
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == named


async def test_loras_are_honest(asked: Running) -> None:
    for path in ("/v1/loras", "/v1/lora/list", "/v1/lora"):
        answer = await asked.client.get(path, headers=USER)
        assert answer.json() == {"object": "list", "data": []}
    answer = await asked.client.post(
        "/v1/lora/load", json={"loras": [{"name": "x"}]}, headers=ADMIN
    )
    assert answer.status_code == 400
    assert "adapters" in answer.json()["detail"]


async def test_the_service_introduces_itself(asked: Running) -> None:
    about = (await asked.client.get("/.well-known/serviceinfo")).json()
    assert about["software"]["name"] == "Roundhouse"
    assert about["api"]["openai"]["relative_url"] == "/v1"
    assert about["api"]["koboldai"]["relative_url"] == "/api"


# ------------------------------------------------------------------------- templates and overrides


def with_folders(folder: Path) -> Config:
    templates, presets = folder / "templates", folder / "presets"
    templates.mkdir()
    presets.mkdir()
    (templates / "shout.jinja").write_text(
        "{% for m in messages %}think {{ m.content }}{% endfor %}"
    )
    (templates / "broken.jinja").write_text("{% for %}")
    (presets / "short.yml").write_text("max_tokens: {override: 5, force: true}\n")
    (presets / "wrong.yml").write_text("flux: {override: 5}\n")
    return msgspec.structs.replace(
        config(folder, keys=KEYS), template_dir=str(templates), preset_dir=str(presets)
    )


async def test_a_template_is_switched_and_taken_back(tmp_path: Path) -> None:
    chat = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    async with serving(with_folders(tmp_path), tmp_path) as running:

        async def said() -> str:
            answer = await running.client.post("/v1/chat/completions", json=chat, headers=USER)
            return str(answer.json()["choices"][0]["message"]["content"])

        assert await said() == "Hello from the script."
        listed = await running.client.get("/v1/templates", headers=ADMIN)
        assert listed.json() == {"object": "list", "data": ["broken", "shout"]}
        assert (await running.client.get("/v1/templates", headers=USER)).json()["data"] == []
        switch = {"prompt_template_name": "shout", "model": "scripted"}
        done = await running.client.post("/v1/template/switch", json=switch, headers=ADMIN)
        assert done.json() is None
        assert (await said()).endswith("Seen.")
        assert (await running.client.get("/v1/templates", headers=USER)).json()["data"] == ["shout"]
        broken = {"prompt_template_name": "broken", "model": "scripted"}
        refused = await running.client.post("/v1/template/switch", json=broken, headers=ADMIN)
        assert refused.status_code == 400
        await running.client.post("/v1/template/unload", json={"model": "scripted"}, headers=ADMIN)
        assert await said() == "Hello from the script."


async def test_sampling_overrides_are_applied_until_they_are_unloaded(tmp_path: Path) -> None:
    text = {"model": "scripted", "prompt": "Hi", "max_tokens": 9}
    async with serving(with_folders(tmp_path), tmp_path) as running:

        async def spent() -> int:
            answer = await running.client.post("/v1/completions", json=text, headers=USER)
            return int(answer.json()["usage"]["completion_tokens"])

        assert await spent() == 9
        switch = "/v1/sampling/override/switch"
        await running.client.post(switch, json={"preset": "short"}, headers=ADMIN)
        assert await spent() == 5
        in_force = (await running.client.get("/v1/sampling/overrides", headers=ADMIN)).json()
        assert in_force == {
            "selected_preset": "short",
            "overrides": {"max_tokens": {"override": 5, "force": True, "additive": False}},
            "presets": ["short", "wrong"],
        }
        assert (await running.client.get("/v1/sampling/overrides", headers=USER)).json()[
            "presets"
        ] == []
        for body in (
            {"preset": "wrong"},
            {"preset": "none"},
            {},
            {"overrides": {"top_p": {"override": 7}}},
        ):
            refused = await running.client.post(switch, json=body, headers=ADMIN)
            assert refused.status_code == 400
        assert await spent() == 5
        inline = {"overrides": {"max_tokens": {"override": 3}}}
        await running.client.post(switch, json=inline, headers=ADMIN)
        assert await spent() == 9
        await running.client.post("/v1/sampling/override/unload", headers=ADMIN)
        assert running.registry.status("scripted").state == "loaded"
        assert await spent() == 9
