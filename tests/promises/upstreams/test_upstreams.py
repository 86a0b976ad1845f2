"""Models of other servers through a real one of ours: the same API, the same keys, honest ends."""

import asyncio
import base64
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import openai
import pytest

from config.settings import Config, ImagesConfig, KeyConfig
from config.upstreams import UpstreamConfig
from tests.backends.pairs import quick
from tests.backends.places.upstream import far as other
from tests.backends.places.upstream.far import (
    Far,
    Says,
    chunk,
    far,
    in_turn,
    silent,
    streams,
    text,
    then_silent,
    with_status,
)
from tests.gateway.http.serving import HELLO, Running, events, models, send_chat, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

# One black pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
PIXEL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


@asynccontextmanager
async def relaying(
    folder: Path,
    *fars: Far,
    keys: tuple[KeyConfig, ...] = (),
    local: bool = False,
    images: ImagesConfig | None = None,
    **options: Any,
) -> AsyncIterator[Running]:
    """Ours, in front of replicas, as the model "far"."""
    urls = tuple(one.url for one in fars)
    settings = {"models": {"far": "theirs"}, "probe_interval": 0.05, **options}
    upstream = UpstreamConfig(name="elsewhere", urls=urls, **settings)
    whole = Config(
        server=msgspec.structs.replace(Config().server, port=0),
        keys=keys,
        models=models(folder) if local else (),
        upstreams=(upstream,),
        images=images or Config().images,
    )
    async with serving(whole, folder) as running:
        yield running


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "far", "messages": HELLO, **fields}


async def ask(running: Running, **fields: Any) -> Any:
    return await running.client.post("/v1/chat/completions", json=chat(**fields))


class Relay(NamedTuple):
    """One of ours in front of one that says what it is told to."""

    far: Far
    running: Running


@pytest.fixture(scope="module")
async def relay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Relay]:
    """For answers without faults, which are remembered of a server."""
    async with far(silent) as one, relaying(tmp_path_factory.mktemp("relay"), one) as running:
        yield Relay(one, running)


async def relayed(relay: Relay, says: Says, **fields: Any) -> Any:
    relay.far.says = says
    relay.far.asked.clear()
    return await ask(relay.running, **fields)


async def answer(folder: Path, says: Says, **fields: Any) -> Any:
    async with far(says) as one, relaying(folder, one) as running:
        return await ask(running, **fields)


# ----------------------------------------------------------------------------------- what goes well


async def test_a_stream_is_relayed(relay: Relay) -> None:
    got = await relayed(
        relay,
        streams(*text("One", " two"), USAGE),
        stream=True,
        stream_options={"include_usage": True},
    )
    assert got.headers["x-roundhouse-model"] == "far"
    assert got.headers["x-roundhouse-backend"] == "upstream"
    assert got.text.endswith("data: [DONE]\n\n")
    chunks = events(got.text.replace("data: [DONE]", ""))
    deltas = [one["choices"][0] for one in chunks if one["choices"]]
    assert [one["delta"] for one in deltas] == [
        {"role": "assistant"},
        {"content": "One"},
        {"content": " two"},
        {},
    ]
    assert deltas[-1]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] == 9


async def test_a_whole_answer_is_relayed_with_reasoning_and_calls(relay: Relay) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"content": None, "reasoning": "Hm.", "tool_calls": [call]}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    got = (await relayed(relay, with_status(200, msgspec.json.encode(body)))).json()

    choice = got["choices"][0]
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["tool_calls"] == [call]
    assert choice["finish_reason"] == "tool_calls"


async def test_openais_client_reads_what_is_relayed(relay: Relay) -> None:
    call = {"index": 1, "id": "c1", "function": {"name": "look", "arguments": '{"at":'}}
    rest = {"index": 1, "function": {"arguments": '"it"}'}}
    said = (
        chunk({"reasoning": "Hm."}),
        chunk({"content": "Look."}),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [rest]}),
        chunk({}, finish="tool_calls"),
    )
    one, running = relay
    one.says = streams(*said)
    one.asked.clear()
    client = openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none")
    async with client, client.chat.completions.stream(model="far", messages=HELLO) as stream:
        whole = await stream.get_final_completion()

    message = whole.choices[0].message
    assert message.content == "Look."
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == '{"at":"it"}'


async def test_completions_are_relayed(relay: Relay) -> None:
    said = [{"choices": [{"index": 0, "text": word, "finish_reason": None}]} for word in ("a", "b")]
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    one, running = relay
    one.says = streams(*said, end)
    one.asked.clear()
    body = {"model": "far", "prompt": "Say", "max_tokens": 2, "echo": True, "stream": True}
    got = await running.client.post("/v1/completions", json=body)

    chunks = events(got.text.replace("data: [DONE]", ""))
    assert "".join(one["choices"][0]["text"] for one in chunks) == "Sayab"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert one.asked[0].json["prompt"] == "Say"


