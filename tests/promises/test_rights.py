"""What a key doesn't give is not told either: names of other models, places on disk."""

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar, get
from litestar.exceptions import ImproperlyConfiguredException
from litestar.routes import HTTPRoute

import bundled
from config.settings import Config, KeyConfig, ModelConfig, ServerConfig
from gateway.http.auth import require_declared
from tests.backends.engines.exllama.folders import quantized
from tests.gateway.http.serving import Running, config, serving

pytestmark = pytest.mark.anyio

KEYS = (
    KeyConfig(key="one", models=("scripted",)),
    KeyConfig(key="user"),
    KeyConfig(key="admin", role="admin"),
    KeyConfig(key="pässwörd-ключ"),
    KeyConfig(key="größe"),
)
ONE, USER, ADMIN = ({"x-api-key": key} for key in ("one", "user", "admin"))
HIDDEN = ("roundhouse-tiny", "org/tiny", "broken")
MESSAGES = [{"role": "user", "content": "Hi"}]


def settings(folder: Path) -> Config:
    """A model that is allowed, one that isn't, and one that can't be used."""
    known = config(folder, keys=KEYS)
    broken = folder / "broken.gguf"
    broken.write_bytes(bundled.GGUF.read_bytes()[:300_000])
    models = (*known.models[::-1], ModelConfig(name="broken", path=str(broken)))
    return msgspec.structs.replace(known, models=models, default_model="roundhouse-tiny")


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("rights")
    async with serving(settings(folder), folder) as server:
        yield server


def asking(name: str) -> list[tuple[str, str, Any]]:
    """Every route that takes a model's name and asks for no administrator."""
    chat = {"model": name, "messages": MESSAGES}
    text = {"model": name, "prompt": "Hi"}
    return [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/chat/completions", {**chat, "stream": True}),
        ("POST", "/v1/completions", text),
        ("POST", "/v1/messages", chat),
        ("POST", "/v1/messages/count_tokens", chat),
        ("POST", "/v1/responses", {"model": name, "input": "Hi"}),
        ("POST", "/v1/responses/input_tokens", {"model": name, "input": "Hi"}),
        ("POST", "/api/chat", chat),
        ("POST", "/api/chat", {"model": name}),
        ("POST", "/api/generate", text),
        ("POST", "/api/embed", {"model": name, "input": "Hi"}),
        ("POST", "/api/show", {"model": name}),
        ("POST", "/completion", text),
        ("POST", "/apply-template", chat),
        ("POST", "/chat/completions/input_tokens", chat),
        ("POST", "/load_model", {"model": name}),
        ("POST", "/tokenize", {"model": name, "content": "Hi"}),
        ("POST", "/detokenize", {"model": name, "tokens": [1]}),
        ("POST", "/v1/token/encode", {"model": name, "text": "Hi"}),
        ("POST", "/v1/token/decode", {"model": name, "tokens": [1]}),
        ("GET", f"/v1/models/{name}", None),
        ("GET", f"/props?model={name}", None),
        ("GET", f"/tokenizer_info?model={name}", None),
    ]


async def asked(running: Running, method: str, path: str, body: Any, key: Any) -> httpx.Response:
    return await running.client.request(method, path, json=body, headers=key)


@pytest.mark.parametrize("name", [*HIDDEN, "roundhouse-tinu", "brokem", "", "default"])
async def test_a_limited_key_hears_of_no_other_model(name: str, running: Running) -> None:
    """Neither that there is one nor what it is called; of none at all it hears the same."""
    others = [one for one in HIDDEN if one != name]
    for (method, path, body), (_, _, of_none) in zip(
        asking(name), asking("x" * len(name)), strict=True
    ):
        if not name and path.startswith("/v1/models/"):
            continue
        answer = await asked(running, method, path, body, ONE)
        if answer.is_success:  # where no name means the one in use
            assert not any(one in answer.text for one in HIDDEN)
            continue
        assert answer.status_code in (400, 404, 503)
        seen = answer.text + str(answer.headers)
        assert not any(one in seen for one in others), seen
        if name in HIDDEN and of_none is not None:
            nobody = await asked(running, method, path, of_none, ONE)
            assert nobody.status_code == answer.status_code == 404
            assert nobody.text.replace("x" * len(name), name) == answer.text


