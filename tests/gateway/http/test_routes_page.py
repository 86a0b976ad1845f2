"""docs/routes.md names every route the server has, and who may call it."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from litestar.routes import HTTPRoute

from config.settings import KeyConfig
from tests.gateway.http.serving import Running, config, serving

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[3] / "docs" / "routes.md").read_text("utf-8")
ROW = re.compile(r"^\| (?P<routes>`.*`) \| (?P<who>\w+) \| .* \|$", re.MULTILINE)
ROUTES = {
    (method, path): row["who"]
    for row in ROW.finditer(PAGE)
    for method, path in re.findall(r"`([A-Z]+) (/[^`]*)`", row["routes"])
}
ENDLESS = {
    ("GET", "/logs/stream"),
    ("GET", "/models/sse"),
    ("GET", "/v1/admin/events"),
}  # its answer has no end, and begins with the first news
BY_HTTP = {route: who for route, who in ROUTES.items() if route[0] != "WEBSOCKET"}


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    keys = (KeyConfig(key="user"), KeyConfig(key="admin", role="admin"))
    async with serving(config(folder, keys=keys), folder) as server:
        yield server


async def test_the_page_names_every_route_and_no_other(running: Running) -> None:
    app = running.server.app
    there = {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in app.routes
        for method in (route.methods if isinstance(route, HTTPRoute) else {"WEBSOCKET"})
        if method != "OPTIONS"
    }
    assert ROUTES.keys() == there


@pytest.mark.parametrize(("route", "who"), BY_HTTP.items(), ids=str)
async def test_who_may_call_is_reported_as_it_is(
    route: tuple[str, str], who: str, running: Running
) -> None:
    method, path = route[0], re.sub(r"{\w+}", "x", route[1]) + "?model=x"
    body: dict[str, str] | None = {} if method == "POST" else None
    nobody = await running.client.request(method, path, json=body)
    assert (nobody.status_code != 401) == (who == "everybody")
    if route not in ENDLESS:
        key = {"x-api-key": "user"}
        user = await running.client.request(method, path, json=body, headers=key)
        assert (user.status_code == 403) == (who == "administrators")
        assert user.status_code != 401
