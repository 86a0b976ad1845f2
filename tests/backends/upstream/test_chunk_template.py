"""Chunks that are read by a template mean what they mean without one."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import UpstreamError
from backends.remote import RemoteDelta
from backends.upstream.chunk_template import CHANCES, LONGEST, ChunkTemplate
from backends.upstream.reading import AnswerReader

MARK = "the mark"
TEXTS = st.text(max_size=8) | st.sampled_from(['"', "\\", "\0hole", "</think>", "é😀", "\u2028"])
# What may stand where a chunk's text stands; some of it is no JSON, or more than a text.
LITERALS = (
    b'"a"',
    b'""',
    b' "a" ',
    b'"\\u00e9\\n\\/"',
    b'"\\ud800"',
    b'"\xff"',
    b'"a\nb"',
    b'"a',
    b'a"',
    b"null",
    b"1",
    b"[]",
    b'[{"type":"text","text":"a"}]',
    b'"a","content":"b"',
    b'"a","reasoning":"b"',
    b'"a","tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]',
    b'"a"}},{"index":0,"delta":{"content":"b"',
    b'"a"}}],"error":{"message":"no"},"choices":[{"delta":{"content":"b"',
    b"",
)
Style = Callable[[Any], bytes]
STYLES: tuple[Style, ...] = (
    msgspec.json.encode,
    lambda said: json.dumps(said).encode(),
    lambda said: json.dumps(said, ensure_ascii=False, sort_keys=True).encode(),
    lambda said: json.dumps(said, indent=1).encode(),
)


def chunk(name: str, text: Any, *, index: int = 0, **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None}
    choice |= {"text": text} if name == "text" else {"delta": {"role": "assistant", name: text}}
    return {"id": "x", "choices": [choice], "created": 1, **more}


OTHERS = st.sampled_from(
    [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3}},
        chunk("content", "a", provider="A"),
        chunk("content", "a", provider="B"),
        chunk("content", "a", citations=["c"]),
        chunk("content", "a", usage={"completion_tokens": 2}),
        chunk("content", "a", created=2),
        chunk("content", "a", index=1),
        chunk("content", "a", index=7),
        {"error": {"message": "no"}},
        {"choices": [{"index": 0, "delta": {"content": "a", "reasoning": "b"}}]},
    ]
)
NAMES = st.sampled_from(["content", "text", "reasoning_content", "reasoning"])


def outcome(payloads: Sequence[bytes]) -> list[Any]:
    """Events, and the error that ends them."""
    reader = AnswerReader(2)
    said: list[Any] = []
    try:
        for payload in payloads:
            said += reader.read(payload)
    except UpstreamError as error:
        said.append((type(error), error.code))
    return said


def unlike(payloads: Sequence[bytes]) -> list[bytes]:
    """The same with a number before all else, so that no template fits."""
    return [b'{"_%d":0,%b' % (number, one[1:]) for number, one in enumerate(payloads)]


@given(
    name=NAMES,
    style=st.sampled_from(STYLES),
    said=st.lists(TEXTS | OTHERS | st.sampled_from(LITERALS), max_size=12),
)
def test_a_template_changes_nothing(name: str, style: Style, said: list[Any]) -> None:
    def written(one: Any) -> bytes:
        if isinstance(one, bytes):
            return style(chunk(name, MARK)).replace(style(MARK), one)
        return style(chunk(name, one) if isinstance(one, str) else one)

    payloads = list(map(written, said))

    assert outcome(payloads) == outcome(unlike(payloads))


@pytest.mark.parametrize("literal", LITERALS)
def test_nothing_but_a_text_fits_into_one(literal: bytes) -> None:
    whole = msgspec.json.encode(chunk("content", MARK))
    payloads = [whole, whole, whole.replace(b'"%b"' % MARK.encode(), literal)]

    assert outcome(payloads) == outcome(unlike(payloads))


def learnt(template: ChunkTemplate, *chunks: dict[str, Any]) -> None:
    for one in map(msgspec.json.encode, chunks):
        if template.read(one) is None:
            template.learn(one, AnswerReader(1).read(one), AnswerReader(1).read)


def test_all_but_the_first_are_read_by_it() -> None:
    template = ChunkTemplate()
    learnt(template, chunk("content", "a", system_fingerprint="content"))
    payload = msgspec.json.encode(chunk("content", "b", system_fingerprint="content"))

    assert template.read(payload) == RemoteDelta(content="b")


def test_a_server_that_writes_the_time_into_its_chunks_is_learnt_again_and_again() -> None:
    template = ChunkTemplate()
    for second in range(3 * CHANCES):
        payload = chunk("content", "b", created=second)
        learnt(template, payload, payload)
        assert template.read(msgspec.json.encode(payload)) == RemoteDelta(content="b")


def test_a_server_whose_chunks_are_all_unlike_is_learnt_from_a_few_times() -> None:
    template = ChunkTemplate()
    learnt(template, *(chunk("content", "b", padding="x" * size) for size in range(CHANCES)))
    payload = chunk("content", "b", padding="y")
    learnt(template, payload)

    assert template.read(msgspec.json.encode(payload)) is None


def test_long_chunks_are_not_learnt_from() -> None:
    template = ChunkTemplate()
    payload = chunk("content", "b" * LONGEST)
    learnt(template, payload)

    assert template.read(msgspec.json.encode(payload)) is None
