"""TGI's reply: an event for each token, or the whole text at the end. Knows no HTTP.

TGI's errors: a text and its type, by which its clients choose an exception; ours beside them.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from backends.protocol import Candidate, TokenLogprob
from gateway.dialects.frames import body, frame
from gateway.dialects.tgi.request import (
    Details,
    Finish,
    Generated,
    StreamDetails,
    StreamStep,
    TgiExchange,
    TokenWire,
)
from gateway.errors import GatewayError
from gateway.events import Content, Delta, Event, Finished, Usage


class TgiError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a failed request, and the last event of a broken stream. `param` and `code` are
    ours.
    """

    error: str
    error_type: Literal["validation", "overloaded", "generation"]
    param: str | None
    code: str | None


def _wire(error: GatewayError) -> TgiError:
    overloaded, own = error.status_hint in (429, 503), error.status_hint >= 500
    return TgiError(
        error=error.message,
        error_type="overloaded" if overloaded else "generation" if own else "validation",
        param=error.param,
        code=error.code,
    )


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(_wire(error))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return frame(_wire(error))


class TgiReply:
    """The answer to one request, as a stream or whole; see `gateway.http.exchange.Reply`.

    The stop sequence that ended a text is its end, as with TGI. `listed`: the whole stands in a
    list, as TGI answers at `/`.
    """

    def __init__(self, exchange: TgiExchange, *, listed: bool = False) -> None:
        self._exchange = exchange
        self._listed = listed
        self._shows_top = bool(exchange.request.answering.logprobs)
        sampling = exchange.request.answering.sampling
        self._seed = sampling.values.seed if "seed" in sampling.named else None
        self._texts: list[str] = [exchange.prompt]
        self._waiting: tuple[TokenLogprob, ...] = ()  # of text that is held back
        self._tokens: list[TokenWire] = []
        self._top: list[Sequence[TokenWire]] = []
        self._sent = 0
        self._finish: Finish = "length"

    def opening(self) -> bytes:
        """Nothing is sent yet."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """Some more of the text: an event for each token, or one for all of them."""
        before = len(self._tokens)
        self.add(delta)
        tokens, top = self._tokens[before:], self._top[before:]
        frames = [self._step(token, top[at : at + 1]) for at, token in enumerate(tokens)]
        if not self._exchange.details:
            del self._tokens[:], self._top[:]
        return b"".join(frames)

    def closing(self, usage: Usage) -> bytes:
        """The last event: a token without a text, the whole text, and why it ended."""
        details = StreamDetails(
            finish_reason=self._finish,
            generated_tokens=usage.completion_tokens,
            input_length=usage.prompt_tokens,
            seed=self._seed,
        )
        return frame(
            StreamStep(
                index=self._sent + 1,
                token=TokenWire(text="", special=True),
                generated_text="".join(self._texts),
                details=details,
            )
        )

    def failed(self, error: GatewayError) -> bytes:
        """The last event of a broken stream."""
        return error_event(error)

    def add(self, delta: Delta) -> None:
        """Keep some more of the text for `whole`."""
        text = "".join(map(self._text_of, delta.events))
        self._waiting += delta.logprobs
        if text:
            self._texts.append(text)
            logprobs, self._waiting = self._waiting, ()
            self._keep(text, logprobs)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        generated = Generated(
            generated_text="".join(self._texts),
            details=self._details(usage) if self._exchange.details else UNSET,
        )
        return body([generated] if self._listed else generated)

    def _text_of(self, event: Event) -> str:
        match event:
            case Content(text):
                return text
            case Finished(reason="length"):
                return ""
            case Finished(stop=stop):
                self._finish = "eos_token" if stop is None else "stop_sequence"
                return stop or ""
            case _:
                raise AssertionError(f"raw text is not split, but there came {event!r}")

    def _keep(self, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        """Tokens of their own where the text is theirs, else one for all of it."""
        tokens = [_token(logprob.chosen) for logprob in logprobs]
        if "".join(token.text for token in tokens) != text:
            tokens = [TokenWire(text=text)]
        self._tokens += tokens
        tops = [[_token(candidate) for candidate in logprob.top] for logprob in logprobs]
        self._top += tops if len(tops) == len(tokens) else [()] * len(tokens)

    def _step(self, token: TokenWire, top: Sequence[Sequence[TokenWire]]) -> bytes:
        self._sent += 1
        shown: Sequence[TokenWire] | UnsetType = top[0] if self._shows_top and top else UNSET
        return frame(StreamStep(index=self._sent, token=token, top_tokens=shown))

    def _details(self, usage: Usage) -> Details:
        return Details(
            finish_reason=self._finish,
            generated_tokens=usage.completion_tokens,
            seed=self._seed,
            tokens=self._tokens,
            top_tokens=self._top if self._shows_top else UNSET,
        )


def _token(candidate: Candidate) -> TokenWire:
    text = candidate.text.decode(errors="replace")
    return TokenWire(id=candidate.token, text=text, logprob=candidate.logprob)
