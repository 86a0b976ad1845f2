"""The messages of the responses API over a WebSocket: what clients send, and events as messages.

Pure: bytes in, structs out; frames of server-sent events in, texts out. A lane is what OpenAI calls
a `stream_id`: requests of one lane are answered one after the other, those of several side by side,
and each event names its lane. Knows no connection and no store.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.dialects.dialect import body
from gateway.dialects.fields import Fields, json_object
from gateway.dialects.models import ErrorDetail, envelope
from gateway.terms.errors import GatewayError, InvalidRequest

LONGEST_LANE = 256  # characters
CREATE, CANCEL, STEER = "response.create", "response.cancel", "response.steer"
# Fields of a message that are about the connection, and not of the response.
ABOUT_THE_SOCKET = ("type", "stream_id", "stream", "stream_options", "generate", "background")


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """A response is asked for. `body`: as it would be posted; `previous`: what it goes on from;
    `generates`: False to make ready what it begins with alone; `unused`: fields that mean nothing
    on a socket.
    """

    body: bytes
    previous: str | None = None
    lane: str | None = None
    generates: bool = True
    unused: tuple[str, ...] = ()


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """A response is to end: the one of that id, else the one that runs in the lane."""

    response: str | None = None
    lane: str | None = None


class Steer(msgspec.Struct, frozen=True, kw_only=True):
    """Input for a response that runs, which no model here takes."""

    message: Mapping[str, object]


ClientMessage: TypeAlias = Create | Cancel | Steer


class AboutWire(msgspec.Struct, frozen=True, kw_only=True):
    """What a message says of its connection."""

    stream_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_LANE)] | None = None
    response_id: str | None = None
    generate: bool | None = True


def read_message(text: bytes) -> ClientMessage:
    """What a client's message means. Raises InvalidRequest, TooLarge."""
    message = json_object(text)
    about = Fields(message, {}).read(AboutWire)
    match message.get("type"):
        case str(kind) if kind == CREATE:
            return _create(msgspec.json.decode(text, type=dict[str, msgspec.Raw]), message, about)
        case str(kind) if kind == CANCEL:
            return Cancel(response=about.response_id, lane=about.stream_id)
        case str(kind) if kind == STEER:
            return Steer(message=message)
    raise InvalidRequest.at("type", f"Expected {CREATE!r} or {CANCEL!r}.")


def _create(
    given: Mapping[str, msgspec.Raw], message: Mapping[str, object], about: AboutWire
) -> Create:
    previous = message.get("previous_response_id")
    asked = {name: one for name, one in given.items() if name not in ABOUT_THE_SOCKET}
    return Create(
        body=msgspec.json.encode({**asked, "stream": True}),
        previous=previous if isinstance(previous, str) else None,
        lane=about.stream_id,
        generates=about.generate is not False,
        unused=("background",) if message.get("background") else (),
    )


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """A request that was not answered, or the reason why the server closes the connection."""

    status: int
    error: ErrorDetail
    stream_id: str | UnsetType = UNSET
    headers: Mapping[str, str] | UnsetType = UNSET


class SteerError(msgspec.Struct, frozen=True, kw_only=True):
    """Why input was not taken."""

    message: str
    type: str = "invalid_request_error"
    code: str = "steering_not_supported"


class SteerFailed(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="response.steer.failed"
):
    """Input that was not taken, as it came."""

    error: SteerError
    steer: Mapping[str, object]
    sequence_number: int = 0


def error_message(
    error: GatewayError, lane: str | None = None, headers: Mapping[str, str] = {}
) -> str:
    """The message of a request that `error` ended before it had an answer. Its code is a text, as
    Open Responses wants it there.
    """
    detail = envelope(error).error
    return body(
        ErrorMessage(
            status=error.status_hint,
            error=msgspec.structs.replace(detail, code=detail.code or detail.type),
            stream_id=UNSET if lane is None else lane,
            headers=headers or UNSET,
        )
    ).decode()


def steer_failed(steer: Steer) -> str:
    """The message that gives a client its input back."""
    given = {name: one for name, one in steer.message.items() if name != "type"}
    why = "A response that runs takes no input here; cancel it, or send it behind its end."
    return body(SteerFailed(error=SteerError(message=why), steer=given)).decode()


def messages(
    frames: bytes, lane: str | None = None, headers: Mapping[str, str] = {}
) -> Iterator[str]:
    """The events in whole frames of a stream, each with its lane, the first with `headers`.
    Comments are left out.
    """
    about = {} if lane is None else {"stream_id": lane}
    first = {**about, "headers": headers} if headers else about
    for frame in frames.split(b"\n\n"):
        _, found, data = frame.partition(b"\ndata: ")
        if found and not frame.startswith(b":"):
            yield _with(data, first).decode()
            first = about


def _with(event: bytes, more: Mapping[str, object]) -> bytes:
    """The object `event`, which is not empty, with `more` behind its own fields."""
    return event[:-1] + b"," + msgspec.json.encode(more)[1:] if more else event