async def test_log_probabilities_and_choices_are_relayed(relay: Relay) -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    said = (
        chunk({"content": "a"}, logprobs=logprobs),
        chunk({"content": "b"}, index=1),
        chunk({}, finish="stop"),
        chunk({}, index=1, finish="length"),
    )
    one, running = relay
    one.says = streams(*said)
    one.asked.clear()
    got = (await ask(running, n=2, logprobs=True)).json()

    assert [choice["message"]["content"] for choice in got["choices"]] == ["a", "b"]
    assert got["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
    assert [choice["finish_reason"] for choice in got["choices"]] == ["stop", "length"]
    assert (one.asked[0].json["n"], one.asked[0].json["top_logprobs"]) == (2, 0)


# ------------------------------------------------------------------------------ what is handed on


async def test_what_nobody_here_reads_is_handed_on(relay: Relay) -> None:
    one, running = relay
    one.says = streams(*text("x"))
    one.asked.clear()
    got = await ask(
        running,
        stream=True,
        temperature=0.5,
        max_completion_tokens=9,
        stop=["\n"],
        reasoning_effort="low",
        chat_template_kwargs={"depth": 2},
        response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        user="me",
        web_search_options={"search_context_size": "low"},
    )
    sent = one.asked[0].json
    assert "x-roundhouse-ignored" not in got.headers
    assert sent["web_search_options"] == {"search_context_size": "low"}
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert sent["chat_template_kwargs"] == {"depth": 2}
    expected = {"temperature": 0.5, "max_completion_tokens": 9, "stop": ["\n"], "user": "me"}
    assert {name: sent[name] for name in expected} == expected
    assert sent["reasoning_effort"] == "low"


async def test_what_is_dropped_is_reported(tmp_path: Path) -> None:
    async with far(streams(*text("x"))) as one:
        async with relaying(tmp_path, one, drop=("min_p", "odd")) as running:
            got = await ask(running, stream=True, min_p=0.1, odd=1)

    assert got.headers["x-roundhouse-ignored"] == "min_p, odd"
    assert not {"min_p", "odd"} & one.asked[0].json.keys()


async def test_pictures_are_handed_on_as_they_are(relay: Relay) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "See"}, picture]}]
    one, running = relay
    one.says = streams(*text("x"))
    one.asked.clear()
    assert (await ask(running, messages=messages)).status_code == 200

    assert one.asked[0].json["messages"][0]["content"][1] == picture


async def test_pictures_are_fetched_here_where_the_upstream_cannot(tmp_path: Path) -> None:
    """Under the rules of `images`: a private address is refused, as for a model of ours."""
    picture = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/cat.png"}}
    inline = {"type": "image_url", "image_url": {"url": PIXEL}}
    async with far(streams(*text("x"))) as one:
        async with relaying(tmp_path, one, fetch_images=True) as running:
            got = await ask(running, messages=[{"role": "user", "content": [picture]}])
            assert got.status_code == 400
            assert "not allowed" in got.json()["error"]["message"]
            got = await ask(running, messages=[{"role": "user", "content": [inline]}])
            assert got.status_code == 200, got.text

    assert len(one.asked) == 1
    assert one.asked[0].json["messages"][0]["content"][0] == inline


async def test_a_fetched_picture_goes_as_its_data(tmp_path: Path) -> None:
    async with far(streams(*text("x"))) as one, far(with_picture) as host:
        images = msgspec.structs.replace(Config().images, allow_private_addresses=True)
        async with relaying(tmp_path, one, images=images, fetch_images=True) as running:
            picture = {"type": "image_url", "image_url": {"url": f"{host.url}/cat.png"}}
            got = await ask(running, messages=[{"role": "user", "content": [picture]}])
            assert got.status_code == 200, got.text

    assert one.asked[0].json["messages"][0]["content"][0]["image_url"]["url"] == PIXEL


async def with_picture(asked: other.Asked, writer: asyncio.StreamWriter) -> None:
    await with_status(200, PNG, kind="image/whatever")(asked, writer)


