"""The documents: every route and model is in them, and every example runs and is answered as
promised.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import jsonschema
import msgspec
import pytest

from config.settings import ApisConfig, ConsoleConfig, ModelConfig
from tests.gateway.http.serving import Running, config, serving

pytestmark = pytest.mark.anyio

UNRUNNABLE = {  # they want a hub, another server, files that may be deleted, or refuse everybody
    "/v1/admin/mcp/call",
    "/models",
    "/v1/download",
    "/v1/upstreams/drain",
    "/v1/nodes/drain",
    "/api/delete",
    "/api/copy",  # its answer has no body
    "/slots/{slot}",  # its query says what is to be done
    "/infill",  # the bundled model has no tokens for it
    "/v1/template/switch",
    "/v1/model/embedding/load",
    "/v1/admin/models/add",
    "/v1/admin/models/remove",
    "/v1/admin/downloads",
    "/v1/admin/settings/check",
    "/v1/admin/settings/save",
    "/v1/admin/uploads/{name}",
    "/lora-adapters",
    "/v1/lora/load",
    "/v1/lora/unload",
}


@pytest.fixture(scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, embed_gguf: Path, rank_gguf: Path
) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    settings = config(folder)
    encoders = (
        ModelConfig(name="minilm", path=str(embed_gguf)),
        ModelConfig(name="ranker", path=str(rank_gguf)),
    )
    settings = msgspec.structs.replace(
        settings,
        default_model="roundhouse-tiny",
        models=(*settings.models, *encoders),
        console=ConsoleConfig(sync=True),
    )
    async with serving(settings, folder) as server:
        yield server


async def document(running: Running) -> dict[str, Any]:
    answer = await running.client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return cast(dict[str, Any], answer.json())


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in described["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


async def test_every_route_is_reported_by_its_api(running: Running) -> None:
    app = running.server.app
    others = ("/ui", "/docs", "/openapi.json", "/upstream/")  # the last: a command's own server's
    there = {
        (method, route.path_format)
        for route in app.routes
        for method in route.methods
        if method != "OPTIONS" and not route.path.startswith(others)
    } - {("GET", "/")}
    found = await document(running)
    assert {(method, path) for method, path, _ in operations(found)} == there
    assert found["openapi"].startswith("3.1")
    assert all(one["tags"] and one["summary"] for _, _, one in operations(found))


async def test_every_body_is_described(running: Running) -> None:
    bodiless = {  # none is read
        "/api/models/unload",
        "/api/models/unload/{model}",
        "/v1/admin/downloads/{id}/resume",
        "/v1/admin/downloads/{id}/stop",
        "/v1/admin/requests/{number}/cancel",
        "/v1/responses/{response_id}/cancel",
        "/v1/sampling/override/unload",
        "/v1/model/embedding/unload",
        "/v1/admin/reload",
    }
    for method, path, operation in operations(await document(running)):
        if method in ("POST", "PUT") and path not in bodiless:
            assert "requestBody" in operation, path


async def test_every_model_has_a_name_of_its_own_and_says_what_it_is(running: Running) -> None:
    found = await document(running)
    schemas = found["components"]["schemas"]
    for name, schema in schemas.items():
        assert name.isalnum()
        assert schema["title"] == name
        assert schema["description"]
    refers = set(_refs(found))
    assert refers == {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from [item] if key == "$ref" else _refs(item)
    elif isinstance(value, list):
        for item in value:
            yield from _refs(item)


@pytest.mark.slow
async def test_every_example_runs_and_is_answered_as_promised(running: Running) -> None:
    found = await document(running)
    new = (await running.client.post("/v1/conversations", json={})).json()["id"]
    ran = 0
    for method, path, operation in operations(found):
        content = operation.get("requestBody", {"content": {}})["content"]
        examples = content.get("application/json", {}).get("examples", {})
        assert bool(examples) == (bool(content) and path not in UNRUNNABLE), path
        for name, example in examples.items():
            place = path.replace("{conversation_id}", new)
            answer = await running.client.request(method, place, json=example["value"])
            status = next(iter(operation["responses"]))
            assert str(answer.status_code) == status, (path, name, answer.text)
            check(answer, operation["responses"][status]["content"], found)
            ran += 1
    assert ran > 40


def check(answer: httpx.Response, content: dict[str, Any], found: dict[str, Any]) -> None:
    """Whether `answer` is what the document promises for its media type."""
    kind = answer.headers["content-type"].partition(";")[0]
    schema = {**content[kind]["schema"], "components": found["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    for one in messages(answer, kind):
        problems = sorted(validator.iter_errors(one), key=str)
        assert not problems, (answer.url, one, problems[0].message)


def messages(answer: httpx.Response, kind: str) -> Iterator[Any]:
    if kind == "application/json":
        yield answer.json()
        return
    for line in answer.text.splitlines():
        text = line.removeprefix("data: ").strip()
        if text.startswith("{"):
            yield json.loads(text)


async def test_lists_and_states_are_answered_as_promised(running: Running) -> None:
    """All routes that need nothing but to be asked."""
    found = await document(running)
    others = {  # endless, of a hub or an MCP server, or of an answer that runs
        "/logs/stream",
        "/models/sse",
        "/v1/admin/events",
        "/v1/admin/hub/files",
        "/v1/admin/hub/search",
        "/v1/admin/mcp/tools",
        "/v1/stream",
    }
    asked = 0
    for method, path, operation in operations(found):
        content = operation["responses"].get("200", {}).get("content")
        if method == "GET" and content and "{" not in path and path not in others:
            needed = [one for one in operation.get("parameters", ()) if one["required"]]
            answer = await running.client.get(
                path, params={one["name"]: "default" for one in needed}
            )
            assert answer.status_code == 200, path
            check(answer, content, found)
            asked += 1
    assert asked > 25


async def test_what_is_switched_off_is_not_told(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(config(tmp_path), apis=ApisConfig(ollama=False))
    async with serving(settings, tmp_path) as running:
        found = await document(running)
        page = (await running.client.get("/docs")).text
    assert not any(path.startswith("/api/tags") for path in found["paths"])
    assert not any(name.startswith("Ollama") for name in found["components"]["schemas"])
    assert "/api/tags" not in page
    assert "/api/v1/generate" in page


async def test_the_page_needs_nothing_but_itself(running: Running) -> None:
    answer = await running.client.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = re.sub(r"<pre>[^<]*</pre>", "", answer.text)  # examples are texts
    for foreign in ("<script", "<link", "<img", "src=", "http://", "https://", "style="):
        assert foreign not in page
    for method, path, _ in operations(await document(running)):
        assert f"<code>{path}</code>" in answer.text, (method, path)


async def test_pages_of_others_are_refused_as_everywhere(running: Running) -> None:
    for path in ("/docs", "/openapi.json"):
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            answer = await running.client.get(path, headers=headers)
            assert answer.status_code == 403
