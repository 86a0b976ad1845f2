"""llama-server's raw completion on its way out: pieces of `content`, the last says `stop`.

The request is read as OpenAI's: all of llama-server's names are among those understood there. With
`n` choices each piece carries its `index`, and the whole answer is an array.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from backends.protocol import Candidate, TokenLogprob
from gateway.dialects.frames import frame
from gateway.dialects.openai.errors import error_event
from gateway.dialects.openai.logprobs import TextCuts
from gateway.dialects.openai.usage import Timings, timings
from gateway.errors import GatewayError
from gateway.events import Content, Delta, Finished, Parameters, Usage

_encode = msgspec.json.Encoder().encode


class CandidateWire(msgspec.Struct, frozen=True):
    """A token that could have been chosen."""

    id: int
    token: str
    bytes: Sequence[int]
    logprob: float


class TokenWire(CandidateWire, frozen=True, kw_only=True):
    """The chosen token and what else there was."""

    top_logprobs: Sequence[CandidateWire]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A piece, or the whole. The last piece has `stop`, and what the answer cost."""

    index: int
    content: str
    stop: bool = False
    completion_probabilities: Sequence[TokenWire] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    stop_type: str | UnsetType = UNSET  # "eos", "limit" or "word"
    stopping_word: str | UnsetType = UNSET  # the stop string that was found, or ""
    tokens_predicted: int | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET


class _Growing:
    """One choice while it grows."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.stop_type = "eos"
        self.stopping_word = ""
        self.cuts = TextCuts()

    def take(self, delta: Delta) -> str:
        """Keep what `delta` says; its text."""
        text = ""
        for event in delta.events:
            match event:
                case Content(more):
                    text += more
                case Finished(stop=str(word)):
                    self.stop_type, self.stopping_word = "word", word
                case Finished(reason=reason):
                    self.stop_type = "limit" if reason == "length" else "eos"
                case _:
                    raise AssertionError(f"raw text is not split, but there came {event!r}")
        return text


class CompletionReply:
    """The answer to one request of `choices` choices, as a stream or whole."""

    def __init__(self, *, model: str, choices: int, parameters: Parameters | None = None) -> None:
        self._parameters = UNSET if parameters is None else parameters
        self._model = model
        self._choices = [_Growing() for _ in range(choices)]

    def opening(self) -> bytes:
        """A text has no role."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """Some more of one choice, by tokens where those have probabilities; the end is told by
        `closing`.
        """
        choice = self._choices[delta.choice]
        text = choice.take(delta)
        if not text:
            return b""
        return b"".join(
            frame(Completion(index=delta.choice, content=piece, completion_probabilities=probable))
            for piece, tokens in choice.cuts.pieces(text, delta.logprobs)
            for probable in (_probabilities(tokens) if tokens else UNSET,)
        )

    def closing(self, usage: Usage) -> bytes:
        """The last piece of each choice."""
        return b"".join(frame(self._last(index, "", usage)) for index in range(len(self._choices)))

    def failed(self, error: GatewayError) -> bytes:
        """The last event of a broken stream."""
        return error_event(error)

    def add(self, delta: Delta) -> None:
        """Keep some more of one choice for `whole`."""
        choice = self._choices[delta.choice]
        choice.texts.append(choice.take(delta))
        choice.logprobs += delta.logprobs

    def whole(self, usage: Usage) -> bytes:
        """The JSON body: an object, or an array of several choices."""
        answers = [
            self._last(index, "".join(choice.texts), usage, choice.logprobs)
            for index, choice in enumerate(self._choices)
        ]
        return _encode(answers if len(answers) > 1 else answers[0])

    def _last(
        self, index: int, text: str, usage: Usage, logprobs: Sequence[TokenLogprob] = ()
    ) -> Completion:
        return Completion(
            index=index,
            content=text,
            stop=True,
            completion_probabilities=_probabilities(logprobs) if logprobs else UNSET,
            model=self._model,
            stop_type=self._choices[index].stop_type,
            stopping_word=self._choices[index].stopping_word,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            tokens_cached=usage.cached_tokens,
            timings=timings(usage),
            parameters=self._parameters,
        )


def _probabilities(logprobs: Sequence[TokenLogprob]) -> tuple[TokenWire, ...]:
    return tuple(
        TokenWire(
            *_fields(one.chosen), top_logprobs=tuple(CandidateWire(*_fields(c)) for c in one.top)
        )
        for one in logprobs
    )


def _fields(candidate: Candidate) -> tuple[int, str, tuple[int, ...], float]:
    text = candidate.text.decode(errors="replace")
    return candidate.token, text, tuple(candidate.text), max(candidate.logprob, -1e9)
