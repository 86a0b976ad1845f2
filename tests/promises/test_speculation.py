"""Answers that repeat their prompt take fewer steps, and are the same: per model, per request, and
what is said of it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("backends.engines.llamacpp.library")

import bundled
from tests.backends.engines.llamacpp import cache_kinds
from tests.served import Served, served

CHAT = "/v1/chat/completions"
WORDS = "zorvik plumtar garnel wospi zorvik plumtar garnel wospi zorvik plumtar"
PATH = str(bundled.GGUF)


def model(name: str, **speculation: Any) -> dict[str, Any]:
    options = {"threads": 1, "max_concurrent": 4, "speculation": speculation}
    return {"name": name, "path": PATH, "options": options}


def made(folder: Path, kind: str, name: str, **options: Any) -> dict[str, Any]:
    """A model of another kind of layers, with random weights."""
    path = cache_kinds.write(kind, folder / f"{name}.gguf")
    options |= {"threads": 1, "context_length": 512}
    return {"name": name, "path": str(path), "options": options}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("speculation")
    models = [
        *(model("always", mode="ngram"), model("never", mode="off"), model("auto")),
        made(folder, "lfm2", "hybrid", speculation={"mode": "ngram"}),
        made(folder, "lfm2", "hybrid-plain", speculation={"mode": "off"}),
        made(folder, "mamba", "recurrent", draft={"model": PATH}),
    ]
    with served(folder, {"models": models}) as server:
        yield server


def asked(client: httpx.Client, name: str, **more: Any) -> httpx.Response:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": f"Repeat after me: {WORDS}"}],
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0,
        **more,
    }
    answer = client.post(CHAT, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


def test_an_answer_that_repeats_is_the_same_in_fewer_steps(server: Served) -> None:
    fast, slow = asked(server.client, "always").json(), asked(server.client, "never").json()
    assert fast["choices"] == slow["choices"]
    assert WORDS in fast["choices"][0]["message"]["content"]
    timings = fast["timings"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] > timings["predicted_n"] // 3
    assert "draft_n" not in slow["timings"]


@pytest.mark.parametrize(
    "none", [{"speculative": {"n": 0}}, {"speculative.n_max": 0}, {"speculative": {"n_max": 0}}]
)
def test_a_request_may_do_without(server: Served, none: dict[str, Any]) -> None:
    answer = asked(server.client, "always", **none)
    assert "draft_n" not in answer.json()["timings"]
    assert "x-roundhouse-ignored" not in answer.headers
    assert "x-roundhouse-ignored" not in asked(server.client, "never", **none).headers


def test_a_model_that_drafts_nothing_says_so(server: Served) -> None:
    answer = asked(server.client, "never", **{"speculative.n_max": 8})
    assert answer.headers["x-roundhouse-ignored"] == "speculative.n_max"
    assert "x-roundhouse-ignored" not in asked(server.client, "always", speculative=8).headers


@pytest.mark.parametrize("wrong", [-1, "many", {"n": -3}, 2**40])
def test_what_is_no_number_of_tokens_is_refused(server: Served, wrong: object) -> None:
    body = {"model": "never", "messages": [], "speculative": wrong}
    answer = server.client.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("speculative")


def test_drafts_are_seen_where_requests_are(server: Served) -> None:
    timings = asked(server.client, "always").json()["timings"]
    metrics = server.client.get("/metrics").text
    assert 'roundhouse_draft_tokens_total{kind="accepted",model="always"}' in metrics
    assert 'model="never"' not in [
        line for line in metrics.splitlines() if line.startswith("roundhouse_draft_tokens_total")
    ]
    requests = server.client.get("/v1/admin/requests").json()["requests"]
    newest = max(requests, key=lambda request: int(request["number"]))
    assert newest["drafted_tokens"] == timings["draft_n"]
    assert newest["accepted_tokens"] == timings["draft_n_accepted"]


def continued(client: httpx.Client, name: str, **more: Any) -> httpx.Response:
    """A text of one letter, which it is made to go on with."""
    body = {"prompt": [98] * 20, "max_tokens": 40, "temperature": 0, "logit_bias": {"98": 100}}
    answer = client.post("/v1/completions", json={"model": name, **body, **more}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


def test_a_hybrid_model_drafts(server: Served) -> None:
    fast, slow = (continued(server.client, name).json() for name in ("hybrid", "hybrid-plain"))
    assert fast["choices"] == slow["choices"]
    timings = fast["timings"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 20
    assert "draft_n" not in slow["timings"]


def test_a_model_whose_states_stay_says_so_everywhere(server: Served) -> None:
    answer = continued(server.client, "recurrent", speculative={"n": 4})
    assert "draft_n" not in answer.json()["timings"]
    assert answer.headers["x-roundhouse-ignored"] == "speculative"
    reason = "the states of its recurrent layers can't be taken back"
    said = [line for line in server.log.text.splitlines() if "nothing is drafted" in line]
    assert any(reason in line and "recurrent.gguf" in line for line in said)
    listed = server.client.get("/v1/admin/sampling", params={"model": "recurrent"}).json()
    assert (listed["drafts"], listed["undrafted"]) == (False, reason)
    listed = server.client.get("/v1/admin/sampling", params={"model": "always"}).json()
    assert (listed["drafts"], listed["undrafted"]) == (True, None)


def test_models_that_draft_take_turns(server: Served) -> None:
    """Loaded anew, they draft as before, and say the same."""
    first = continued(server.client, "hybrid").json()
    for name in ("hybrid", "always"):
        assert server.client.post("/unload", json={"model": name}).status_code == 200
    again = continued(server.client, "hybrid").json()
    assert again["choices"] == first["choices"]
    assert again["timings"]["draft_n_accepted"] > 20


def test_streams_end_with_what_was_drafted(server: Served) -> None:
    body = {"stream": True}
    text = asked(server.client, "always", **body).text
    assert '"draft_n_accepted":' in text


def test_by_itself_a_model_measures_and_says_the_same(server: Served) -> None:
    first = asked(server.client, "auto").json()
    for _ in range(5):
        assert asked(server.client, "auto").json()["choices"] == first["choices"]
