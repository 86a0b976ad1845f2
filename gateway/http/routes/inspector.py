"""The route of the inspector: one request as it went through.

docs/console-api.md has the fields.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import msgspec
from litestar import get
from litestar.types import ASGIApp
from msgspec.structs import asdict, replace

from backends.contract.protocol import SpecialTokens
from backends.contract.samplers import Sampling
from config.changes import MASK
from config.values import alike
from gateway.answers.recording import (
    Part,
    PartKind,
    RecordedPrompt,
    Span,
    Split,
    Written,
    spans,
)
from gateway.http.auth import AnyRequest
from gateway.http.request_record import RequestRecord
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import Plain
from gateway.http.standing import RequestStanding
from gateway.keys.access import Access
from gateway.terms.errors import GatewayError
from gateway.terms.request import Unapplied
from gateway.terms.tasks import Wanted

# Names under which clients send what is nobody else's, and objects all of whose values are such.
_SECRET = re.compile(
    r'("(?:authorization|[\w-]*api[_-]?key|password|secret|client_secret|access_token)"\s*:\s*)'
    r'"(?:[^"\\]|\\.)*"',
    re.IGNORECASE,
)
_HEADERS = re.compile(r'"headers"\s*:\s*\{[^{}]*\}')
_VALUE = re.compile(r'(:\s*)"(?:[^"\\]|\\.)*"')

api = Routes()


class StageWire(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """A part of a request's time, in seconds since it began."""

    name: str  # queue, load, prepare, slot, prompt, answer
    begin: float
    end: float


class PromptWire(RecordedPrompt, frozen=True, kw_only=True):
    """One prompt as the engine read it."""

    pieces: Sequence[str] | None  # the text of each token; None while the model is not loaded


class PieceWire(msgspec.Struct, frozen=True, array_like=True):
    """Some text of the engine's, and the tokens that it is of."""

    text: str
    tokens: Sequence[int]


