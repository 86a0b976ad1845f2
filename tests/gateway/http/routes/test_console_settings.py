"""Settings, the log and what engines apply, as a real server tells them; secrets stay secret."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from config.loader import load_config, origins
from config.settings import Config, KeyConfig
from gateway.reconfiguring.reloading import ConfigSource, Explained
from gateway.terms.logs import LogLines
from tests.gateway.http.serving import Running, config, serving

pytestmark = pytest.mark.anyio

BOSS, USER = {"x-api-key": "a-very-secret-key"}, {"x-api-key": "another-secret"}
TEXT = """\
server:
  max_choices: 8
keys:
  - key: a-very-secret-key  # old key: a-commented-secret
    role: admin
  - {key: 'another-secret'}
  - key: env:THIRD
upstreams:
  - name: cloud
    urls: [http://127.0.0.1:9/v1]
    proxy: http://me:a-password@127.0.0.1:9
    key: "upstream-secret"
    headers: {x-token: header-secret}
    models: {far: near}
#  - key: a-commented-secret
console: {edit_config: true}
"""
ENVIRONMENT = {"THIRD": "third-secret", "ROUNDHOUSE_SWAP_TTL": "60"}
OVERRIDES = {"server.host": "127.0.0.1"}
SECRETS = ("secret-key", "another-secret", "third-secret", "a-password", "upstream-secret")
HIDDEN = (*SECRETS, "header-secret", "a-commented-secret")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    file = tmp_path / "roundhouse.yaml"
    file.write_text(TEXT)
    plain = config(tmp_path)

    def understand(text: str) -> Config:
        found = load_config(file, ENVIRONMENT, text=text, overrides=OVERRIDES)
        server = msgspec.structs.replace(found.server, port=0)
        return msgspec.structs.replace(found, models=plain.models, server=server)

    def explain() -> Explained:
        text = file.read_text()
        return Explained(text, origins(text, file, ENVIRONMENT, overrides=OVERRIDES))

    source = ConfigSource(lambda: understand(file.read_text()), file, understand, explain)
    async with serving(understand(TEXT), tmp_path, source=source) as server:
        yield server


async def settings_shown(running: Running) -> dict[str, Any]:
    answer = await running.client.get("/v1/admin/settings", headers=BOSS)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def checked(running: Running, text: str) -> dict[str, Any]:
    url = "/v1/admin/settings/check"
    answer = await running.client.post(url, json={"text": text}, headers=BOSS)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_each_value_says_where_it_comes_from(running: Running) -> None:
    found = await settings_shown(running)
    options = {one["option"]: one for one in found["options"]}
    choices = options["server.max_choices"]
    assert (choices["value"], choices["default"], choices["source"]) == (8, 256, "file")
    assert choices["where"] == f"{found['file']}:2"
    assert choices["effect"] == "live"
    assert options["swap.ttl"]["source"] == "variable"
    assert options["swap.ttl"]["where"] == "ROUNDHOUSE_SWAP_TTL"
    assert options["server.host"]["source"] == "command line"
    assert options["models"]["source"] == "command line"
    assert (options["log.level"]["source"], options["log.level"]["where"]) == ("default", None)
    assert (
        options["server.hosts"]["source"] == options["server.cors_origins"]["source"] == "default"
    )
    assert options["log.level"]["choices"] == ["debug", "info", "warning", "error"]
    assert options["server.max_choices"]["description"]


async def test_no_secret_is_reported(running: Running) -> None:
    answer = await running.client.get("/v1/admin/settings", headers=BOSS)
    for secret in HIDDEN:
        assert secret not in answer.text
    found = answer.json()
    assert "env:THIRD" in found["text"]  # where a secret is, is none
    assert found["text"].count("\n") == TEXT.count("\n")
    assert (await running.client.get("/v1/admin/settings", headers=USER)).status_code == 403


async def test_a_text_is_checked_as_the_file_and_told_what_it_would_do(running: Running) -> None:
    same = await checked(running, (await settings_shown(running))["text"])
    assert same["ok"], same
    other = TEXT.replace("max_choices: 8", "max_choices: 9")
    assert (await checked(running, other))["plan"]["changed"] == ["server.max_choices"]
    shown = (await settings_shown(running))["text"].replace("max_choices: 8", "max_choices: 9")
    assert (await checked(running, shown))["plan"]["changed"] == ["server.max_choices"]
    options = {one["option"]: one for one in (await settings_shown(running))["options"]}
    assert options["server.max_choices"]["value"] == 8  # nothing was put in force


@pytest.mark.parametrize(
    ("text", "line", "option"),
    [
        ("server:\n  max_choices: many\n", 2, "$.server.max_choices"),
        ("server:\n\n  no_such: 1\n", 3, "$.server.no_such"),
        ("a: [", 1, "$"),
        ("keys:\n  - key: env:NOBODY\n", 2, "$.keys[0].key"),
        ("&a [*a]", None, "$"),
    ],
)
async def test_a_text_that_wont_do_is_reported_where(
    text: str, line: int | None, option: str, running: Running
) -> None:
    found = await checked(running, text)
    assert not found["ok"]
    assert (found["line"], found["option"]) == (line, option)
    assert found["error"]


async def test_aliases_cant_make_a_text_endless(running: Running) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    text = "\n".join(["a0: &a0 [x]", *levels])
    found = await checked(running, text)
    assert found["error"] == "its aliases make it too large"
    long = await running.client.post(
        "/v1/admin/settings/check", json={"text": "#" * 300_000}, headers=BOSS
    )
    assert (long.status_code, long.json()["error"]["param"]) == (400, "text")


async def test_without_a_configuration_there_is_nothing_to_check(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        found = (await running.client.get("/v1/admin/settings")).json()
        assert (found["reload"], found["file"], found["text"]) == (False, None, None)
        answer = await running.client.post("/v1/admin/settings/check", json={"text": ""})
        assert answer.status_code == 400


# ----------------------------------------------------------------------------------------- the log


async def test_the_log_is_searched_by_level_and_text(tmp_path: Path) -> None:
    lines = LogLines()
    keys = (KeyConfig(key="a-very-secret-key", role="admin"), KeyConfig(key="another-secret"))
    async with serving(config(tmp_path, keys=keys), tmp_path, lines=lines) as running:
        lines.add("info", "model loaded", {"model": "<b>Qwen</b>", "seconds": 1.5})
        lines.add("warning", "load failed", {"model": "other"})

        async def found(query: str) -> list[dict[str, Any]]:
            answer = await running.client.get(f"/v1/admin/logs?{query}", headers=BOSS)
            rows: list[dict[str, Any]] = answer.json()["lines"]
            return rows

        first, second = await found("")
        assert first["fields"] == {"model": "<b>Qwen</b>", "seconds": "1.5"}
        assert (second["level"], second["number"]) == ("warning", first["number"] + 1)
        assert await found("level=warning") == [second]
        assert await found("search=qWEN") == [first]
        assert await found(f"after={first['number']}") == [second]
        assert await found("limit=1") == [second]
        assert await found("limit=0") == []
        bad = await running.client.get("/v1/admin/logs?level=loud", headers=BOSS)
        assert bad.status_code == 400
        assert (await running.client.get("/v1/admin/logs", headers=USER)).status_code == 403


# ------------------------------------------------------------------------------------------ saving


async def saved(running: Running, text: str, seen: str) -> httpx.Response:
    order = {"text": text, "seen": seen}
    return await running.client.post("/v1/admin/settings/save", json=order, headers=BOSS)


async def test_a_text_is_saved_with_its_secrets_and_the_file_before_is_kept(
    running: Running,
) -> None:
    shown = await settings_shown(running)
    assert shown["writable"]
    file = anyio.Path(shown["file"])
    await file.chmod(0o640)
    new = shown["text"].replace("max_choices: 8", "max_choices: 9\n  max_sockets: 7")
    answer = await saved(running, new, shown["text"])
    assert answer.json()["plan"]["changed"] == ["server.max_choices", "server.max_sockets"]
    assert await file.read_text() == TEXT.replace(
        "max_choices: 8", "max_choices: 9\n  max_sockets: 7"
    )
    before = file.with_name("roundhouse.yaml.before")
    assert await before.read_text() == TEXT
    assert {(await path.stat()).st_mode & 0o777 for path in (file, before)} == {0o640}
    options = {one["option"]: one for one in (await settings_shown(running))["options"]}
    assert options["server.max_choices"]["value"] == 8  # until it is reloaded
    reload = await running.client.post("/v1/admin/reload", headers=BOSS)
    assert reload.json()["changed"] == ["server.max_choices", "server.max_sockets"]


async def test_nothing_is_saved_that_cannot_be_used_or_loses_a_secret(running: Running) -> None:
    shown = await settings_shown(running)
    text, file = shown["text"], anyio.Path(shown["file"])
    broken = (await saved(running, text.replace("max_choices: 8", "max_choices: x"), text)).json()
    assert (broken["ok"], broken["line"]) == (False, 2)
    moved = (await saved(running, text.replace("- key: ••••  #", "- key: •••• #"), text)).json()
    assert (moved["ok"], moved["line"]) == (False, 4)
    await file.rename(file.with_name("away.yaml"))
    assert (await saved(running, text, text)).status_code == 400
    await file.with_name("away.yaml").rename(file)
    late = await saved(running, text, text.replace("8", "9"))
    assert (late.status_code, late.json()["error"]["param"]) == (400, "seen")
    user = await running.client.post("/v1/admin/settings/save", json={}, headers=USER)
    assert user.status_code == 403
    assert await file.read_text() == TEXT
    assert not await file.with_name("roundhouse.yaml.before").exists()


async def test_a_configuration_is_written_by_the_page_only_if_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "roundhouse.yaml"
    file.write_text("")
    plain = config(tmp_path)
    source = ConfigSource(lambda: plain, file, lambda _: plain)
    async with serving(plain, tmp_path, source=source) as running:
        answer = await running.client.post("/v1/admin/settings/save", json={"text": "", "seen": ""})
        assert (answer.status_code, "console.edit_config" in answer.text) == (403, True)


# ---------------------------------------------------------------------------------------- sampling


async def test_what_an_engine_does_not_apply_is_reported_with_the_reason(running: Running) -> None:
    url = "/v1/admin/sampling?model=scripted"
    before = (await running.client.get(url, headers=USER)).json()
    assert not before["known"]
    assert {one["applied"] for one in before["parameters"]} == {None}
    await running.registry.load("scripted")
    after = (await running.client.get(url, headers=USER)).json()
    assert after["known"]
    for one in after["parameters"]:
        assert one["applied"] == (one["why"] is None)
        assert one["applied"] or one["why"] == "scripted does not have it"
    tiny = "/v1/admin/sampling?model=roundhouse-tiny"
    await running.registry.load("roundhouse-tiny")
    found = (await running.client.get(tiny, headers=USER)).json()
    parameters = {one["name"]: one for one in found["parameters"]}
    assert parameters["temperature"]["applied"]
    assert (parameters["top_p"]["minimum"], parameters["top_p"]["maximum"]) == (0, 1)
    assert found["schemas"]
    assert (await running.client.get("/v1/admin/sampling?model=x", headers=USER)).status_code == 404
