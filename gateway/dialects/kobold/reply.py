"""KoboldAI's reply: events with a `token`, or `results` at the end. Knows no HTTP.

KoboldCpp's errors: `detail` with `msg` and `type`, and in it the field at fault and our code.

SillyTavern reads `error.message` of a stream that never began, so that is there too.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from gateway.dialects.frames import PLACEHOLDER, FrameTemplate, body, named_frame
from gateway.dialects.kobold.request import Result, Results, TokenStep
from gateway.errors import GatewayError
from gateway.events import Content, Delta, Finished, Usage


class DetailWire(msgspec.Struct, frozen=True, kw_only=True):
    """`param` and `code` are ours."""

    msg: str
    type: str
    param: str | None
    code: str | None


class MessageWire(msgspec.Struct, frozen=True):
    """The same text where frontends read it."""

    message: str


class KoboldError(msgspec.Struct, frozen=True):
    """The body of a failed request, and the last event of a broken stream."""

    detail: DetailWire
    error: MessageWire


def _wire(error: GatewayError) -> KoboldError:
    detail = DetailWire(msg=error.message, type=error.type, param=error.param, code=error.code)
    return KoboldError(detail, MessageWire(error.message))


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(_wire(error))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return named_frame(b"error", _wire(error))


EVENT = b"message"


class Growing:
    """One of the texts while it grows. `stop_reason`: see `wire.Perf`."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.finish: Literal["stop", "length"] = "length"  # KoboldCpp's value for an abort, too
        self.stop_reason = 0

    def end(self, event: Finished) -> None:
        """Why it ended."""
        if event.reason != "length":
            self.finish = "stop"
            self.stop_reason = 1 if event.stop is None else 2


class KoboldReply:
    """The answer to one request, as a stream or whole; see `gateway.http.exchange.Reply`."""

    def __init__(self, *, results: int, shows_stop: bool) -> None:
        self._shows_stop = shows_stop
        self._all = [Growing() for _ in range(results)]
        self._step = FrameTemplate(named_frame(EVENT, TokenStep(token=PLACEHOLDER)))

    @property
    def stop_reason(self) -> int:
        """Of the first text, as `wire.Perf` numbers them."""
        return self._all[0].stop_reason

    def texts(self) -> Sequence[str]:
        """What there is of each text now."""
        return ["".join(one.texts) for one in self._all]

    def opening(self) -> bytes:
        """Nothing is sent yet."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """Some more of the text."""
        text = self._take(delta)
        return self._step.render(text) if text else b""

    def _take(self, delta: Delta) -> str:
        """Keep what `delta` says; its text."""
        growing = self._all[delta.choice]
        match delta.events:
            case (Content(text),):
                growing.texts.append(text)
                return text
        text = "".join([self._text_of(growing, event) for event in delta.events])
        growing.texts.append(text)
        return text

    def _text_of(self, growing: Growing, event: object) -> str:
        match event:
            case Content(text):
                return text
            case Finished(stop=stop):
                growing.end(event)
                return stop if stop and self._shows_stop else ""
            case _:
                raise AssertionError(f"raw text is not split, but there came {event!r}")

    def closing(self, usage: Usage) -> bytes:
        """The last event: why it ended, and what it cost."""
        last = TokenStep(
            token="",
            finish_reason=self._all[0].finish,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )
        return named_frame(EVENT, last)

    def failed(self, error: GatewayError) -> bytes:
        """The last event of a broken stream."""
        return error_event(error)

    def add(self, delta: Delta) -> None:
        """Keep some more of one text for `whole`."""
        self._take(delta)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        results = [
            Result(
                text="".join(one.texts),
                finish_reason=one.finish,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
            )
            for one in self._all
        ]
        return body(Results(results))
