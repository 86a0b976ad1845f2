"""What is counted, logged and told in headers about answers, loads and waits."""

import re
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from config.settings import KeyConfig, LlamaServerConfig
from config.upstreams import UpstreamConfig
from gateway.http.auth import LINES, WINDOW, Refusals
from gateway.http.metrics import Metrics
from gateway.http.request_record import RequestRecord
from gateway.http.standing import RequestReport
from gateway.keys.access import ADMIN
from gateway.registry import ModelLoaded, ModelLoadFailed, ModelUnloaded
from gateway.terms.events import Usage
from tests.gateway.http.serving import LASTING, Running, config, send_chat, serving, state
from tests.hang import HANG

pytestmark = pytest.mark.anyio

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi, my secret"}]}


def answered(seconds: float, usage: Usage, **told: Any) -> RequestReport:
    record = RequestRecord("r")
    record.asks("chat", "a", "a", ADMIN)
    standing = replace(record.end("ok", is_fault=False).standing, seconds=seconds)
    return RequestReport(standing=standing, usage=usage, **told)


def samples(text: str) -> dict[str, float]:
    """`name{label=value,…}` to value."""

    def flat() -> Iterator[tuple[str, float]]:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(
                    f"{name}={value}" for name, value in sorted(sample.labels.items())
                )
                yield f"{sample.name}{{{labels}}}", sample.value

    return dict(flat())


async def scraped(running: Running) -> dict[str, float]:
    answer = await running.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return samples(answer.text)


def by_name(numbers: dict[str, float], name: str) -> dict[str, float]:
    return {key: value for key, value in numbers.items() if key.startswith(f"roundhouse_{name}{{")}


async def test_answers_are_counted_by_model_api_and_outcome(tmp_path: Path) -> None:
    async with serving(config(tmp_path, tokens_per_second=300), tmp_path) as running:
        usage: dict[str, Any] = {}
        for stream in (True, False):
            answer = await running.client.post(
                "/v1/chat/completions", json={**CHAT, "stream": stream}
            )
            usage = usage if stream else answer.json()["usage"]
        await running.client.post("/v1/completions", json={"model": "scripted", "prompt": "break"})
        await running.client.post("/completion", json={"model": "scripted", "prompt": "Hi"})
        await running.client.post("/v1/chat/completions", json={**CHAT, "model": "no such"})
        numbers = await scraped(running)
    counted = by_name(numbers, "requests_total")
    assert counted == {
        "roundhouse_requests_total{api=chat,model=scripted,outcome=ok}": 2,
        "roundhouse_requests_total{api=text,model=scripted,outcome=internal_error}": 1,
        "roundhouse_requests_total{api=completion,model=scripted,outcome=ok}": 1,
        "roundhouse_requests_total{api=chat,model=,outcome=model_not_found}": 1,
    }
    tokens = by_name(numbers, "tokens_total")
    assert tokens["roundhouse_tokens_total{kind=completion,model=scripted}"] > (
        2 * usage["completion_tokens"]
    )
    assert tokens["roundhouse_tokens_total{kind=cached,model=scripted}"] == 0
    assert numbers["roundhouse_time_to_first_token_seconds_count{model=scripted}"] == 4
    gaps = numbers["roundhouse_inter_token_seconds_count{model=scripted}"]
    assert gaps == numbers["roundhouse_inter_token_seconds_bucket{le=+Inf,model=scripted}"] > 4