class PartWire(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the answer as the client got it."""

    kind: PartKind
    text: str  # of a call: its arguments
    name: str | None
    id: str | None
    whole: bool


class AnswerWire(msgspec.Struct, frozen=True, kw_only=True):
    """One choice: what the engine wrote beside what it became."""

    prompt: int  # index of the prompt that it answers
    raw: str | None  # None: another server split it
    pieces: Sequence[PieceWire]
    spans: Sequence[Span]  # of the raw text, in UTF-16 units
    parts: Sequence[PartWire]
    finish: str | None  # None: it isn't over
    cause: str | None  # why the engine ended
    stop: str | None  # the stop string that was found
    end_token: int | None
    warning: str | None  # what was wrong with the output
    cut: bool  # there was more than is kept


class ErrorWire(msgspec.Struct, frozen=True):
    """What the request failed with."""

    message: str
    code: str | None


class InspectionWire(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it went through."""

    request: RequestStanding
    method: str
    path: str
    body: str  # secrets masked
    body_bytes: int
    body_cut: bool
    stages: Sequence[StageWire]
    backend: str | None
    split: Split | None
    sampling: dict[str, Any]  # what differs from doing nothing
    max_tokens: int | None
    unapplied: Sequence[Unapplied]
    control: Sequence[str]  # texts of the model's control tokens; empty while it is not loaded
    prompts: Sequence[PromptWire]
    answers: Sequence[AnswerWire]
    error: ErrorWire | None


@api(get, "/v1/admin/requests/{number:str}", access="user", gives=(InspectionWire,))
async def inspected(request: AnyRequest, services: Services, number: str) -> ASGIApp:
    """Get what is kept of one request, by its number or its x-request-id: its body, prompt, raw
    output and answer.
    """
    return Plain(await _written(services, request.auth, number))


async def _written(services: Services, access: Access, name: str) -> bytes:
    """The whole, encoded: it may be long. Raises NotFound."""
    record = services.books.inspector.find(name, access)
    standing, recording = record.standing(), record.recording
    assert recording is not None, "only what is recorded is found"
    seen = [choice.seen() for choice in recording.choices]
    prompts = tuple(recording.prompts)
    error = record.error and services.redacted(record.error, access)
    pieces, special = await _spelled(services, access, standing.model, prompts)
    spelled = [None] * len(prompts) if pieces is None else map(texts_of, pieces)

    def write(_wanted: Wanted) -> bytes:
        terms = recording.terms
        wire = alike(InspectionWire, terms)(
            request=standing,
            method=record.method,
            path=record.path,
            body=masked_body(record.body.decode(errors="replace")),
            body_bytes=record.body_bytes,
            body_cut=record.body_bytes > len(record.body),
            stages=stages(record, standing),
            backend=terms.backend or None,
            sampling=_changed(terms.sampling) if terms.sampling else {},
            control=tuple(special.control) if special else (),
            prompts=[
                alike(PromptWire, prompt)(pieces=texts)
                for prompt, texts in zip(prompts, spelled, strict=True)
            ],
            answers=[_answer(written) for written in seen],
            error=ErrorWire(error.message, error.code) if error else None,
        )
        return msgspec.json.encode(wire)

    return await services.bodies.run(write)


async def _spelled(
    services: Services, access: Access, model: str, prompts: Sequence[RecordedPrompt]
) -> tuple[Sequence[Sequence[bytes]] | None, SpecialTokens | None]:
    """The bytes of the prompts' tokens, and the model's special ones. None: looking at a request
    loads no model.
    """
    reading = replace(access, autoload=False)
    with suppress(GatewayError):
        info = services.status(model, access).info
        if info is not None:
            pieces = [
                await services.tokenizers.pieces(model, prompt.tokens, reading)
                for prompt in prompts
            ]
            return pieces, info.special
    return None, None


def texts_of(pieces: Sequence[bytes]) -> list[str]:
    """Texts that together are all of it: a character's bytes stand with the last of its tokens."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = [decoder.decode(piece) for piece in pieces]
    if found:
        found[-1] += decoder.decode(b"", final=True)
    return found


def masked_body(text: str) -> str:
    """A body without the secrets that clients may send in it."""
    text = _SECRET.sub(rf'\1"{MASK}"', text)
    return _HEADERS.sub(lambda found: _VALUE.sub(rf'\1"{MASK}"', found[0]), text)


def stages(record: RequestRecord, standing: RequestStanding) -> list[StageWire]:
    """The parts of its time, one behind the other, as far as it has come."""
    usage = record.report.usage if record.report is not None else None
    now, first = standing.seconds, standing.ttft
    queued = standing.queued_seconds
    ends = [("queue", queued), ("load", queued + standing.load_seconds)]
    if record.answered is not None:
        if usage is None or first is None:
            read = record.answered
            ends.append(("prepare", read))
        else:  # backwards from the first token: the engine's own times
            read = max(0.0, first - usage.prefill_seconds)
            ends += [("prepare", read - usage.queue_seconds), ("slot", read)]
        ends += [("prompt", now if first is None else first), ("answer", now)]
    found, place = [], 0.0
    for name, end in ends:
        until = min(max(end, place), now)
        if until > place:
            found.append(StageWire(name, place, until))
        place = until
    return found


def _changed(sampling: Sampling) -> dict[str, Any]:
    neutral = asdict(Sampling())
    return {name: value for name, value in asdict(sampling).items() if value != neutral[name]}


def _answer(written: Written) -> AnswerWire:
    finished, ended = written.finished, written.ended
    raw = written.raw
    return alike(AnswerWire, written)(
        pieces=tuple(_pieces(written)) if raw is not None else (),
        spans=_in_utf16(raw, spans(written)) if raw is not None else (),
        parts=tuple(map(_part, written.parts)),
        finish=finished.reason if finished else None,
        cause=ended.cause if ended else None,
        stop=finished.stop if finished else None,
        end_token=ended.token if ended else None,
        warning=(finished.warning or finished.fault) if finished else None,
        cut=written.is_cut,
    )


def _part(part: Part) -> PartWire:
    return alike(PartWire, part)(name=part.name or None, id=part.id or None, whole=part.is_whole)


def _pieces(written: Written) -> Iterator[PieceWire]:
    assert written.raw is not None, "it is asked only where there is one"
    places, firsts = accumulate(written.lengths), accumulate(written.counts)
    place = first = 0
    for end, last in zip(places, firsts, strict=True):
        if end > place or last > first:
            yield PieceWire(written.raw[place:end], tuple(written.tokens[first:last]))
        place, first = end, last


def _in_utf16(raw: str, found: Sequence[Span]) -> list[Span]:
    """The same places as JavaScript counts them."""
    if raw.isascii():
        return list(found)
    place = units = 0
    wide = []
    for span in found:
        units += _units(raw[place : span.begin])
        begin, units = units, units + _units(raw[span.begin : span.end])
        place = span.end
        wide.append(Span(begin, units, span.part))
    return wide


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
