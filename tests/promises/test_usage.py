"""Usage by key, model and day, on a process as users start it."""

import csv
import io
import json
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

from tests.served import Serve, Served, command, scripted

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
ADMIN, USER = {"x-api-key": "of-an-administrator"}, {"x-api-key": "of-a-user"}
KEYS = [
    {"key": "of-an-administrator", "role": "admin", "label": "desk"},
    {"key": "of-a-user", "label": "phone", "tokens_per_day": 100_000},
]


def config(folder: Path) -> dict[str, Any]:
    return {
        "models": [scripted(folder, "one"), scripted(folder, "two")],
        "keys": KEYS,
        "store": {"path": str(folder / "store.db")},
    }


def ask(server: Served, key: dict[str, str], model: str, **more: Any) -> int:
    """The tokens of an answer."""
    body = {"model": model, "messages": HELLO, **more}
    answer = server.client.post(CHAT, json=body, headers=key)
    return int(answer.json()["usage"]["total_tokens"]) if answer.is_success else 0


def used(server: Served, key: dict[str, str], query: str = "") -> list[dict[str, Any]]:
    answer = server.client.get(f"/v1/usage{query}", headers=key)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


def test_usage_is_summed_up_by_key_model_and_day(serve: Serve, tmp_path: Path) -> None:
    server = serve(config(tmp_path))
    tokens = ask(server, USER, "one")
    ask(server, USER, "one")
    ask(server, USER, "two")
    ask(server, ADMIN, "two")
    ask(server, ADMIN, "two", max_tokens=-7)  # refused before it is a request for a model
    rows = used(server, ADMIN)
    assert {(row["key"], row["model"], row["requests"]) for row in rows} == {
        ("desk", "two", 1),
        ("phone", "one", 2),
        ("phone", "two", 1),
    }
    phone = next(row for row in rows if (row["key"], row["model"]) == ("phone", "one"))
    assert phone["prompt_tokens"] + phone["completion_tokens"] == 2 * tokens
    assert {row["key"] for row in used(server, USER, "?group=key")} == {"phone"}
    assert sum(row["requests"] for row in used(server, USER)) == 3
    assert used(server, ADMIN, "?from=2001-01-01&to=2001-12-31") == []

    for form in ({"accept": "text/csv"}, {}):
        answer = server.client.get(
            f"/v1/usage?group=model{'' if form else '&format=csv'}", headers={**ADMIN, **form}
        )
        assert answer.headers["content-type"].startswith("text/csv")
        table = [*csv.DictReader(io.StringIO(answer.text))]
        assert [(row["model"], row["requests"]) for row in table] == [("one", "2"), ("two", "2")]

    for query, param in (("from=yesterday", "from"), ("to=2026-02-30", "to"), ("group=x", "group")):
        refused = server.client.get(f"/v1/usage?{query}", headers=USER)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert server.client.get("/v1/usage").status_code == 401

    keyed = ("--url", server.url, "--key", "of-an-administrator")
    with command("usage", "--group", "key", *keyed, folder=tmp_path) as listed:
        pass
    assert [line.split()[:2] for line in listed.out.text.splitlines()[1:]] in (
        [["desk", "1"], ["phone", "3"]],
        [["phone", "3"], ["desk", "1"]],
    )
    with command("usage", "--csv", *keyed, folder=tmp_path) as table_:
        pass
    assert table_.out.text.startswith("key,model,day,requests,")
    with command("usage", "--json", "--group", "", *keyed, folder=tmp_path) as whole:
        pass
    assert json.loads(whole.out.text)["data"][0]["requests"] == 4


def test_usage_and_a_days_limit_survive_a_kill(serve: Serve, tmp_path: Path) -> None:
    server = serve(config(tmp_path))
    taken = sum(ask(server, USER, "one") for _ in range(3))

    def written() -> int:
        with sqlite3.connect(tmp_path / "store.db", timeout=30) as file:
            return int(file.execute("SELECT coalesce(sum(requests), 0) FROM usage").fetchone()[0])

    while written() < 3:  # by itself: nobody asks for it
        time.sleep(0.01)
    server.stop(signal.SIGKILL)
    again = serve(config(tmp_path))
    (row,) = used(again, USER, "?group=key")
    assert (row["key"], row["requests"]) == ("phone", 3)
    body = {"model": "one", "messages": HELLO, "max_tokens": 1}
    answer = again.client.post(CHAT, json=body, headers=USER)
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= 100_000 - taken