# Whom each route is for: what needs no key is listed here once more, so that none is added by slip.
OPEN = {
    ("GET", "/health"),
    ("HEAD", "/health"),
    ("GET", "/v1/health"),
    ("HEAD", "/v1/health"),
    ("HEAD", "/"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/"),
    ("GET", "/ui"),
    ("GET", "/ui/{path:path}"),
    ("GET", "/.well-known/serviceinfo"),
    ("GET", "/api/extra/version"),
    *(
        ("GET", f"/api/{version}/{path}")
        for version in ("v1", "latest")
        for path in ("config/soft_prompts_list", "config/soft_prompt", "info/version")
    ),
}


def declared(running: Running) -> Iterator[tuple[str, str, str]]:
    """Method, path and right of every route."""
    app = running.server.app
    assert isinstance(app, Litestar)
    for route in app.routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            for method in handler.http_methods - {"OPTIONS"}:
                yield method, route.path, handler.opt["access"]


async def test_every_route_lets_in_whom_it_declares(running: Running) -> None:
    routes = list(declared(running))
    assert len(routes) > 160
    assert {(method, path) for method, path, right in routes if right == "open"} == OPEN
    for method, path, right in routes:
        url = re.sub(r"\{[^}]*\}", "x", path)
        statuses = []
        for key in ({}, {"x-api-key": "wrong"}, USER):
            async with running.client.stream(method, url, headers=key) as answer:
                statuses.append(answer.status_code)
        assert (401 in statuses) is (right != "open"), (method, path)
        assert right == "open" or statuses[:2] == [401, 401], (method, path)
        assert (statuses[2] == 403) is (right == "admin"), (method, path)


def test_a_route_that_declares_no_right_doesn_t_start() -> None:
    @get("/everything")
    async def undeclared() -> None:
        """Nobody said whom it is for."""

    @get("/typo", access="users")
    async def misspelt() -> None:
        """Nor here."""

    for handler in (undeclared, misspelt):
        app = Litestar([handler], openapi_config=None, logging_config=None)
        with pytest.raises(ImproperlyConfiguredException, match="declares no right"):
            require_declared(app)


async def test_lists_and_states_name_what_the_key_may_use(running: Running) -> None:
    await running.registry.load("roundhouse-tiny")
    for path in ("/v1/models", "/models", "/status", "/v1/model/list", "/v1/templates", "/props"):
        answer = await asked(running, "GET", path, None, ONE)
        assert not any(one in answer.text for one in HIDDEN), path


async def test_near_names_are_those_of_usable_models(running: Running) -> None:
    chat = {"model": "scripte", "messages": MESSAGES}
    answer = await asked(running, "POST", "/v1/chat/completions", chat, ONE)
    assert "Nearest: scripted." in answer.json()["error"]["message"]


async def test_places_on_disk_are_reported_to_administrators_only(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), tmp_path) as running:
        script = tmp_path / "demo.script.json"
        script.write_text("no script any more")
        for (method, path, body), broken in zip(asking("scripted"), asking("broken"), strict=True):
            for key in (ONE, USER):
                answer = await asked(running, method, path, body, key)
                assert str(tmp_path) not in answer.text, answer.text
            answer = await asked(running, *broken, USER)
            assert str(tmp_path) not in answer.text, answer.text
        for key in (USER, ONE):
            cards = (await asked(running, "GET", "/models", None, key)).json()["data"]
            assert not any(str(tmp_path) in str(card) for card in cards)
            assert any(card["why_failed"] for card in cards)
        listed = (await asked(running, "GET", "/models", None, ADMIN)).text
        assert str(tmp_path) in listed


@pytest.mark.parametrize("key", ["pässwörd-ключ", "größe"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
async def test_a_key_beyond_ascii_matches_as_clients_send_it(
    key: str, encoding: str, running: Running
) -> None:
    try:
        written = key.encode(encoding)
    except UnicodeEncodeError:
        return
    for headers in ([(b"x-api-key", written)], [(b"authorization", b"Bearer " + written)]):
        answer = await running.client.get("/v1/models", headers=headers)
        assert answer.status_code == 200
    wrong = [(b"x-api-key", written[:-1])]
    assert (await running.client.get("/v1/models", headers=wrong)).status_code == 401


@pytest.fixture(scope="module")
async def linked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """Its folder of models has one, and a link to what lies outside."""
    folder = tmp_path_factory.mktemp("linked")
    models = folder / "models"
    models.mkdir()
    quantized(models, "exl2")
    shutil.copytree(models / "model", folder / "outside")
    (models / "link").symlink_to(folder / "outside")
    config = Config(server=ServerConfig(port=0), model_dirs=(str(models),))
    async with serving(config, folder) as server:
        assert server.registry.resolve("model").files.backend == "exllamav2"
        yield server


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("../outside", "model_not_found"),
        ("/etc/passwd", "model_not_found"),
        ("link", "model_unavailable"),  # listed with what is wrong with it
        ("model/../../outside", "model_not_found"),
        ("model/../../outside/model", "model_not_found"),
        ("hf:a/b", "model_not_found"),
    ],
)
async def test_a_draft_model_is_one_of_the_models_by_name(
    name: str, code: str, linked: Running
) -> None:
    body = {"model_name": "model", "draft_model": {"draft_model_name": name}}
    answer = await linked.client.post("/v1/model/load", json=body)
    assert answer.json()["error"]["code"] == code
    outside = linked.registry.resolve("model").files.path.parents[1] / "outside"
    assert outside.is_dir()
    assert str(outside) not in answer.text


async def test_a_request_can_t_run_a_models_code(running: Running) -> None:
    body = {"model_name": "scripted", "trust_remote_code": True}
    answer = await asked(running, "POST", "/v1/model/load", body, ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "trust_remote_code"


async def test_a_name_of_megabytes_costs_nothing_and_is_not_repeated(running: Running) -> None:
    chat = {"model": "roundhouse-" * 200_000, "messages": MESSAGES}
    answer = await asked(running, "POST", "/v1/chat/completions", chat, USER)
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "model"
    assert len(answer.content) < 1000