async def test_models_are_reported_with_their_loads_and_unloads(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        await running.registry.load("scripted")
        numbers = await scraped(running)
        assert numbers["roundhouse_resident_models{}"] == 1
        assert numbers["roundhouse_resident_bytes{model=scripted}"] > 0
        assert numbers["roundhouse_load_seconds_count{model=scripted}"] == 1
        assert numbers["roundhouse_waiting{model=scripted}"] == 0
        await running.registry.unload("scripted")
        numbers = await scraped(running)
        assert numbers["roundhouse_resident_models{}"] == 0
        assert numbers["roundhouse_unloads_total{model=scripted,reason=asked}"] == 1
        assert not any(by_name(numbers, "evictions_total").values())
        assert numbers["roundhouse_unload_seconds_count{model=scripted}"] == 1


async def test_a_client_that_leaves_is_counted_as_such(tmp_path: Path) -> None:
    async with serving(config(tmp_path, tokens_per_second=LASTING), tmp_path) as running:
        body = {**CHAT, "stream": True, "messages": [{"role": "user", "content": "long"}]}
        async with await send_chat(running, msgspec.json.encode(body)) as stream:
            received = b""
            with anyio.fail_after(HANG):
                while b"content" not in received:
                    received += await stream.receive()
        left = "roundhouse_requests_total{api=chat,model=scripted,outcome=left}"
        with anyio.fail_after(HANG):
            while left not in (numbers := await scraped(running)):
                await anyio.sleep(0.01)
        assert numbers[left] == 1


async def test_metrics_ask_for_a_key(tmp_path: Path) -> None:
    keys = (KeyConfig(key="k"), KeyConfig(key="one", models=("scripted",)))
    async with serving(config(tmp_path, keys=keys), tmp_path) as running:
        limited = await running.client.get("/metrics", headers={"x-api-key": "one"})
        assert limited.status_code == 403
        assert (await running.client.get("/metrics")).status_code == 401
        headers = {"authorization": "Bearer k"}
        assert (await running.client.get("/metrics", headers=headers)).status_code == 200


async def test_two_servers_dont_share_numbers() -> None:
    one, other = Metrics(), Metrics()
    one.on_model_event(ModelLoaded("a", 1.0))
    one.on_model_event(ModelLoadFailed("a", 1.0, "broken"))
    one.on_model_event(ModelLoadFailed("a", 1.0, None))
    one.on_model_event(ModelUnloaded("a", 1.0, "room"))
    numbers = samples(one.text().decode())
    assert numbers["roundhouse_load_failures_total{model=a,why=failed}"] == 1
    assert numbers["roundhouse_load_failures_total{model=a,why=cancelled}"] == 1
    assert numbers["roundhouse_evictions_total{model=a,reason=room}"] == 1
    assert not any("model=a" in name for name in samples(other.text().decode()))


def test_gaps_of_several_answers_add_up() -> None:
    metrics = Metrics()
    for _ in range(2):
        gap = metrics.gaps("a")
        for seconds in (0.002, 0.998, 2.0):
            gap(seconds)
    numbers = samples(metrics.text().decode())
    assert numbers["roundhouse_inter_token_seconds_sum{model=a}"] == pytest.approx(6.0)
    assert numbers["roundhouse_inter_token_seconds_count{model=a}"] == 2 * 3
    assert numbers["roundhouse_inter_token_seconds_bucket{le=0.0025,model=a}"] == 2 * (0 + 1)


async def test_each_answer_is_one_line_in_the_log_without_its_words(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        with capture_logs() as lines:
            headers = {"x-request-id": "mine"}
            await running.client.post("/v1/chat/completions", json=CHAT, headers=headers)
    (line,) = [line for line in lines if line["event"] == "request"]
    assert line["request"] == "mine"
    assert line["model"] == "scripted"
    assert line["outcome"] == "ok"
    assert line["completion_tokens"] > 0
    assert line["ttft"] is not None
    assert "secret" not in str(lines)


@pytest.mark.parametrize("stream", [True, False])
async def test_headers_tell_who_answers_and_what_it_took(stream: bool, tmp_path: Path) -> None:
    """A stream tells it there if it waits for less than a second: here, for nothing."""
    async with serving(config(tmp_path, load_seconds=0.1), tmp_path) as running:
        if stream:
            await running.registry.load("scripted")
        answer = await running.client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
        assert answer.headers["x-roundhouse-model"] == "scripted"
        assert answer.headers["x-roundhouse-backend"] == "scripted"
        assert float(answer.headers["x-roundhouse-load-time"]) >= (0.0 if stream else 0.1)
        assert float(answer.headers["x-roundhouse-queue-time"]) >= 0
        assert answer.headers["x-request-id"]


async def test_after_a_long_wait_a_comment_tells_what_headers_no_longer_can(tmp_path: Path) -> None:
    async with serving(config(tmp_path, load_seconds=2.5), tmp_path) as running:
        answer = await running.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    comments = [line for line in answer.text.splitlines() if line.startswith(": ")]
    assert comments[0].startswith(": loading scripted")
    assert "%" in comments[0]
    assert "position 1" in comments[0]
    assert float(re.findall(r"x-roundhouse-load-time=([\d.]+)", comments[-1])[0]) >= 2.0
    assert "data: [DONE]" in answer.text


@pytest.mark.parametrize("streamed", [True, False])
async def test_who_leaves_the_line_is_logged_with_the_time_spent_there(
    streamed: bool, tmp_path: Path
) -> None:
    async with serving(config(tmp_path, load_seconds=2 * HANG), tmp_path) as running:
        with capture_logs() as lines:
            started = perf_counter()
            body = msgspec.json.encode({**CHAT, "stream": streamed})
            async with await send_chat(running, body):
                await state(running, "scripted", "loading")
            with anyio.fail_after(HANG):
                while not (answered := [line for line in lines if line["event"] == "request"]):
                    await anyio.sleep(0.005)
            most = perf_counter() - started
        numbers = await scraped(running)
    assert answered[0]["outcome"] == "left"
    assert 0.0 < answered[0]["queued"] + answered[0]["loading"] <= most
    assert numbers["roundhouse_load_wait_seconds_count{model=scripted}"] == 1


def test_each_token_is_of_one_kind_and_lengths_are_reported() -> None:
    metrics = Metrics()
    usage = Usage(prompt_tokens=100, cached_tokens=60, completion_tokens=40, reasoning_tokens=30)
    metrics.answered(answered(1000.0, usage))
    numbers = samples(metrics.text().decode())
    kinds = {"prompt": 40, "cached": 60, "completion": 10, "reasoning": 30}
    assert by_name(numbers, "tokens_total") == {
        f"roundhouse_tokens_total{{kind={kind},model=a}}": tokens for kind, tokens in kinds.items()
    }
    for name, tokens in (("prompt", 100), ("cached", 60), ("completion", 40)):
        assert numbers[f"roundhouse_{name}_tokens_sum{{model=a}}"] == tokens
    bucket = "roundhouse_request_seconds_bucket{{le={},model=a}}"
    assert numbers[bucket.format("600.0")] == 0
    assert numbers[bucket.format("1800.0")] == 1


def test_the_process_and_the_build_are_reported_and_no_series_of_creation() -> None:
    numbers = samples(Metrics().text().decode())
    assert numbers["process_resident_memory_bytes{}"] > 0
    assert numbers["process_open_fds{}"] > 0
    (build,) = by_name(numbers, "build_info")
    assert "version=" in build
    metrics = Metrics()
    metrics.on_model_event(ModelUnloaded("a", 1.0, "idle"))
    assert not [name for name in samples(metrics.text().decode()) if "_created" in name]


async def test_who_is_not_let_in_is_counted_and_logged_without_the_key(tmp_path: Path) -> None:
    keys = (KeyConfig(key="right", role="admin"),)
    async with serving(config(tmp_path, keys=keys), tmp_path) as running:
        with capture_logs() as lines:
            for headers in ({}, {"x-api-key": "wr0ng"}, {"authorization": "Bearer wr0ng"}):
                await running.client.get("/v1/models/some/thing", headers=headers)
            for _ in range(100):
                await running.client.get("/v1/models", headers={"x-api-key": "wr0ng"})
        text = (await running.client.get("/metrics", headers={"x-api-key": "right"})).text
    refused = [line for line in lines if line["event"] == "request refused"]
    assert [line["reason"] for line in refused[:3]] == ["key_missing", "key_wrong", "key_wrong"]
    assert refused[0]["client"] == "127.0.0.1"
    assert refused[0]["route"] == "GET /v1/models/{model_id}"
    assert len(refused) == LINES
    assert "wr0ng" not in str(lines)
    numbers = samples(text)
    assert numbers["roundhouse_refused_requests_total{reason=key_wrong}"] == 102
    assert numbers["roundhouse_refused_requests_total{reason=key_missing}"] == 1


def test_refusals_that_were_not_logged_are_reported_with_the_next_line() -> None:
    counted: list[str] = []
    now = 0.0
    refusals = Refusals(counted.append, lambda: now)
    with capture_logs() as lines:
        for _ in range(LINES + 7):
            refusals.note("key_wrong", "1.2.3.4", "GET /")
        now += WINDOW
        refusals.note("key_wrong", "1.2.3.4", "GET /")
    assert len(counted) == LINES + 8
    assert len(lines) == LINES + 1
    assert lines[-1]["unlogged"] == 7


async def test_a_page_that_is_refused_is_counted(running: Running) -> None:
    await running.client.post("/unload", headers={"origin": "http://evil.example"})
    numbers = await scraped(running)
    assert numbers["roundhouse_refused_requests_total{reason=not_for_pages}"] == 1


async def test_llama_server_s_names_are_reported_where_they_are_wanted(tmp_path: Path) -> None:
    plain = config(tmp_path)
    named = msgspec.structs.replace(plain, llamaserver=LlamaServerConfig(metric_names=True))
    answers: list[Any] = []
    found: dict[str, float] = {}
    text = ""
    for settings in (plain, named):
        async with serving(settings, tmp_path) as running:
            body = {"model": "roundhouse-tiny", "prompt": "Once upon a time " * 4, "n_predict": 8}
            answers = [(await running.client.post("/completion", json=body)).json() for _ in "ab"]
            numbers = await scraped(running)
            answer = await running.client.get("/metrics")
            text = answer.text
        found = {name: value for name, value in numbers.items() if name.startswith("llamacpp:")}
        assert bool(found) == settings.llamaserver.metric_names
        is_reported = "process-start-time-unix" in answer.headers
        assert is_reported == settings.llamaserver.metric_names
    timings = [one["timings"] for one in answers]
    for name, field in (
        ("prompt_tokens_total", "prompt_n"),
        ("prompt_tokens_cached_total", "cache_n"),
        ("tokens_predicted_total", "predicted_n"),
    ):
        assert found[f"llamacpp:{name}{{}}"] == sum(one[field] for one in timings)
    assert found["llamacpp:prompt_tokens_cached_total{}"] > 0
    longest = max(one["tokens_evaluated"] + one["tokens_predicted"] for one in answers)
    assert f"\nllamacpp:n_tokens_max {float(longest)!r}\n" in text
    seconds = found["llamacpp:tokens_predicted_seconds_total{}"]
    assert seconds == pytest.approx(sum(one["predicted_ms"] for one in timings) / 1000)
    assert found["llamacpp:predicted_tokens_seconds{}"] == pytest.approx(14 / seconds)
    assert found["llamacpp:requests_processing{}"] == found["llamacpp:requests_deferred{}"] == 0


async def test_a_client_s_mistake_is_no_failure_and_one_of_ours_is(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        unknown = {**CHAT, "model": "nobody"}
        too_long = {**CHAT, "messages": [{"role": "user", "content": "x" * 9000}]}
        broken = {**CHAT, "messages": [{"role": "user", "content": "break"}]}
        for body in (unknown, too_long, broken):
            for stream in (False, True):
                path = "/v1/chat/completions"
                await running.client.post(path, json={**body, "stream": stream})
        numbers = await scraped(running)
    requests = by_name(numbers, "requests_total")
    assert sum(requests.values()) == 6
    assert by_name(numbers, "failures_total") == {
        "roundhouse_failures_total{api=chat,model=scripted}": 2.0
    }


async def test_memory_keys_and_what_they_used_are_there(tmp_path: Path) -> None:
    keys = [KeyConfig(key="a", role="admin"), KeyConfig(key="b", label="phone")]
    async with serving(config(tmp_path, keys=keys), tmp_path) as running:
        by = {"authorization": "Bearer b"}
        await running.client.post("/v1/chat/completions", json=CHAT, headers=by)
        answer = await running.client.get("/metrics", headers={"authorization": "Bearer a"})
        status = running.registry.status("scripted")
        budget = running.registry.budgets["cpu"]
    numbers = samples(answer.text)
    assert numbers["roundhouse_keys{role=admin}"] == 1
    assert numbers["roundhouse_keys{role=user}"] == 1
    assert numbers["roundhouse_key_requests_total{key=phone}"] == 1
    assert numbers["roundhouse_key_tokens_total{key=phone,kind=completion}"] > 0
    assert status.need is not None
    assert numbers["roundhouse_memory_budget_bytes{device=cpu}"] == budget
    assert numbers["roundhouse_memory_free_bytes{device=cpu}"] == budget - status.need.total


async def test_servers_elsewhere_are_there_by_their_place(tmp_path: Path) -> None:
    away = UpstreamConfig(name="away", urls=("http://127.0.0.1:9/v1",), models={"far": "far"})
    settings = msgspec.structs.replace(config(tmp_path), upstreams=(away,))
    async with serving(settings, tmp_path) as running:
        path = "/v1/chat/completions"
        answer = await running.client.post(path, json={**CHAT, "model": "far"})
        assert answer.status_code == 503
        numbers = await scraped(running)
    assert numbers["roundhouse_upstream_up{server=1,upstream=away}"] == 0
    assert numbers["roundhouse_upstream_failures_total{server=1,upstream=away}"] == 0
    assert numbers["roundhouse_upstream_in_use{server=1,upstream=away}"] == 0
    assert by_name(numbers, "failures_total")
