"""Who may do what, on a process as users start it: without a key, with a user's, with one that is
limited to some models, with an administrator's; and what a web page elsewhere may do where there
are no keys.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.served import Serve, Served, scripted, served

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("keys")
    config = {
        "models": [scripted(folder, "one"), scripted(folder, "two")],
        "keys": [
            {"key": "of-an-administrator", "role": "admin"},
            {"key": "of-a-user"},
            {"key": "of-one-model", "models": ["one"]},
            {"key": "that-loads-nothing", "autoload": False},
        ],
    }
    with served(folder, config) as server:
        yield server


def bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


ACCESS = [
    (None, (401, 401, 401)),
    ("nobodys", (401, 401, 401)),
    ("of-a-user", (200, 200, 403)),
    ("of-one-model", (200, 200, 403)),
    ("of-an-administrator", (200, 200, 200)),
]


@pytest.mark.parametrize(("key", "statuses"), ACCESS, ids=str)
def test_a_key_opens_what_its_role_may(
    key: str | None, statuses: tuple[int, int, int], server: Served
) -> None:
    headers = bearer(key)
    found = (
        server.client.post(CHAT, json={"model": "one", "messages": HELLO}, headers=headers),
        server.client.get("/v1/models", headers=headers),
        server.client.get("/v1/admin/settings", headers=headers),
    )
    assert tuple(answer.status_code for answer in found) == statuses
    assert server.client.get("/health", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer of-a-user"},
        {"x-api-key": "of-a-user"},
        {"x-admin-key": "of-an-administrator"},
    ],
    ids=str,
)
def test_a_key_is_sent_as_any_client_sends_it(headers: dict[str, str], server: Served) -> None:
    assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_a_limited_key_hears_of_no_other_model(server: Served) -> None:
    headers = bearer("of-one-model")
    listed = server.client.get("/v1/models", headers=headers).json()["data"]
    assert [model["id"] for model in listed] == ["one"]
    body = {"model": "two", "messages": HELLO}
    assert server.client.post(CHAT, json=body, headers=headers).status_code in (403, 404)
    assert server.client.get("/metrics", headers=headers).status_code == 403


def test_no_key_is_in_the_log(server: Served) -> None:
    for key, _ in ACCESS:
        server.client.get("/v1/admin/requests", headers=bearer(key))
    text = server.log.text + server.out.text
    assert not [key for key, _ in ACCESS if key and key in text]


def test_a_key_that_loads_nothing_uses_what_is_there(server: Served) -> None:
    headers = bearer("that-loads-nothing")
    body = {"model": "two", "messages": HELLO}
    admin = bearer("of-an-administrator")
    server.client.post("/models/unload", json={"model": "two"}, headers=admin)
    assert not server.client.post(CHAT, json=body, headers=headers).is_success
    assert server.client.post(CHAT, json=body, headers=bearer("of-a-user")).is_success
    assert server.client.post(CHAT, json=body, headers=headers).is_success


def test_without_keys_a_page_elsewhere_may_not_use_the_server(serve: Serve) -> None:
    server = serve()
    body = {"messages": HELLO}
    elsewhere = {"origin": "https://evil.example"}
    assert server.client.post(CHAT, json=body, headers=elsewhere).status_code == 403
    rebound = {"host": "evil.example"}
    assert server.client.get("/v1/models", headers=rebound).status_code in (400, 403, 421)
    own = {"origin": server.url}
    assert server.client.post(CHAT, json=body, headers=own).status_code == 200
