"""What another server may do wrong, on real sockets: an honest error each time, in bounded time and
memory, without addresses and keys.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.contract.conversation import Message, TextPart
from backends.contract.errors import LoadFailed, UpstreamError
from backends.contract.remote import (
    Caller,
    RemoteCall,
    RemoteChat,
    RemoteDelta,
    RemoteEvent,
    RemoteText,
    RemoteUsage,
)
from backends.places.upstream.upstream import Upstream, UpstreamModel, client_of
from tests.backends.places.upstream import far as other
from tests.backends.places.upstream.far import (
    Asked,
    Far,
    Says,
    chunk,
    config,
    event,
    far,
    head,
    in_turn,
    piece,
    ports,
    silent,
    streams,
    text,
    then_silent,
    with_status,
)
from tests.hang import HANG

pytestmark = pytest.mark.anyio

HELLO = RemoteChat(messages=(Message(role="user", parts=(TextPart("Hello!"),)),))
MODEL = "theirs"


_MESSAGE = {"role": "assistant", "content": "Whole."}
WHOLE = msgspec.json.encode(
    {"choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}]}
)


@asynccontextmanager
async def asking(*fars: Far, **options: Any) -> AsyncIterator[UpstreamModel]:
    async with connected(*fars, **options) as upstream:
        yield UpstreamModel(lambda: upstream, MODEL)


@asynccontextmanager
async def connected(*fars: Far, **options: Any) -> AsyncIterator[Upstream]:
    settings = config(*fars, **options)
    async with client_of(settings) as client:
        yield Upstream(settings, client)


async def answer(model: UpstreamModel, request: RemoteChat = HELLO) -> list[RemoteEvent]:
    async with asyncio.timeout(HANG), model.chat(request) as batches:
        return [one async for batch in batches for one in batch]


async def failure(says: Says, **options: Any) -> UpstreamError:
    async with far(says) as one, asking(one, **options) as model:
        with pytest.raises(UpstreamError) as caught:
            await answer(model)
        assert not any(port in str(caught.value) for port in ports([one]))
        return caught.value


def content(events: Sequence[RemoteEvent]) -> str:
    return "".join(one.content for one in events if isinstance(one, RemoteDelta))


# ----------------------------------------------------------------------------------- what goes well


async def test_an_answer_comes_chunk_by_chunk() -> None:
    async with far(
        streams(*text("One", " two"), {"choices": [], "usage": {"prompt_tokens": 3}})
    ) as one:
        async with asking(one) as model:
            events = await answer(model)

    assert events == [
        RemoteDelta(content="One"),
        RemoteDelta(content=" two"),
        RemoteDelta(finished="stop"),
        RemoteUsage(prompt_tokens=3),
    ]
    assert one.asked[0].path == "/v1/chat/completions"
    assert one.asked[0].json["model"] == "theirs"
    assert one.asked[0].json["stream"] is True


async def test_a_chunk_is_handed_on_before_the_next_one_comes() -> None:
    more = asyncio.Event()

    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, other.STREAM, "transfer-encoding: chunked"))
        writer.write(piece(event(chunk({"content": "first"}))))
        await writer.drain()
        await more.wait()
        writer.write(piece(event(chunk({}, finish="stop"))) + piece(other.DONE) + b"0\r\n\r\n")

    async with far(says) as one, asking(one) as model, asyncio.timeout(HANG):
        async with model.chat(HELLO) as batches:
            assert content(await anext(batches)) == "first"
            more.set()
            assert [one async for batch in batches for one in batch] == [
                RemoteDelta(finished="stop")
            ]


async def test_a_connection_is_used_again() -> None:
    connections = set[Any]()

    async def says(asked: Asked, writer: asyncio.StreamWriter) -> None:
        connections.add(writer.get_extra_info("peername"))
        await streams(*text("x"))(asked, writer)

    async with far(says) as one, asking(one) as model:
        for _ in range(5):
            await answer(model)

    assert len(connections) == 1


async def test_a_server_that_cannot_stream_is_understood_all_the_same() -> None:
    message = {"role": "assistant", "content": "Whole.", "reasoning": "Hm."}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    async with far(with_status(200, msgspec.json.encode(body))) as one:
        async with asking(one) as model:
            events = await answer(model)

    assert events == [RemoteDelta(reasoning="Hm.", content="Whole.", finished="stop")]


async def test_a_stream_without_done_is_whole_when_every_choice_has_ended() -> None:
    async with far(streams(*text("x"), done=False)) as one, asking(one) as model:
        assert content(await answer(model)) == "x"


async def test_the_key_and_the_request_id_go_along() -> None:
    async with far(streams(*text("x"))) as one:
        async with asking(one, key="sk-ours", headers={"x-team": "blue"}) as model:
            caller = Caller(request_id="id-1", key="sk-theirs")
            await answer(model, RemoteChat(messages=HELLO.messages, caller=caller))

    headers = one.asked[0].headers
    assert headers["authorization"] == "Bearer sk-ours"
    assert headers["x-request-id"] == "id-1"
    assert headers["x-team"] == "blue"


async def test_a_cookie_for_one_request_is_not_sent_with_another() -> None:
    says = with_status(200, WHOLE, "set-cookie: session=first; Path=/")
    async with far(says) as one, asking(one) as model:
        for _ in range(2):
            await answer(model)

    assert "cookie" not in one.asked[1].headers


async def test_the_clients_key_is_handed_on_where_it_is_configured() -> None:
    async with far(streams(*text("x"))) as one, asking(one, key="sk-ours", pass_key=True) as model:
        caller = Caller(key="sk-theirs")
        await answer(model, RemoteChat(messages=HELLO.messages, caller=caller))

    assert one.asked[0].headers["authorization"] == "Bearer sk-theirs"


async def test_who_leaves_closes_the_connection_at_once() -> None:
    async with far(then_silent(chunk({"content": "x"}))) as one, asking(one) as model:
        async with asyncio.timeout(HANG):
            async with model.chat(HELLO) as batches:
                await anext(batches)
            await one.left.wait()


async def test_a_reader_who_takes_nothing_stops_the_other_server() -> None:
    """Nothing is read ahead: what the sockets hold is all that was sent."""
    sent = 0

    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(head(200, other.STREAM, "transfer-encoding: chunked"))
        while True:
            writer.write(piece(event(chunk({"content": "x" * 100_000}))))
            await writer.drain()
            sent += 100_000

    async with far(says) as one, asking(one) as model, asyncio.timeout(HANG):
        async with model.chat(HELLO) as batches:
            await anext(batches)
            before = -1
            while sent != before:  # until it stands still
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 32 << 20


# --------------------------------------------------------------------------------------- time-outs


async def test_silence_before_the_answer_is_an_error() -> None:
    error = await failure(silent, first_byte_timeout=0.1)

    assert (error.status, error.code) == (504, "upstream_timeout")


async def test_silence_inside_an_answer_is_an_error() -> None:
    error = await failure(then_silent(chunk({"content": "x"})), stall_timeout=0.1)

    assert str(error) == "The upstream didn't go on within 0.1 s."


async def test_a_slow_drip_ends_with_the_time_for_the_whole() -> None:
    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, other.STREAM, "transfer-encoding: chunked"))
        while True:
            writer.write(piece(event(chunk({"content": "x"}))))
            await asyncio.sleep(0.02)

    error = await failure(says, total_timeout=0.3)

    assert str(error) == "The upstream didn't end within 0.3 s."


async def test_bytes_that_never_become_an_event_are_no_answer() -> None:
    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, other.STREAM, "transfer-encoding: chunked"))
        while True:
            writer.write(piece(b": still here\n"))
            await asyncio.sleep(0.01)

    error = await failure(says, first_byte_timeout=0.2)

    assert error.code == "upstream_timeout"


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with far(silent) as one:
        pass
    async with connected(one) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await answer(UpstreamModel(lambda: upstream, MODEL))
        assert caught.value.code == "upstream_unreachable"
        with pytest.raises(LoadFailed, match="can't be reached: it refuses connections"):
            await upstream.lists.alive()


# ----------------------------------------------------------------------------------- broken answers


CUT = [chunk({"content": "x"})]

FAULTS: list[tuple[Says, dict[str, Any], str]] = [
    (streams(*CUT, done=False, ends=False), {}, "upstream_cut"),
    (streams(*CUT, done=False), {}, "upstream_cut"),
    (streams(done=False), {}, "upstream_cut"),
    (streams(), {}, "upstream_broken"),
    (streams(b"data: {nope\n\n"), {}, "upstream_broken"),
    (streams(b'data: {"choices": 3}\n\n'), {}, "upstream_broken"),
    (streams(b"data: " + b"[" * 100_000 + b"\n\n"), {}, "upstream_broken"),
    (streams(chunk({"content": "x"}, index=7)), {}, "upstream_broken"),
    (streams(chunk({"content": "x"}, finish="abort")), {}, "upstream_broken"),
    (streams(b"data: \xff\xfe\n\n"), {}, "upstream_broken"),
    (with_status(200, b"<html>", kind="text/html"), {}, "upstream_broken"),
    (with_status(200, b"{}"), {}, "upstream_cut"),
    (with_status(200, b"nope"), {}, "upstream_broken"),
    (streams(b"data: " + b"x" * 10_000_000), {}, "upstream_too_large"),
    (streams(*text("x" * 5_000)), {"max_total": 4_000}, "upstream_too_large"),
    (with_status(200, b" " * 5_000), {"max_body": 4_000}, "upstream_too_large"),
    (
        with_status(200, gzip.compress(b" " * 50_000_000), "content-encoding: gzip"),
        {},
        "upstream_broken",
    ),
    (with_status(307, b"", "location: http://elsewhere.example/"), {}, "upstream_redirects"),
]


@pytest.mark.parametrize(("says", "options", "code"), FAULTS)
async def test_what_makes_no_sense_is_an_error(
    says: Says, options: dict[str, Any], code: str
) -> None:
    error = await failure(says, **options)

    assert (error.status, error.code) == (502, code)


async def test_what_came_before_a_cut_is_handed_on() -> None:
    async with far(streams(*CUT, done=False, ends=False)) as one, asking(one) as model:
        got: list[RemoteEvent] = []
        async with model.chat(HELLO) as batches:
            got += await anext(batches)
            with pytest.raises(UpstreamError, match="cut the answer off"):
                await anext(batches)

    assert content(got) == "x"


async def test_a_redirect_is_not_followed() -> None:
    async with far(streams(*text("stolen"))) as thief:
        error = await failure(with_status(308, b"", f"location: {thief.url}"), key="sk-ours")

    assert error.code == "upstream_redirects"
    assert thief.asked == []


NAMED = b"event: error\ndata: %b\n\n"
ERRORS: list[tuple[bytes, int, str]] = [
    (b'data: {"error": {"message": "Too hot.", "code": 503}}\n\n', 503, "Too hot."),
    (b'data: {"object": "error", "message": "Too hot.", "code": 400}\n\n', 400, "Too hot."),
    (b'data: {"detail": "Too hot."}\n\n', 502, "Too hot."),
    (b'data: {"message": "Too hot.", "type": "x"}\n\n', 502, "Too hot."),
    (NAMED % b'{"error": {"message": "Too hot."}}', 502, "Too hot."),
    (NAMED % b'{"message": "Too hot.", "code": 429}', 429, "Too hot."),
    (NAMED % b"Too hot.", 502, "Too hot."),
    (NAMED % b'{"reason": "Too hot."}', 502, '{"reason": "Too hot."}'),
]


@pytest.mark.parametrize(("error", "status", "words"), ERRORS)
async def test_an_error_inside_a_stream_is_no_end_and_loses_nothing_before_it(
    error: bytes, status: int, words: str
) -> None:
    """Also where all came in one piece."""
    said = event(chunk({"content": "x"})) + error
    async with far(streams(said)) as one, asking(one) as model:
        got: list[RemoteEvent] = []
        async with model.chat(HELLO) as batches:
            got += await anext(batches)
            with pytest.raises(UpstreamError) as caught:
                await anext(batches)

    assert content(got) == "x"
    assert (caught.value.status, str(caught.value)) == (status, words)


@pytest.mark.parametrize("not_yet", ["", "null"])
async def test_servers_that_spell_no_end_as_text_are_read_to_the_end(not_yet: str) -> None:
    words = [chunk({"content": word}, finish=not_yet) for word in ("One", " two", " three")]
    async with far(streams(*words, chunk({}, finish="length"))) as one, asking(one) as model:
        events = await answer(model)
    assert content(events) == "One two three"
    assert events[-1] == RemoteDelta(finished="length")

    body = {"choices": [{"index": 0, "message": _MESSAGE, "finish_reason": not_yet}]}
    async with far(with_status(200, msgspec.json.encode(body))) as one, asking(one) as model:
        assert await answer(model) == [RemoteDelta(content="Whole.", finished="stop")]


STRANGE: list[dict[str, Any]] = [
    chunk({"content": "x"}, logprobs="none"),
    chunk({"content": "x"}, logprobs={"content": [{"token": 3}]}),
    {**chunk({"content": "x"}), "usage": "none yet"},
    {**chunk({"content": "x"}), "usage": {"prompt_tokens": "many"}},
    {**chunk({"content": "x"}), "id": 7, "object": 3, "created": "now"},
]


@pytest.mark.parametrize("strange", STRANGE)
async def test_counts_and_probabilities_that_make_no_sense_cost_no_answer(
    strange: dict[str, Any],
) -> None:
    async with far(streams(strange, chunk({}, finish="stop"))) as one, asking(one) as model:
        assert content(await answer(model)) == "x"


async def test_numbers_that_json_does_not_have_are_no_numbers() -> None:
    said = b"""data: {"choices": [{"index": 0, "delta": {"content": "NaN \\" Infinity"}, "logprobs":
 {"content": [{"token": "x", "logprob": NaN}, {"token": "y", "logprob": -Infinity}]}}]}\n\n"""
    async with far(streams(said.replace(b"\n {", b" {"), chunk({}, finish="stop"))) as one:
        async with asking(one) as model:
            events = await answer(model)
    (first, _) = (found for found in events if isinstance(found, RemoteDelta))
    assert first.content == 'NaN " Infinity'
    assert [token.chosen.text for token in first.logprobs] == [b"x", b"y"]


async def test_a_call_whose_id_is_a_number_is_a_call() -> None:
    call = {"index": 0, "id": 12, "function": {"name": "a", "arguments": "{}"}}
    async with far(streams(chunk({"tool_calls": [call]}), chunk({}, finish="tool_calls"))) as one:
        async with asking(one) as model:
            events = await answer(model)
    assert events[0] == RemoteDelta(calls=(RemoteCall(0, "12", "a", "{}"),))


# ---------------------------------------------------------------------------------- missing choices

USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def by_choice(events: Sequence[RemoteEvent]) -> dict[int, str]:
    deltas = [one for one in events if isinstance(one, RemoteDelta)]
    return {
        index: content([one for one in deltas if one.choice == index])
        for index in sorted({one.choice for one in deltas})
    }


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_server_that_ignores_n_is_asked_for_the_rest(streamed: bool) -> None:
    async def says(asked: Asked, writer: asyncio.StreamWriter) -> None:
        word = f"seed {asked.json.get('seed')}"
        if streamed:
            reply = streams(*text(word), USAGE, done=False)
        else:
            message = {"role": "assistant", "content": word}
            body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            reply = with_status(200, msgspec.json.encode(body | {"usage": USAGE["usage"]}))
        await reply(asked, writer)

    request = msgspec.structs.replace(HELLO, n=3, parameters={"seed": 5})
    async with far(says) as one, asking(one) as model:
        events = await answer(model, request)

    assert by_choice(events) == {0: "seed 5", 1: "seed 6", 2: "seed 7"}
    assert [asked.json.get("n") for asked in one.asked] == [3, None, None]
    assert events[-1] == RemoteUsage(prompt_tokens=3, completion_tokens=6)


async def test_a_choice_of_several_prompts_that_is_missing_has_its_own_prompt() -> None:
    async def says(asked: Asked, writer: asyncio.StreamWriter) -> None:
        prompt = asked.json["prompt"]
        words = [prompt] if isinstance(prompt, str) else prompt[:1]
        said = [
            {"choices": [{"index": index, "text": word, "finish_reason": "stop"}]}
            for index, word in enumerate(words)
        ]
        await streams(*said)(asked, writer)

    request = RemoteText(prompts=("a", "b"))
    async with far(says) as one, asking(one) as model, asyncio.timeout(HANG):
        async with model.complete(request) as batches:
            events = [one async for batch in batches for one in batch]

    assert by_choice(events) == {0: "a", 1: "b"}


async def test_who_leaves_while_a_missing_choice_is_written_closes_its_request() -> None:
    async with far(in_turn(streams(*text("One")), then_silent(*text("two")[:2]))) as one:
        async with asking(one) as model, asyncio.timeout(HANG):
            async with model.chat(msgspec.structs.replace(HELLO, n=2)) as batches:
                while len(one.asked) < 2:
                    await anext(batches)
            await one.left.wait()


# ------------------------------------------------------------------------------------------- errors


async def test_an_error_keeps_its_status_type_and_message() -> None:
    body = {"error": {"message": "n: too many", "type": "bad", "param": "n", "code": "n_max"}}
    error = await failure(with_status(422, msgspec.json.encode(body)))

    assert (error.status, str(error), error.type, error.param, error.code) == (
        (422, "n: too many", "bad", "n", "n_max")
    )


async def test_too_many_requests_say_when_to_come_again() -> None:
    body = b'{"error": {"message": "slow down", "type": "rate_limit_error"}}'
    error = await failure(with_status(429, body, "retry-after: 7"))

    assert (error.status, error.retry_after, error.type) == (429, 7.0, "rate_limit_error")


async def test_a_refused_key_is_not_the_clients_fault() -> None:
    body = b'{"error": {"message": "Incorrect API key provided: sk-our-secret."}}'
    error = await failure(with_status(401, body), key="sk-our-secret")

    assert (error.status, error.code) == (502, "upstream_refused_key")
    assert "our-secret" not in str(error)


async def test_an_error_inside_the_stream_is_an_error() -> None:
    body = {"error": {"message": "out of memory at http://10.1.2.3:8000", "code": 503}}
    error = await failure(streams(*CUT, body))

    assert (error.status, str(error)) == (503, "out of memory at …")


# ----------------------------------------------------------------------------------------- replicas


async def test_another_replica_is_asked_while_nothing_was_handed_on() -> None:
    broken = in_turn(
        with_status(503, b"{}"),
        streams(done=False, ends=False),
        streams(b"data: {nope\n\n"),
        with_status(429, b"{}"),
        with_status(500, b"{}"),
    )
    async with far(broken) as bad, far(streams(*text("good"))) as good:
        async with asking(bad, good, failures=100) as model:
            for number in range(10):  # as many conversations: one would stay where it is
                message = Message(role="user", parts=(TextPart(str(number)),))
                assert content(await answer(model, RemoteChat(messages=(message,)))) == "good"

    assert len(bad.asked) == 1, "who fails at once is not the least busy"


@pytest.mark.parametrize("status", [403, 404, 408, 429, 500, 502, 503, 504])
async def test_a_replica_that_refuses_at_once_costs_no_request(status: int) -> None:
    refusing = with_status(status, b'{"error": {"message": "no", "code": "model_not_found"}}')
    async with far(refusing) as bad, far(streams(*text("good"))) as good:
        async with asking(bad, good, failures=100) as model:
            for _ in range(20):
                assert content(await answer(model)) == "good"
    assert len(bad.asked) <= 10


async def test_one_caller_s_odd_wishes_open_no_circuit_for_another() -> None:
    def said(asked: Asked) -> Says:
        return with_status(502, b"{}") if "odd" in asked.json else streams(*text("fine"))

    async def says(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await said(asked)(asked, writer)

    odd = msgspec.structs.replace(HELLO, parameters={"odd": 1}, caller=Caller(key="sk-odd"))
    plain = msgspec.structs.replace(HELLO, caller=Caller(key="sk-plain"))
    async with far(says) as one, asking(one, failures=2) as model:
        assert content(await answer(model, plain)) == "fine"
        for _ in range(5):
            with pytest.raises(UpstreamError):
                await answer(model, odd)
        assert content(await answer(model, plain)) == "fine"


async def test_a_server_on_trial_is_back_when_its_answer_begins() -> None:
    async with far(with_status(503, b"{}")) as one, connected(one, failures=1) as upstream:
        model = UpstreamModel(lambda: upstream, MODEL)
        with pytest.raises(UpstreamError):
            await answer(model)
        one.says = then_silent(*text("long")[:2])
        await upstream.lists.alive()
        async with asyncio.timeout(HANG), model.chat(HELLO) as batches:
            assert content(await anext(batches)) == "long"
            one.says = streams(*text("second"))
            assert content(await answer(model)) == "second", "while the first is still written"


async def test_a_refusal_that_is_the_requests_is_asked_of_nobody_else() -> None:
    async with far(with_status(400, b"{}")) as one, far(with_status(400, b"{}")) as two:
        async with asking(one, two) as model:
            with pytest.raises(UpstreamError):
                await answer(model)

    assert len(one.asked) + len(two.asked) == 1


async def test_an_answer_that_has_begun_is_never_begun_again() -> None:
    async with far(streams(*CUT, done=False, ends=False)) as one, far(streams(*text("y"))) as two:
        async with asking(one, two) as model:
            with pytest.raises(UpstreamError):
                await answer(model)

    assert two.asked == []


async def test_where_nobody_answers_the_last_word_is_reported() -> None:
    said: list[tuple[int, float | None]] = []

    def noted(status: int, retry_after: float | None, says: Says) -> Says:
        async def says_so(asked: Asked, writer: asyncio.StreamWriter) -> None:
            said.append((status, retry_after))
            await says(asked, writer)

        return says_so

    busy = with_status(429, b"{}", "retry-after: 3")
    async with (
        far(noted(503, None, with_status(503, b"{}"))) as one,
        far(noted(429, 3.0, busy)) as two,
    ):
        async with asking(one, two) as model:
            with pytest.raises(UpstreamError) as caught:
                await answer(model)

    assert len(said) == 2
    assert (caught.value.status, caught.value.retry_after) == said[-1]


async def test_a_server_that_fails_again_and_again_rests_until_a_probe() -> None:
    async with far(with_status(503, b"{}")) as one, connected(one, failures=2) as upstream:
        model = UpstreamModel(lambda: upstream, MODEL)
        for _ in range(2):
            with pytest.raises(UpstreamError):
                await answer(model)
        with pytest.raises(UpstreamError) as caught:
            await answer(model)
        assert (caught.value.code, caught.value.retry_after) == ("upstream_unavailable", 5.0)
        assert len(one.asked) == 2

        one.says = streams(*text("back"))
        await upstream.lists.alive()  # which is what a probe does
        assert content(await answer(model)) == "back"


async def test_the_second_turn_returns_to_the_replica_of_the_first_without_a_system_prompt() -> (
    None
):
    def turns(count: int, subject: int) -> RemoteChat:
        said = [f"About {subject}.", "Well.", "And?"][:count]
        roles: list[Any] = ["user", "assistant", "user"]
        messages = (
            Message(role=role, parts=(TextPart(one),))
            for role, one in zip(roles, said, strict=False)
        )
        return RemoteChat(messages=tuple(messages))

    async with far(streams(*text("a"))) as one, far(streams(*text("b"))) as two:
        async with asking(one, two) as model:
            first = [content(await answer(model, turns(1, k))) for k in range(4)]
            second = [content(await answer(model, turns(3, k))) for k in reversed(range(4))]
    assert second[::-1] == first
    assert {*first} == {"a", "b"}


# ------------------------------------------------------------------------- however its bytes arrive


def in_segments(
    pieces: Sequence[bytes], cuts: Sequence[int] = (), *, apart: bool = True, ends: bool = True
) -> Says:
    """The pieces of a stream's body, and what is cut of them, each of which is read before the next
    one is sent. `apart`: each piece is cut from the next.
    """

    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        parts = [head(200, other.STREAM, "transfer-encoding: chunked"), *pieces]
        parts += [b"0\r\n\r\n"] if ends else []
        whole = b"".join(parts)
        places = {0, len(whole), *(cut % len(whole) for cut in cuts)}
        if apart:
            places |= set(accumulate(map(len, parts)))
        for begin, end in pairwise(sorted(places)):
            writer.write(whole[begin:end])
            for _ in range(3):
                await asyncio.sleep(0)
        if not ends:
            writer.close()

    return says


SAID = st.lists(
    st.sampled_from(
        [
            *map(event, text("One", " é😀", "</think>")),
            event(chunk({"content": "a"})),
            event(chunk({"content": "b"})).replace(b"\n", b"\r\n"),
            event(chunk({"reasoning_content": "Hm."})),
            event(
                chunk({"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]})
            ),
            event({"choices": [], "usage": {"prompt_tokens": 3}}),
            event({"error": {"message": "no"}}),
            b"event: error\ndata: no\n\n",
            b": a comment\n\n",
            b"data: nonsense\n\n",
            b'data: {"choices":\ndata: []}\n\n',
            b"data:\n\nid: 1\n",
            other.DONE,
        ]
    ),
    max_size=12,
)


@given(
    said=SAID,
    cuts=st.lists(st.integers(0, 4_000), max_size=8),
    apart=st.booleans(),
    ends=st.booleans(),
)
async def test_however_an_answer_is_cut_it_means_the_same(
    said: list[bytes], cuts: list[int], apart: bool, ends: bool
) -> None:
    pieces = [piece(one) for one in (event(chunk({"content": "begins"})), *said)]
    ways: list[tuple[list[RemoteEvent], str | None]] = []
    for says in (
        in_segments(pieces, apart=False, ends=ends),
        in_segments(pieces, cuts, apart=apart, ends=ends),
    ):
        async with far(says) as one, asking(one) as model:
            events: list[RemoteEvent] = []
            error = None
            try:
                async with asyncio.timeout(HANG), model.chat(HELLO) as batches:
                    async for batch in batches:
                        events += batch
            except UpstreamError as failure:
                error = str(failure)
            ways.append((events, error))

    assert ways[0] == ways[1]


async def test_silence_behind_some_of_an_answer_is_an_error() -> None:
    more = asyncio.Event()

    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, other.STREAM, "transfer-encoding: chunked"))
        writer.write(piece(event(chunk({"content": "first"}))))
        await more.wait()
        writer.write(piece(event(chunk({"content": "second"}))))
        await asyncio.Event().wait()

    async with far(says) as one, asking(one, stall_timeout=2.0) as model:
        async with asyncio.timeout(HANG), model.chat(HELLO) as batches:
            assert await anext(batches) == [RemoteDelta(content="first")]
            more.set()
            assert await anext(batches) == [RemoteDelta(content="second")]
            with pytest.raises(UpstreamError, match="didn't go on"):
                await anext(batches)


async def test_what_comes_slowly_is_no_silence() -> None:
    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, other.STREAM, "transfer-encoding: chunked"))
        for one in text(*"abcdefgh"):
            writer.write(piece(event(one)))
            await asyncio.sleep(0.25)
        writer.write(piece(other.DONE) + b"0\r\n\r\n")

    async with far(says) as one, asking(one, stall_timeout=1.5) as model:
        assert content(await answer(model)) == "abcdefgh"


async def test_who_leaves_in_the_middle_closes_the_connection() -> None:
    came = asyncio.Event()

    async def goes_on(asked: Asked, stream: asyncio.StreamWriter) -> None:
        stream.write(head(200, other.STREAM, "transfer-encoding: chunked"))
        while True:
            stream.write(piece(event(chunk({"content": "x"}))))
            await asyncio.sleep(0.01)

    async def reads(model: UpstreamModel) -> None:
        async with model.chat(HELLO) as batches:
            async for _ in batches:
                came.set()

    async with far(goes_on) as one, asking(one) as model, asyncio.timeout(HANG):
        task = asyncio.ensure_future(reads(model))
        await came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await one.left.wait()
