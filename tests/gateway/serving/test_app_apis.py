"""Each API can be switched off, and then none of its routes is there."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from config.settings import ApisConfig
from gateway.http.metrics import Metrics
from gateway.http.routes import enabled_apis
from gateway.registry import ModelLibrary, Registry
from gateway.serving import app
from gateway.serving.app import build
from tests.gateway.http.serving import config

OWN = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "ollama": "/api/chat",
    "kobold": "/api/v1/generate",
    "rerank": "/v1/rerank",
    "responses": "/v1/responses",
    "tabby": "/v1/model/load",
    "llamaserver": "/completion",
    "tgi": "/generate",
    "cohere": "/v2/chat",
}


def paths(folder: Path, apis: ApisConfig) -> set[str]:
    settings = msgspec.structs.replace(config(folder), apis=apis)
    built = build(settings, Registry(ModelLibrary(settings), settings), Metrics())
    return {route.path for route in built.routes}


def test_every_api_is_tried() -> None:
    assert OWN.keys() == set(ApisConfig.__struct_fields__)


def test_no_route_takes_another_s_place() -> None:
    """Of two handlers of one path and method Litestar has the last, and says nothing."""
    apis = (*enabled_apis(ApisConfig()), app.OWN)
    places = Counter(
        (path, method)
        for handler in {handler for api in apis for handler in api.routes}
        for path in handler.paths
        for method in handler.http_methods
    )
    assert not [place for place, count in places.items() if count > 1]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return paths(tmp_path_factory.mktemp("all"), ApisConfig())


@pytest.mark.parametrize("api", OWN)
def test_what_is_switched_off_is_gone_and_nothing_else(
    api: str, everything: set[str], tmp_path: Path
) -> None:
    others = {name: name != api for name in OWN}
    left = paths(tmp_path, ApisConfig(**others))
    alone = paths(tmp_path, ApisConfig(**{name: not on for name, on in others.items()}))
    assert OWN[api] not in left
    assert {path for name, path in OWN.items() if name != api} <= left
    assert OWN[api] in alone
    assert {"/health", "/metrics"} <= left & alone
    assert left | alone == everything
