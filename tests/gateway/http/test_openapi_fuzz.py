"""schemathesis over all that the document tells: no fault of the server's, no hang, no growth."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok

import bundled
from benchmarks.peers import roundhouse
from tests.hang import HANG

SCRIPT = """{"context_length": 512, "lines": [
  {"when": "break", "say": "This line breaks.", "fail_after": 4},
  {"when": "think", "say": "<think>Let me see.</think>Seen."},
  {"when": "", "say": "Hello from the script."}
]}"""
MODELS = ["default", "roundhouse-tiny", "scripted"]
# their answers may have no end
ENDLESS = {"/models/sse", "/v1/admin/events", "/v1/stream", "/logs/stream"}
GROWTH = 512 << 20  # bytes that the process may grow by; it grew by 40 MB in 10,000 cases
BUDGET = 1 << 30  # bytes of models: an administrator may load one with a context of millions
NO_HUB = "http://127.0.0.1:9"  # nobody listens there: strangers' servers are none to try things on
FROM_THE_HUB = (
    "/v1/admin/hub/files",
    "/v1/admin/hub/search",
    "/v1/download",
    "/models",
    "/api/pull",
)
FOR_ENCODERS = (
    "/v1/embeddings",
    "/embedding",
    "/embeddings",
    "/rerank",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
    "/v2/rerank",
    "/api/embed",
    "/api/embeddings",
    "/embed",
    "/v2/embed",
    "/pooling",
    "/score",
    "/v1/score",
)
# What TabbyAPI's clients expect to be a 503, and a load that can never fit the memory there is.
EXPECTED = (
    ("/v1/model/unload", "No model is loaded."),
    ("/v1/model/load", " for models"),
    ("/v1/model/embedding", "No embedding model"),
    ("/infill", "it has no tokens for it"),
    ("/lora-adapters", "don't change for everybody"),
    ("/v1/download", "the download took longer than"),  # than the client's own limit
    *((path, f"can't reach {NO_HUB}") for path in FROM_THE_HUB),
    *((path, "No model is available that can ") for path in FOR_ENCODERS),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A server of its own process: its address, and its process."""
    script = tmp_path / "demo.script.json"
    script.write_text(SCRIPT)
    small = {"context_length": 256}
    tiny = {"name": "roundhouse-tiny", "path": str(bundled.GGUF), "options": small}
    config = {
        "default_model": "scripted",
        "models": [tiny, {"name": "scripted", "path": str(script)}],
        "swap": {"memory": {"cpu": BUDGET}, "backoff": 0.0},
        "hub": {"endpoint": NO_HUB},
        "log": {"level": "warning"},
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    with roundhouse("--config", str(file)) as running:
        yield f"http://127.0.0.1:{running.port}", psutil.Process(running.pid)


def document(client: httpx.Client) -> dict[str, Any]:
    """What the server tells, with the names of models that are there: others are all a 404."""
    found: dict[str, Any] = client.get("/openapi.json").json()
    found["paths"] = {path: one for path, one in found["paths"].items() if path not in ENDLESS}
    for schema in found["components"]["schemas"].values():
        properties = schema.get("properties", {})
        for field in {"model", "model_name"} & properties.keys():
            properties[field] = {"enum": MODELS}
    return found


class Tried:
    """What came of the cases so far."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []

    def case(self, case: Case[Any]) -> None:
        """Send it. Raises httpx.TimeoutException where the server hangs."""
        sent = case.as_transport_kwargs(base_url=str(self._client.base_url))
        answer = self._client.request(
            sent["method"],
            sent["url"],
            params=sent.get("params"),
            headers={name: value for name, value in sent["headers"].items() if value.isascii()},
            json=sent.get("json"),
        )
        self.statuses[answer.status_code] += 1
        expected = any(case.path == path and text in answer.text for path, text in EXPECTED)
        if answer.status_code >= 500 and not expected:
            self.faults.append(f"{case.method} {case.path} {sent.get('json')!r}: {answer.text}")


def try_all(tried: Tried, found: dict[str, Any], examples: int) -> None:
    """`examples` of each operation with a body, a quarter of them against the schema, and a few of
    the others.
    """
    for result in schemathesis.openapi.from_dict(found).get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        count = examples if operation.body else max(4, examples // 12)
        for mode, share in ((GenerationMode.POSITIVE, 3), (GenerationMode.NEGATIVE, 1)):
            strategy = operation.as_strategy(generation_mode=mode)
            run = seed(17)(_settings(count * share // 4)(given(strategy)(tried.case)))
            try:
                run()
            except Unsatisfiable:  # nothing can be wrong where nothing is said
                assert mode is GenerationMode.NEGATIVE


def _settings(examples: int) -> settings:
    return settings(
        max_examples=max(1, examples),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize(
    ("examples", "least"),
    [
        pytest.param(16, 800, marks=pytest.mark.slow, id="some"),
        pytest.param(220, 10_000, marks=pytest.mark.long, id="ten thousand"),
    ],
)
def test_no_request_is_the_servers_fault(
    server: tuple[str, psutil.Process], examples: int, least: int
) -> None:
    url, process = server
    with httpx.Client(base_url=url, timeout=HANG) as client:
        found, tried = document(client), Tried(client)
        before = process.memory_info().rss
        try_all(tried, found, examples)
        assert not tried.faults, tried.faults[:5]
        assert tried.statuses.total() >= least
        assert tried.statuses[200] > least // 10
        assert process.memory_info().rss - before < GROWTH
        assert client.get("/health").status_code == 200