async def test_a_model_known_to_be_blind_is_not_sent_any(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    async with far(silent) as one, relaying(tmp_path, one, capabilities=("tools",)) as running:
        got = await ask(running, messages=[{"role": "user", "content": [picture]}])

    assert got.status_code == 400
    assert one.asked == []


# ------------------------------------------------------------------------------ shapes of answers

SIZED = {"type": "object", "required": ["size"], "properties": {"size": {"type": "integer"}}}
SHAPES: dict[str, Any] = {
    "schema": {"type": "json_schema", "json_schema": {"name": "s", "schema": SIZED}},
    "object": {"type": "json_object"},
}


@pytest.mark.parametrize(
    ("shape", "said", "fault"),
    [
        ("schema", '{"size": 1}', None),
        ("schema", '{"size": "big"}', "$.size"),
        pytest.param("schema", "Sure! Here it is", "not JSON", marks=pytest.mark.slow),
        pytest.param("object", "{}", None, marks=pytest.mark.slow),
        pytest.param("object", "[]", "type", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_whose_shape_was_not_held_there_is_reported(
    relay: Relay, shape: str, said: str, fault: str | None, streamed: bool
) -> None:
    words = streams(*text(said[:4], said[4:]))
    got = await relayed(relay, words, stream=streamed, response_format=SHAPES[shape])
    last = events(got.text.replace("data: [DONE]", ""))[-1] if streamed else got.json()
    found = last["choices"][0].get("schema_fault")

    assert found is None if fault is None else fault in found


async def test_a_schema_that_cannot_be_read_here_is_not_refused(relay: Relay) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#/nowhere"}}}
    got = await relayed(relay, streams(*text("{}")), response_format=shape)

    assert got.status_code == 200
    assert got.json()["choices"][0]["schema_fault"].startswith("not checked: ")


FREE_SHAPES: dict[str, tuple[dict[str, Any], str, str]] = {
    "regex": ({"guided_regex": "[a-c]+"}, "abc", "abcd"),
    "choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes", "perhaps"),
    "grammar": ({"grammar": 'root ::= "a" "b"'}, "ab", "a"),
}


@pytest.mark.parametrize("kind", FREE_SHAPES)
async def test_other_shapes_are_checked_too(relay: Relay, kind: str) -> None:
    asked, good, bad = FREE_SHAPES[kind]
    for said, is_good in ((good, True), (bad, False)):
        got = await relayed(relay, streams(*text(said)), **asked)
        assert ("schema_fault" not in got.json()["choices"][0]) is is_good
        assert "x-roundhouse-relaxed" not in got.headers, "the other server was asked for it"


async def test_a_shape_that_a_server_cannot_be_asked_for_is_reported_at_once(
    tmp_path: Path,
) -> None:
    async with far(streams(*text("abcd"))) as one:
        async with relaying(tmp_path, one, server="openai") as running:
            got = await ask(running, guided_regex="[a-c]+")

    assert got.headers["x-roundhouse-relaxed"] == "guided_regex"
    assert got.json()["choices"][0]["schema_fault"] == "it isn't of the shape from byte 3 on"
    assert not {"guided_regex", "structured_outputs"} & one.asked[0].json.keys()


async def test_the_kind_of_server_is_known_by_its_list(tmp_path: Path) -> None:
    async with far(streams(*text("abc"))) as one:
        one.lists = with_status(200, b'{"data": [{"id": "theirs", "owned_by": "sglang"}]}')
        async with relaying(tmp_path, one) as running, asyncio.timeout(HANG):
            while not running.registry.fleet.roster.upstreams["elsewhere"].lists.offers:
                await asyncio.sleep(0.01)
            await ask(running, guided_regex="[a-c]+")

    assert one.asked[0].json["regex"] == "[a-c]+"


# ------------------------------------------------------------------------ what became of parameters


async def test_strict_parameters_refuse_what_is_not_handed_on(tmp_path: Path) -> None:
    async with far(streams(*text("x"))) as one:
        async with relaying(tmp_path, one, drop=("min_p", "odd")) as running:
            refused = await ask(running, strict_parameters=True, min_p=0.1)
            unknown = await ask(running, strict_parameters=True, odd=1)
            nested = {"role": "user", "content": "x", "foo": 1}
            unread = await ask(running, strict_parameters=True, messages=[nested])
            taken = await ask(running, strict_parameters=True, temperature=0.5, theirs=1)

    for got, name in ((refused, "min_p"), (unknown, "odd")):
        assert got.status_code == 400
        assert got.json()["error"]["param"] == name
        assert "drops it" in got.json()["error"]["message"]
    assert (unread.status_code, unread.json()["error"]["param"]) == (400, "messages[].foo")
    assert taken.status_code == 200
    assert [one.json.get("theirs") for one in one.asked] == [1]


async def test_parameters_tell_what_became_of_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"drop": ("min_p",), "set": {"temperature": 0.2}}
    async with far(streams(*text("x"))) as one, relaying(tmp_path, one, **options) as running:
        asked = {"temperature": 0.9, "min_p": 0.1, "top_k": 4, "web_search_options": {"a": 1}}
        got = await ask(running, return_parameters=True, **asked)

    parameters = got.json()["parameters"]
    assert parameters["applied"] == {"temperature": 0.2, "top_k": 4, "web_search_options": {"a": 1}}
    assert parameters["changed"]["temperature"]["used"] == 0.2
    assert parameters["ignored"] == {"min_p": "the configuration of the upstream drops it"}


async def test_an_answer_that_was_cut_or_calls_is_not_checked(tmp_path: Path) -> None:
    cut_short = (chunk({"content": '{"si'}), chunk({}, finish="length"))
    got = await answer(tmp_path, streams(*cut_short), response_format=SHAPES["schema"])

    assert "schema_fault" not in got.json()["choices"][0]


async def _until(got: httpx.Response, end: str) -> AsyncIterator[str]:
    async for line in got.aiter_lines():
        yield line
        if end in line:
            return


async def test_the_events_of_one_in_the_background_are_there_as_they_come(tmp_path: Path) -> None:
    asked = {"model": "far", "input": "Hi", "background": True}
    async with far(then_silent(chunk({"content": "x"}))) as one, relaying(tmp_path, one) as running:
        made = (await running.client.post("/v1/responses", json=asked)).json()
        path = f"/v1/responses/{made['id']}?stream=true&starting_after=0"
        async with asyncio.timeout(HANG), running.client.stream("GET", path) as got:
            seen = [line async for line in _until(got, '"delta":"x"')]
        assert "output_text.delta" in seen[-1]
        await running.client.post(f"/v1/responses/{made['id']}/cancel")


# ------------------------------------------------------------------------------------- honest ends


async def test_a_cut_stream_ends_with_an_error_and_without_done(tmp_path: Path) -> None:
    says = streams(chunk({"content": "x"}), done=False, ends=False)
    got = await answer(tmp_path, says, stream=True)

    assert "[DONE]" not in got.text
    assert events(got.text)[-1]["error"]["code"] == "upstream_cut"


async def test_a_stalled_stream_ends_with_an_error(tmp_path: Path) -> None:
    async with far(then_silent(chunk({"content": "x"}))) as one:
        async with relaying(tmp_path, one, stall_timeout=0.1) as running:
            got = await ask(running, stream=True)

    assert "[DONE]" not in got.text
    assert events(got.text)[-1]["error"]["code"] == "upstream_timeout"


async def test_an_error_keeps_its_status_and_says_when_to_come_again(tmp_path: Path) -> None:
    body = b'{"error": {"message": "slow down", "type": "rate_limit_error", "code": "rpm"}}'
    got = await answer(tmp_path, with_status(429, body, "retry-after: 7"), stream=True)

    assert (got.status_code, got.headers["retry-after"]) == (429, "7")
    assert got.json()["error"] == {
        "message": "slow down",
        "type": "rate_limit_error",
        "param": None,
        "code": "rpm",
    }


async def test_a_client_that_leaves_closes_the_other_server_at_once(tmp_path: Path) -> None:
    async with far(then_silent(chunk({"content": "x"}))) as one:
        async with relaying(tmp_path, one) as running, asyncio.timeout(HANG):
            async with await send_chat(running, msgspec.json.encode(chat(stream=True))) as client:
                while b'"x"' not in await client.receive():
                    pass
            await one.left.wait()


async def test_keys_never_reach_a_client_or_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says = with_status(400, b'{"error": {"message": "bad key sk-our-secret at http://a.b/"}}')
    async with far(says) as one, relaying(tmp_path, one, key="sk-our-secret") as running:
        texts = (await ask(running)).text + (await running.client.get("/metrics")).text
        listed = (await running.client.get("/v1/models")).text

    out, err = capsys.readouterr()
    assert one.asked[0].headers["authorization"] == "Bearer sk-our-secret"
    assert "sk-our-secret" not in texts + listed + out + err


# ------------------------------------------------------------------------------- as any other model


async def test_a_key_that_may_not_use_it_does_not_find_it(tmp_path: Path) -> None:
    keys = (KeyConfig(key="k", models=("other",)),)
    async with far(silent) as one, relaying(tmp_path, one, keys=keys) as running:
        running.client.headers["authorization"] = "Bearer k"
        got = await ask(running)

    assert got.status_code == 404
    assert one.asked == []


async def test_more_requests_than_its_limit_wait_in_line(tmp_path: Path) -> None:
    async with far(then_silent(chunk({"content": "x"}))) as one:
        async with relaying(tmp_path, one, max_concurrent=2) as running, asyncio.timeout(HANG):
            body = msgspec.json.encode(chat(stream=True))
            async with AsyncExitStack() as open_clients:
                clients = [
                    await open_clients.enter_async_context(await send_chat(running, body))
                    for _ in range(3)
                ]
                while len(one.asked) < 2 or running.registry.status("far").waiting < 1:
                    await asyncio.sleep(0.005)
                assert len(one.asked) == 2
                await clients[0].aclose()
                while len(one.asked) < 3:
                    await asyncio.sleep(0.005)


async def test_it_is_listed_and_loaded_and_unloaded(tmp_path: Path) -> None:
    async with far(streams(*text("x"))) as one, relaying(tmp_path, one) as running:
        await ask(running)
        (card,) = (await running.client.get("/v1/models")).json()["data"]
        assert (card["id"], card["state"], card["backend"]) == ("far", "loaded", "upstream")
        assert (card["context_length"], card["memory"]) == (None, None)
        report = await running.registry.unload("far")
        assert report.was_loaded
        assert running.registry.status("far").state == "unloaded"


async def test_tokens_of_it_are_not_ours_to_count(tmp_path: Path) -> None:
    async with far(with_status(404, b"{}")) as one, relaying(tmp_path, one) as running:
        got = await running.client.post("/v1/token/encode", json={"text": "a", "model": "far"})

    assert got.status_code == 400
    assert "another server" in got.text


async def test_what_its_list_names_is_found_and_what_leaves_it_is_gone(tmp_path: Path) -> None:
    def lists(*names: str) -> Says:
        cards = [{"id": name, "max_model_len": 4096} for name in names]
        return with_status(200, msgspec.json.encode({"data": cards}))

    async with far(streams(*text("x"))) as one:
        one.lists = lists("a", "b")
        async with (
            relaying(tmp_path, one, models="all", prefix="far/", refresh=0.05) as running,
            asyncio.timeout(HANG),
        ):
            assert (await ask(running, model="far/a")).status_code == 200
            assert one.asked[0].json["model"] == "a"
            listed = (await running.client.get("/v1/models/far/a")).json()
            assert listed["context_length"] == 4096
            one.lists = lists("b")
            while (await running.client.get("/v1/models/far/a")).status_code != 404:
                await asyncio.sleep(0.05)


# ------------------------------------------------------------------------------ replicas, fallbacks


async def test_a_local_model_answers_where_nobody_elsewhere_does(tmp_path: Path) -> None:
    async with far(with_status(503, b"{}")) as one:
        async with relaying(tmp_path, one, local=True, fallbacks=("scripted",)) as running:
            got = await ask(running, stream=True)

    assert got.headers["x-roundhouse-model"] == "scripted"
    assert got.text.endswith("data: [DONE]\n\n")


async def test_so_it_does_where_nothing_listens(tmp_path: Path) -> None:
    async with far(silent) as one:
        pass
    async with relaying(tmp_path, one, local=True, fallbacks=("scripted",)) as running:
        got = await ask(running)

    assert got.headers["x-roundhouse-model"] == "scripted"
    assert got.json()["choices"][0]["message"]["content"] == "Hello from the script."


async def test_a_request_at_fault_falls_back_on_nobody(tmp_path: Path) -> None:
    async with far(with_status(400, b"{}")) as one:
        async with relaying(tmp_path, one, local=True, fallbacks=("scripted",)) as running:
            assert (await ask(running)).status_code == 400


async def test_a_fallback_that_the_key_may_not_use_is_none(tmp_path: Path) -> None:
    keys = (KeyConfig(key="k", models=("far",)),)
    async with far(with_status(503, b"{}")) as one:
        async with relaying(
            tmp_path, one, local=True, keys=keys, fallbacks=("scripted",)
        ) as running:
            running.client.headers["authorization"] = "Bearer k"
            assert (await ask(running)).status_code == 503


async def test_a_server_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    """Within a probe's interval: nobody has to load anything."""
    sick = in_turn(*[with_status(503, b"{}")] * 3, streams(*text("back")))
    well = asyncio.Event()

    async def lists(asked: other.Asked, writer: asyncio.StreamWriter) -> None:
        await well.wait()
        await with_status(404, b"{}")(asked, writer)

    async with far(sick) as one, relaying(tmp_path, one) as running, asyncio.timeout(HANG):
        statuses = [(await ask(running)).status_code]
        one.lists = lists
        statuses += [(await ask(running)).status_code for _ in range(3)]
        assert statuses == [503] * 4
        assert len(one.asked) == 3, "the fourth found nobody to ask"
        well.set()
        while (got := await ask(running)).status_code != 200:
            await asyncio.sleep(0.02)
        assert got.json()["choices"][0]["message"]["content"] == "back"


@pytest.mark.slow
async def test_one_of_two_killed_under_load_costs_only_what_had_begun(tmp_path: Path) -> None:
    """Whoever had got nothing yet is answered by the other one. Each has ten of twenty, of which
    five have begun.
    """
    gone, begun, numbers = asyncio.Event(), set[int](), itertools.count()

    async def dies(_asked: other.Asked, writer: asyncio.StreamWriter) -> None:
        if next(numbers) % 2:
            writer.write(other.head(200, other.STREAM, "transfer-encoding: chunked"))
            writer.write(other.piece(other.event(chunk({"content": "x"}))))
            await writer.drain()
        await gone.wait()
        writer.transport.abort()

    async def lives(asked: other.Asked, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        await streams(*text("y"))(asked, writer)

    async def stream(number: int) -> str:
        body = chat(stream=True, messages=[{"role": "user", "content": str(number)}])
        received = ""
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as got:
            async for part in got.aiter_text():
                received += part
                if '"content":"x"' in part:
                    begun.add(number)
        return received

    async with far(dies) as dying, far(lives) as living:
        async with relaying(tmp_path, dying, living) as running, asyncio.timeout(HANG):
            asking = [asyncio.ensure_future(stream(number)) for number in range(20)]
            while (len(dying.asked), len(living.asked), len(begun)) != (10, 10, 5):
                await asyncio.sleep(0.005)
            gone.set()
            answers = await asyncio.gather(*asking)

    for number, received in enumerate(answers):
        if number in begun:
            assert "upstream_cut" in received
            assert "[DONE]" not in received
        else:
            assert received.endswith("data: [DONE]\n\n")
            assert '"content":"y"' in received


# -------------------------------------------------------------------------------- a second of ours


async def test_a_roundhouse_in_front_of_a_roundhouse(tmp_path: Path) -> None:
    near, behind = tmp_path / "near", tmp_path / "behind"
    near.mkdir()
    behind.mkdir()
    inner = Config(server=msgspec.structs.replace(Config().server, port=0), models=models(behind))
    async with serving(inner, behind) as second:
        upstream = UpstreamConfig(name="box", urls=(f"{second.url}/v1",), prefix="box/")
        outer = msgspec.structs.replace(inner, models=(), upstreams=(upstream,))
        async with serving(outer, near) as first:
            straight = await ask(second, model="roundhouse-tiny", temperature=0, max_tokens=8)
            through = await ask(first, model="box/roundhouse-tiny", temperature=0, max_tokens=8)
            thought = await ask(
                first, model="box/scripted", messages=[{"role": "user", "content": "think"}]
            )

    assert through.json()["choices"] == straight.json()["choices"]
    counts = ("prompt_tokens", "completion_tokens")
    usages = [[one.json()["usage"][name] for name in counts] for one in (straight, through)]
    assert usages[0] == usages[1]
    message = thought.json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "Seen.")


# -------------------------------------------------------------------------------------- split here

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def raw(*words: str) -> Says:
    said = [{"choices": [{"index": 0, "text": word, "finish_reason": None}]} for word in words]
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    return streams(*said, end, {"choices": [], "usage": {"prompt_tokens": 9}})


@asynccontextmanager
async def splitting(folder: Path, one: Far) -> AsyncIterator[Running]:
    template = folder / "chatml.jinja"
    template.write_text(CHATML)
    named: dict[str, Any] = {"split": "here", "template": str(template), "format": "hermes_json"}
    async with relaying(folder, one, **named) as running:
        yield running


async def test_a_server_that_splits_badly_is_sent_a_prompt_and_split_here(tmp_path: Path) -> None:
    call = '<tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    async with far(raw("<think>H", "m.</thi", "nk>\n\nYes. ", call)) as one:
        async with splitting(tmp_path, one) as running:
            got = (await ask(running, tools=tools)).json()

    assert one.asked[0].path == "/v1/completions"
    assert "<|im_start|>user\nHello!<|im_end|>\n" in one.asked[0].json["prompt"]
    message = got["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert message["content"] == "Yes."
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"it"}'}
    assert got["usage"]["prompt_tokens"] == 9


async def test_stop_strings_are_found_in_the_answer_alone_and_end_the_other_server(
    tmp_path: Path,
) -> None:
    words = [{"choices": [{"index": 0, "text": text}]} for text in ("<think>a.</think>b", ".c")]

    async def says(asked: other.Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(other.head(200, other.STREAM, "transfer-encoding: chunked"))
        for one in words:
            writer.write(other.piece(other.event(one)))
        await writer.drain()
        await asyncio.Event().wait()

    async with far(says) as one, splitting(tmp_path, one) as running, asyncio.timeout(HANG):
        got = (await ask(running, stop=["."])).json()
        await one.left.wait()

    assert got["choices"][0]["message"]["content"] == "b"
    assert "stop" not in one.asked[0].json


async def test_the_request_id_and_the_clients_key_go_along(tmp_path: Path) -> None:
    async with far(streams(*text("x"))) as one:
        async with relaying(tmp_path, one, pass_key=True) as running:
            headers = {"x-request-id": "id-7", "authorization": "Bearer sk-mine"}
            body = chat()
            await running.client.post("/v1/chat/completions", json=body, headers=headers)

    sent = one.asked[0].headers
    assert (sent["x-request-id"], sent["authorization"]) == ("id-7", "Bearer sk-mine")


# ------------------------------------------------------------------------------ for administrators


async def test_a_drained_server_gets_nothing_new_until_it_is_called_back(tmp_path: Path) -> None:
    async with far(streams(*text("a"))) as one, far(streams(*text("b"))) as two:
        async with relaying(tmp_path, one, two) as running:
            order = {"upstream": "elsewhere", "url": one.url}
            answer = await running.client.post("/v1/upstreams/drain", json=order)
            for _ in range(4):
                await ask(running)
            assert len(one.asked) == 0
            (upstream,) = answer.json()
            assert [each["draining"] for each in upstream["replicas"]] == [True, False]

            back = {**order, "draining": False}
            await running.client.post("/v1/upstreams/drain", json=back)
            for k in range(4):
                await ask(running, messages=[{"role": "user", "content": str(k)}])
            assert one.asked
            (upstream,) = (await running.client.get("/v1/upstreams")).json()
            assert [each["asked"] for each in upstream["replicas"]] == [
                len(one.asked),
                len(two.asked),
            ]


async def test_only_administrators_see_and_drain_servers(tmp_path: Path) -> None:
    async with far(silent) as one, relaying(tmp_path, one, keys=(KeyConfig(key="k"),)) as running:
        running.client.headers["authorization"] = "Bearer k"
        order = {"upstream": "elsewhere", "url": one.url}
        seen = await running.client.get("/v1/upstreams")
        drained = await running.client.post("/v1/upstreams/drain", json=order)

    assert (seen.status_code, drained.status_code) == (403, 403)


async def test_a_server_that_is_none_cannot_be_drained(tmp_path: Path) -> None:
    async with far(silent) as one, relaying(tmp_path, one) as running:
        order = {"upstream": "elsewhere", "url": "http://other/v1"}
        got = await running.client.post("/v1/upstreams/drain", json=order)

    assert got.status_code == 404


async def test_a_shape_is_checked_where_the_answer_is_split_here_too(tmp_path: Path) -> None:
    async with far(raw("<think>{}</think>", '{"size": ', '"big"}')) as one:
        async with splitting(tmp_path, one) as running:
            got = (await ask(running, response_format=SHAPES["schema"], n=2)).json()

    assert len(got["choices"]) == 2
    assert all("$.size" in choice["schema_fault"] for choice in got["choices"])


@pytest.mark.slow
async def test_a_whole_answer_may_take_longer_than_its_beginning(tmp_path: Path) -> None:
    async def says(_asked: other.Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(other.head(200, other.STREAM, "transfer-encoding: chunked"))
        for one in text(*"abcdefgh"):
            writer.write(other.piece(other.event(one)))
            await asyncio.sleep(0.25)
        writer.write(other.piece(other.DONE) + b"0\r\n\r\n")

    async with far(says) as one, far(streams(*text("another"))) as two:
        async with relaying(tmp_path, one, two, first_byte_timeout=1.0) as running:
            got = (await ask(running)).json()

    assert got["choices"][0]["message"]["content"] == "abcdefgh"
    assert (len(one.asked), two.asked) == (1, [])


async def test_times_are_the_clients_and_counts_that_nobody_gave_are_left_out(
    tmp_path: Path,
) -> None:
    async def says(_asked: other.Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await streams(*text("Hi."), *uses)(_asked, writer)

    uses: tuple[Any, ...] = (USAGE,)
    async with far(says) as one, relaying(tmp_path, one) as running:
        counted = (await ask(running)).json()
        uses = ()
        uncounted = (await ask(running)).json()
        streamed = await ask(running, stream=True, stream_options={"include_usage": True})

    assert counted["usage"]["completion_tokens"] == 2
    assert counted["timings"]["prompt_ms"] >= 200
    assert "usage" not in uncounted
    assert "timings" not in uncounted
    assert '"usage"' not in streamed.text


# ---------------------------------------------------------------------------------- the direct path

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {}),
    "usage": ("/v1/chat/completions", {"stream_options": {"include_usage": True}}),
    "tools": (
        "/v1/chat/completions",
        {"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]},
    ),
    "hidden": ("/v1/chat/completions", {"include_reasoning": False}),
    "two": ("/v1/chat/completions", {"n": 2}),
    "logprobs": ("/v1/chat/completions", {"logprobs": True}),
    "anthropic": ("/v1/messages", {"max_tokens": 99}),
    "responses": ("/v1/responses", {"input": "Hello!"}),
    "ollama": ("/api/chat", {}),
}
_TIMES = r"created_at|created|completed_at|\w+_ms|\w+_per_second|\w+_duration"
WAITED = re.compile(r"^:.*\n\n", re.MULTILINE)  # comments, while a load takes long
VARYING = re.compile(rf'"(?:{_TIMES}|\w*id)":("[^"]*"|[\d.e-]+)')


def unhurried(*said: Any) -> Says:
    """A stream whose chunks are read one by one."""

    async def says(_asked: other.Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(other.head(200, other.STREAM, "transfer-encoding: chunked"))
        for one in said:
            writer.write(other.piece(one if isinstance(one, bytes) else other.event(one)))
            for _ in range(5):
                await asyncio.sleep(0)
        writer.write(other.piece(other.DONE) + b"0\r\n\r\n")

    return says


@pytest.mark.parametrize("route", quick(ROUTES, "openai", "logprobs", "responses"))
async def test_a_stream_is_the_same_whichever_way_it_takes(tmp_path: Path, route: str) -> None:
    """httpx's own transport, which `http2` chooses, has no direct path."""
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": '{"at":'}}
    rest = {"index": 0, "function": {"arguments": '"it"}'}}
    said = (
        *(chunk({"reasoning": word}) for word in ("Let", " me", " see.")),
        *(chunk({"content": word}) for word in ("Yes", " é", "\n", "<tool", " 😀", "\\")),
        chunk({"content": "x"}, index=1),
        *(chunk({"tool_calls": [one]}) for one in (call, rest)),
        chunk({}, finish="tool_calls"),
        chunk({}, index=1, finish="stop"),
        USAGE,
    )
    said = said if route == "two" else tuple(one for one in said if not _is_second(one))
    path, more = ROUTES[route]
    texts = []
    for http2 in (False, True):
        async with far(unhurried(*said)) as one:
            async with relaying(tmp_path, one, http2=http2) as running:
                got = await running.client.post(
                    path, json=chat(stream=True, **more), headers={"x-request-id": "same"}
                )
        assert got.status_code == 200, got.text
        texts.append(WAITED.sub("", VARYING.sub("", got.text)))

    assert texts[0] == texts[1]
    assert "Yes" in texts[0]


def _is_second(said: dict[str, Any]) -> bool:
    return any(choice["index"] == 1 for choice in said["choices"])


async def test_a_client_that_does_not_read_stops_the_other_server(tmp_path: Path) -> None:
    sent = 0

    async def says(_asked: other.Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(other.head(200, other.STREAM, "transfer-encoding: chunked"))
        while True:
            writer.write(other.piece(other.event(chunk({"content": "x" * 10_000}))))
            await writer.drain()
            sent += 1

    async with far(says) as one, relaying(tmp_path, one) as running, asyncio.timeout(HANG):
        async with await send_chat(running, msgspec.json.encode(chat(stream=True))) as client:
            await client.receive()
            before = -1
            while sent != before:  # until it stands still
                before = sent
                await asyncio.sleep(0.2)
            assert sent * 10_000 < 32 << 20
            for _ in range(sent):
                await client.receive()
            while sent == before:
                await client.receive()
        await one.left.wait()


async def test_reasoning_that_a_template_opens_is_split_off_streams_from_the_second_on(
    tmp_path: Path,
) -> None:
    keys = (KeyConfig(key="k"), KeyConfig(key="other"))
    said = text("Hm", ".", "\n</", "think", ">\n\n", "Yes", " & no", ".")
    found = []
    async with far(unhurried(*said)) as one, relaying(tmp_path, one, keys=keys) as running:
        for key in ("k", "k", "other"):
            running.client.headers["authorization"] = f"Bearer {key}"
            got = await ask(running, stream=True)
            deltas = [
                choice["delta"]
                for each in events(got.text.replace("data: [DONE]", ""))
                for choice in each["choices"]
            ]
            found.append(
                [
                    "".join(delta.get(name, "") for delta in deltas)
                    for name in ("reasoning_content", "content")
                ]
            )

    assert found == [
        ["", "Hm.\n</think>\n\nYes & no."],
        ["Hm.", "Yes & no."],
        ["", "Hm.\n</think>\n\nYes & no."],
    ]
