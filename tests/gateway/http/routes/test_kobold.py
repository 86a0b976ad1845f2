"""KoboldAI's API over a real socket, with the requests of SillyTavern and KoboldAI Lite."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from config.settings import KeyConfig
from tests.gateway.http.serving import LASTING, Running, config, events, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

TINY = "roundhouse-tiny"
STREAM = "/api/extra/generate/stream"


@pytest.fixture(scope="module")
async def slow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    keys = (KeyConfig(key="one"), KeyConfig(key="two"))
    settings = config(folder, keys=keys, tokens_per_second=LASTING)
    async with serving(settings, folder) as server:
        yield server


async def post(
    running: Running, path: str, body: dict[str, Any] | None = None, key: str = "one"
) -> Any:
    headers = {"authorization": f"Bearer {key}"}
    answer = await running.client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def said(running: Running, genkey: str, key: str = "one") -> str:
    """What there is of a generation."""
    body = {"genkey": genkey}
    found = await post(running, "/api/extra/generate/check", body, key)
    return str(found["results"][0]["text"])


async def grown(running: Running, genkey: str) -> str:
    """The same once there is something."""
    with anyio.fail_after(HANG):
        while not (text := await said(running, genkey)):
            await anyio.sleep(0.005)
    return text


async def test_a_text_goes_on_alike_whole_and_as_a_stream(running: Running) -> None:
    body = {"prompt": "Hello", "model": TINY, "max_length": 12, "temperature": 0}
    paths = ("/api/v1/generate", "/api/latest/generate")
    whole = [(await running.client.post(path, json=body)).json()["results"] for path in paths]
    assert whole[0] == whole[1]
    (result,) = whole[0]
    assert (result["completion_tokens"], result["finish_reason"]) == (12, "length")
    stream = await running.client.post(STREAM, json=body)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.text.startswith("event: message\ndata: {")
    *steps, last = events(stream.text)
    assert "".join(step["token"] for step in steps) == result["text"]
    assert {step["finish_reason"] for step in steps} == {None}
    assert (last["token"], last["finish_reason"]) == ("", "length")
    assert last["completion_tokens"] == 12
    assert last["prompt_tokens"] == result["prompt_tokens"]


@pytest.mark.parametrize("path", ["/api/v1/generate", STREAM])
async def test_the_stop_sequence_is_reported_unless_it_is_to_be_trimmed(
    path: str, running: Running
) -> None:
    texts = []
    for trim in (False, True):
        body = {"prompt": "x", "model": "scripted", "stop_sequence": [" the "], "trim_stop": trim}
        answer = await running.client.post(path, json=body)
        if path == STREAM:
            *steps, last = events(answer.text)
            texts.append("".join(step["token"] for step in steps))
        else:
            (last,) = answer.json()["results"]
            texts.append(last["text"])
        assert last["finish_reason"] == "stop"
    assert texts == ["Hello from the ", "Hello from"]


async def test_as_many_texts_as_were_asked_for(running: Running) -> None:
    body = {"prompt": "x", "model": "scripted", "n": 3}
    answer = await running.client.post("/api/v1/generate", json=body)
    assert [one["text"] for one in answer.json()["results"]] == ["Hello from the script."] * 3


async def test_a_grammar_is_kept_to(running: Running) -> None:
    body = {"prompt": "x", "model": TINY, "grammar": 'root ::= "yes" | "no"', "max_length": 9}
    answer = await running.client.post("/api/v1/generate", json=body)
    assert answer.json()["results"][0]["text"] in {"yes", "no"}


async def test_an_error_has_koboldcpps_form_and_sillytaverns(running: Running) -> None:
    for path in ("/api/v1/generate", STREAM):
        answer = await running.client.post(path, json={"prompt": "x", "max_length": 0})
        assert answer.status_code == 400
        error = answer.json()
        assert error["detail"]["param"] == "max_length"
        assert error["detail"]["msg"] == error["error"]["message"]
        assert error["detail"]["type"] == "invalid_request_error"


async def test_a_stream_that_breaks_says_so(running: Running) -> None:
    body = {"prompt": "break", "model": "scripted"}
    answer = await running.client.post(STREAM, json=body)
    assert answer.text.count("event: error\n") == 1
    assert "msg" in events(answer.text)[-1]["detail"]


@pytest.mark.parametrize("path", ["/api/v1/generate", STREAM])
async def test_a_generation_is_read_while_it_grows_and_ended_by_its_key(
    path: str, slow: Running
) -> None:
    mine = f"of {path}"
    body = {"prompt": "long", "model": "scripted", "genkey": mine, "max_length": 1800}
    found: list[str] = []

    async def generate() -> None:
        headers = {"x-api-key": "one"}
        found.append((await slow.client.post(path, json=body, headers=headers)).text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        before = await grown(slow, mine)
        assert await said(slow, "other") == await said(slow, mine, key="two") == ""
        for key, name in (("two", mine), ("one", "other"), ("one", "")):
            missed = await post(slow, "/api/extra/abort", {"genkey": name}, key)
            assert missed == {"success": "false", "done": "false"}
        ended = await post(slow, "/api/extra/abort", {"genkey": mine})
        assert ended == {"success": "true", "done": "true"}
    after = await said(slow, mine)
    assert after.startswith(before)
    assert len(after) < 1800
    if path == STREAM:
        *steps, last = events(found[0])
        assert "".join(step["token"] for step in steps) == after
    else:
        last = events("data: " + found[0])[0]["results"][0]
        assert last["text"] == after
    assert last["finish_reason"] == "length"
    assert (await slow.client.get("/api/extra/perf", headers={"x-api-key": "two"})).json()[
        "total_gens"
    ] == 0


async def test_without_a_key_the_only_generation_is_meant(slow: Running) -> None:
    """SillyTavern's abort has no body."""
    body = {"prompt": "long", "model": "scripted", "max_length": 1800}
    headers = {"x-api-key": "one"}
    ended = []

    async def generate() -> None:
        ended.append(await slow.client.post("/api/v1/generate", json=body, headers=headers))

    async def so_far() -> str:
        answer = await slow.client.get("/api/extra/generate/check", headers=headers)
        return str(answer.json()["results"][0]["text"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        with anyio.fail_after(HANG):
            while not await so_far():
                await anyio.sleep(0.005)
        answer = await slow.client.post("/api/extra/abort", headers=headers)
        assert answer.json() == {"success": "true", "done": "true"}
    assert ended[0].json()["results"][0]["text"] == await so_far()


async def test_of_several_without_a_key_none_is_ended(slow: Running) -> None:
    body = {"prompt": "long", "model": "scripted", "max_length": 1800}
    headers = {"x-api-key": "two"}

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(lambda: slow.client.post(STREAM, json=body, headers=headers))
        with anyio.fail_after(HANG):
            while slow.registry.status("scripted").in_use < 2:
                await anyio.sleep(0.005)
        missed = await post(slow, "/api/extra/abort", {}, key="two")
        assert missed == {"success": "false", "done": "false"}
        assert await said(slow, "", key="two") == ""
        assert slow.registry.status("scripted").in_use == 2
        tasks.cancel_scope.cancel()


async def test_tokens_are_counted_and_read(running: Running) -> None:
    counts = {}
    for special in (True, False):
        body = {"prompt": "Hello there", "special": special, "model": TINY}
        answer = (await running.client.post("/api/extra/tokencount", json=body)).json()
        assert answer["value"] == len(answer["ids"])
        counts[special] = answer["ids"]
    body = {"ids": counts[False], "model": TINY}
    answer = (await running.client.post("/api/extra/detokenize", json=body)).json()
    assert answer == {"result": "Hello there", "success": True}
    assert counts[True][-len(counts[False]) :] == counts[False]


async def test_what_sillytavern_looks_for_at_its_start(running: Running) -> None:
    """src/endpoints/backends/kobold.js, `/status`; and the versions it wants."""
    await running.client.post("/api/v1/generate", json={"prompt": "x", "model": TINY})
    found = {
        path: (await running.client.get(path)).json()
        for path in (
            "/api/v1/info/version",
            "/api/extra/version",
            "/api/v1/model",
            "/api/v1/config/max_length",
            "/api/v1/config/max_context_length",
            "/api/extra/true_max_context_length",
            "/api/v1/config/soft_prompts_list",
            "/api/latest/config/soft_prompt",
        )
    }
    united = found["/api/v1/info/version"]["result"]
    assert tuple(map(int, united.split("."))) >= (1, 2, 4)
    assert found["/api/extra/version"]["result"] == "KoboldCpp"
    assert tuple(map(int, found["/api/extra/version"]["version"].split("."))) >= (1, 48)
    assert found["/api/extra/version"]["protected"] is False
    loaded = running.registry.status(found["/api/v1/model"]["result"])
    assert loaded.info is not None
    length = {"value": loaded.info.context_length}
    assert found["/api/v1/config/max_context_length"] == length
    assert found["/api/extra/true_max_context_length"] == length
    assert found["/api/v1/config/max_length"] == {"value": 512}
    assert found["/api/v1/config/soft_prompts_list"] == {"values": []}
    assert found["/api/latest/config/soft_prompt"] == {"value": ""}


async def test_the_soft_prompt_that_there_is_can_be_chosen(running: Running) -> None:
    path = "/api/v1/config/soft_prompt"
    assert (await running.client.put(path, json={"value": ""})).status_code == 200
    refused = await running.client.put(path, json={"value": "noir"})
    assert refused.json()["detail"]["param"] == "value"


async def test_the_last_generation_is_reported(running: Running) -> None:
    before = (await running.client.get("/api/extra/perf")).json()["total_gens"]
    body = {"prompt": "Hello", "model": TINY, "max_length": 5}
    await running.client.post("/api/v1/generate", json=body)
    perf = (await running.client.get("/api/extra/perf")).json()
    assert perf["total_gens"] == before + 1
    assert (perf["last_token_count"], perf["stop_reason"]) == (5, 0)
    assert perf["last_process"] > 0
    assert (perf["queue"], perf["idle"]) == (0, 1)
