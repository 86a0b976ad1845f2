"""Conversations outlive their models: what was computed is put back after a swap, after a restart
of the server, and for the key alone that sent it.
"""

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("backends.engines.llamacpp.library")

import bundled
from backends.machine import ik
from tests.backends.places.workers import workers_of
from tests.promises.test_nodes import there, worker
from tests.served import Served, command, served

CHAT = "/v1/chat/completions"
ONE_AT_A_TIME = 110_000_000  # bytes: room for one of the two with its cache, and for what is kept
LONG = "The railway had a roundhouse with forty stalls, and every engine had its own. "
KEYS = {"first": "sk-first-0000000", "second": "sk-second-000000"}


def settings(place: Path, host: str | None = None, **kept: Any) -> dict[str, Any]:
    """The bundled model under two names that don't fit together."""
    models = []
    for name in ("left", "right"):
        path = place / f"{name}.gguf"
        if not path.exists():
            shutil.copy(bundled.GGUF, path)
        options = {"threads": 1, "trial": "never"} | ({"host": host} if host else {})
        models.append({"name": name, "path": str(path), "options": options})
    swap = {"memory": {"cpu": ONE_AT_A_TIME}, "min_stay": 0.0}
    return {"models": models, "swap": swap, "kept": kept}


def asked(client: httpx.Client, model: str, text: str = LONG * 20, **more: Any) -> dict[str, Any]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 16,
    }
    answer = client.post(CHAT, json=body, timeout=120, **more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(answer: Mapping[str, Any]) -> str:
    message = answer["choices"][0]["message"]
    return f"{message.get('reasoning_content')} {message['content']}"


def computed(answer: Mapping[str, Any]) -> int:
    usage = answer["usage"]
    count: int = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return count


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("kept")
    with served(folder, settings(folder)) as server:
        yield server


def test_a_conversation_goes_on_after_its_model_was_away(server: Served) -> None:
    first = asked(server.client, "left")
    assert computed(first) == first["usage"]["prompt_tokens"]
    asked(server.client, "right")
    again = asked(server.client, "left")
    assert computed(again) == 1
    assert said(again) == said(first)
    assert again["timings"]["kept_n"] == again["usage"]["prompt_tokens"] - 1
    assert again["timings"]["kept_in"] == "memory"


def test_a_conversation_of_a_model_in_a_worker_goes_on_after_it_was_away(tmp_path: Path) -> None:
    with served(tmp_path, settings(tmp_path, host="worker")) as server:
        first = asked(server.client, "left")
        asked(server.client, "right")
        again = asked(server.client, "left")
        assert (computed(again), again["timings"]["kept_in"]) == (1, "memory")
        assert said(again) == said(first)
        listed = server.client.get("/v1/kept").json()
    assert listed["counts"]["hits"]["memory"] == 1
    assert listed["engines"] == []
    assert {one["model"] for one in listed["data"]} == {"left", "right"}


@pytest.mark.slow
def test_a_conversation_of_a_model_on_a_node_goes_on_after_it_was_away(tmp_path: Path) -> None:
    with (
        worker("--listen", "127.0.0.1:0") as (reached, _),
        served(tmp_path, there(tmp_path, reached["address"])) as server,
    ):
        first = asked(server.client, "far", LONG * 40)
        assert server.client.post("/models/unload", json={"model": "far"}).status_code == 200
        again = asked(server.client, "far", LONG * 40)
        assert (computed(again), again["timings"]["kept_in"]) == (1, "memory")
        assert said(again) == said(first)


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    config = settings(tmp_path, folder=str(folder))
    with served(tmp_path, config) as server:
        first = asked(server.client, "left")
        assert server.stop() == 0
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"roundhouse with forty" not in file.read_bytes()
    with served(tmp_path, config) as server:
        again = asked(server.client, "left")
    assert (computed(again), again["timings"]["kept_in"]) == (1, "disk")
    assert said(again) == said(first)


@pytest.mark.slow
@pytest.mark.parametrize(
    "library",
    [
        "llama.cpp",
        pytest.param("ik", marks=pytest.mark.skipif(bool(ik.missing()), reason=ik.missing())),
    ],
)
def test_a_conversation_goes_on_after_its_worker_was_killed_and_after_a_restart(
    tmp_path: Path, library: str
) -> None:
    """Whichever library computes it."""
    config = settings(tmp_path, host="worker", folder=str(tmp_path / "kept"))
    config["swap"]["backoff"] = 0.0
    for model in config["models"]:
        model["options"] |= {"library": library, "context_length": 2048, "max_concurrent": 2}
    with served(tmp_path, config) as server:
        first = asked(server.client, "left")
        assert server.client.post("/models/unload", json={"model": "left"}).status_code == 200
        assert asked(server.client, "left")["timings"]["kept_in"] == "memory"
        (pid,) = workers_of(server.process.pid)
        os.kill(pid, signal.SIGKILL)
        server.log.wait_for("model unloaded", lambda record: record["why"] == "broken")
        again = asked(server.client, "left")
        assert (said(again), computed(again)) == (said(first), 1)
        assert server.stop() == 0
    with served(tmp_path, config) as server:
        again = asked(server.client, "left")
        assert (computed(again), again["timings"]["kept_in"]) == (1, "disk")
        assert said(again) == said(first)


def test_more_conversations_than_slots_go_on_and_side_jobs_push_none_out(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config["models"] = [{**config["models"][0], "options": {"threads": 1, "max_concurrent": 3}}]
    texts = [f"This is conversation {number}. {LONG * 8}" for number in range(12)]
    known = [0] * len(texts)
    with served(tmp_path, config) as server:
        for turn in range(3):
            for number, text in enumerate(texts):
                answer = asked(server.client, "left", text)
                usage = answer["usage"]
                found = usage["prompt_tokens_details"]["cached_tokens"]
                assert found >= 0.95 * known[number]
                known[number] = usage["prompt_tokens"] - 8  # what the template ends with
                texts[number] = f"{text} And then? {LONG}"
                asked(server.client, "left", f"A title for {number}, please, of turn {turn}!")


@pytest.mark.slow
def test_files_are_of_use_with_their_secret_alone(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    secret = tmp_path / "secret"
    secret.write_text("a long secret")
    config = settings(tmp_path, folder=str(tmp_path / "kept"), encrypt=f"file:{secret}")
    with served(tmp_path, config) as server:
        first = asked(server.client, "left")
        assert server.stop() == 0
    with served(tmp_path, config) as server:
        assert computed(asked(server.client, "left")) == 1
        assert server.stop() == 0
    secret.write_text("another one")
    with served(tmp_path, config) as server:
        again = asked(server.client, "left")
    assert computed(again) == again["usage"]["prompt_tokens"]
    assert said(again) == said(first)


SLOWLY = [pytest.param(harm, marks=pytest.mark.slow) for harm in ("flipped", "foreign", "empty")]


@pytest.mark.parametrize("harm", ["torn", *SLOWLY])
def test_a_file_that_was_changed_is_not_used_and_the_answer_is_the_same(
    tmp_path: Path, harm: str
) -> None:
    folder = tmp_path / "kept"
    config = settings(tmp_path, folder=str(folder))
    with served(tmp_path, config) as server:
        first = asked(server.client, "left")
        assert server.stop() == 0
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    content = {"torn": data[:-9], "flipped": data, "foreign": b"GGUF" * 100, "empty": b""}
    file.write_bytes(bytes(content[harm]))
    with served(tmp_path, config) as server:
        again = asked(server.client, "left")
        assert server.log.wait_for("a kept conversation is left out")["file"] == file.name
    assert computed(again) == again["usage"]["prompt_tokens"]
    assert said(again) == said(first)


def test_answers_go_on_where_the_folder_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder at all")
    with served(tmp_path, settings(tmp_path, folder=str(tmp_path / "kept"))) as server:
        first = asked(server.client, "left")
        asked(server.client, "right")
        assert computed(asked(server.client, "left")) == 1
        assert said(asked(server.client, "left")) == said(first)
        assert server.log.wait_for("conversations are not kept on disk")


@pytest.mark.slow
def test_two_servers_use_one_folder(tmp_path: Path) -> None:
    config = settings(tmp_path, folder=str(tmp_path / "kept"))
    with served(tmp_path, config) as one, served(tmp_path, config) as other:
        first = asked(one.client, "left")
        assert said(asked(other.client, "left")) == said(first)
        assert (one.stop(), other.stop()) == (0, 0)
    with served(tmp_path, config) as server:
        assert computed(asked(server.client, "left")) == 1


def test_no_key_finds_what_another_has_sent(tmp_path: Path) -> None:
    config = settings(tmp_path) | {"keys": [{"key": key} for key in KEYS.values()]}
    mine, others = ({"authorization": f"Bearer {key}"} for key in KEYS.values())
    with served(tmp_path, config) as server:
        first = asked(server.client, "left", headers=mine)
        for unknown in (True, False):
            other = asked(server.client, "left", headers=others)
            assert said(other) == said(first)
            assert computed(other) == (other["usage"]["prompt_tokens"] if unknown else 1)
            asked(server.client, "right", headers=mine)
        assert computed(asked(server.client, "left", headers=mine)) == 1
        fresh = "Nobody said anything of engines. " * 20
        asked(server.client, "left", fresh, headers=mine)
        asked(server.client, "right", headers=mine)
        other = asked(server.client, "left", fresh, headers=others)
        assert computed(other) == other["usage"]["prompt_tokens"]


def test_keys_share_what_they_have_sent_where_it_is_configured(tmp_path: Path) -> None:
    keys = {"keys": [{"key": key} for key in KEYS.values()]}
    mine, others = ({"authorization": f"Bearer {key}"} for key in KEYS.values())
    with served(tmp_path, settings(tmp_path, share=True) | keys) as server:
        asked(server.client, "left", headers=mine)
        asked(server.client, "right", headers=mine)
        assert computed(asked(server.client, "left", headers=others)) == 1


def test_what_is_kept_is_listed_pinned_and_dropped(tmp_path: Path) -> None:
    keys = {"keys": [{"key": KEYS["first"], "label": "laptop"}, {"key": KEYS["second"]}]}
    keys["keys"].append({"key": "sk-admin-0000000", "role": "admin"})
    mine, others = ({"authorization": f"Bearer {key}"} for key in KEYS.values())
    admin = {"authorization": "Bearer sk-admin-0000000"}
    with served(tmp_path, settings(tmp_path) | keys) as server:
        api = server.client
        asked(api, "left", headers={**mine, "x-conversation-id": "railway"})
        asked(api, "right", headers=mine)
        asked(api, "left", headers=mine)
        listed = api.get("/v1/kept", headers=mine).json()["data"]
        (one,) = [one for one in listed if one["model"] == "left"]
        assert (one["model"], one["key"], one["conversation"]) == ("left", "laptop", "railway")
        assert (one["tiers"], one["uses"], one["pinned"]) == (["memory"], 1, False)
        assert api.get("/v1/kept", headers=others).json()["data"] == []
        dropped = api.delete(f"/v1/kept?id={one['id']}", headers=others).json()
        assert dropped == {"changed": 0}
        assert api.delete("/v1/kept", headers=mine).status_code == 400
        named = {"conversation": "railway"}
        assert api.post("/v1/kept/pin", json=named, headers=others).json() == {"changed": 0}
        assert api.post("/v1/kept/pin", json=named, headers=mine).json() == {"changed": 1}
        listed = api.get("/v1/kept", headers=admin).json()
        assert {one["model"]: one["pinned"] for one in listed["data"]} == {
            "left": True,
            "right": False,
        }
        assert listed["counts"]["hits"] == {"memory": 1, "disk": 0}
        metrics = api.get("/metrics", headers=admin).text
        assert 'roundhouse_kept_hits_total{tier="memory"} 1.0' in metrics
        assert "roundhouse_kept_entries 2.0" in metrics
        assert api.delete("/v1/kept?model=left", headers=admin).json() == {"changed": 1}
        (left,) = api.get("/v1/kept", headers=mine).json()["data"]
        assert left["model"] == "right"


def test_ps_lists_what_is_kept(server: Served, tmp_path: Path) -> None:
    asked(server.client, "left")
    asked(server.client, "right")
    with command("ps", "--url", str(server.client.base_url), folder=tmp_path) as listing:
        assert listing.out.line_with("KEPT")


def killed_while_writing(tmp_path: Path, times: int) -> None:
    """A server that is ended at any moment leaves no entry behind that is wrong."""
    config = settings(tmp_path, folder=str(tmp_path / "kept"))
    with served(tmp_path, config) as server:
        first = said(asked(server.client, "left"))
    for _ in range(times):
        with served(tmp_path, config) as server:
            assert said(asked(server.client, "left")) == first
            asked(server.client, "right")  # writes what the other leaves
            server.kill()


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_no_wrong_entry(tmp_path: Path) -> None:
    killed_while_writing(tmp_path, 3)


@pytest.mark.long
def test_a_server_that_is_killed_two_hundred_times_leaves_no_wrong_entry(tmp_path: Path) -> None:
    killed_while_writing(tmp_path, 200)


def test_a_conversation_of_the_responses_api_has_its_own_name(tmp_path: Path) -> None:
    with served(tmp_path, settings(tmp_path)) as server:
        named = server.client.post("/v1/conversations", json={}).json()["id"]
        body = {"model": "left", "conversation": named, "input": LONG * 9, "max_output_tokens": 16}
        assert server.client.post("/v1/responses", json=body, timeout=60).status_code == 200
        asked(server.client, "right")
        listed = server.client.get("/v1/kept").json()["data"]
    assert [one["conversation"] for one in listed if one["model"] == "left"] == [named]


def test_a_chain_of_responses_is_called_by_its_first(tmp_path: Path) -> None:
    with served(tmp_path, settings(tmp_path)) as server:
        body = {"model": "left", "input": LONG * 9, "max_output_tokens": 16}
        first = server.client.post("/v1/responses", json=body, timeout=60).json()["id"]
        last = first
        for _ in range(2):
            more = {**body, "input": "And then?", "previous_response_id": last}
            last = server.client.post("/v1/responses", json=more, timeout=60).json()["id"]
        asked(server.client, "right")
        listed = server.client.get("/v1/kept").json()["data"]
    assert [one["conversation"] for one in listed if one["model"] == "left"] == [first]


@pytest.mark.slow
def test_a_deleted_model_leaves_nothing(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(bundled.GGUF, models / "gone.gguf")
    config = settings(tmp_path, folder=str(tmp_path / "kept"))
    config |= {"model_dirs": [str(models)], "hub": {"folder": str(models), "deletion": True}}
    with served(tmp_path, config) as server:
        asked(server.client, "gone")
        asked(server.client, "right")
        assert any(one["model"] == "gone" for one in server.client.get("/v1/kept").json()["data"])
        assert server.client.delete("/models?model=gone").status_code == 200
        listed = server.client.get("/v1/kept").json()["data"]
        assert [one["model"] for one in listed if one["model"] != "right"] == []


def test_a_parked_model_comes_back_with_its_conversation(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config["swap"] |= {"park": "always"}
    with served(tmp_path, config) as server:
        first = asked(server.client, "left")
        asked(server.client, "right")
        assert server.log.wait_for("model parked")["held"] == {"cpu": bundled.GGUF.stat().st_size}
        again = asked(server.client, "left")
        assert said(again) == said(first)
        assert computed(again) == 1
