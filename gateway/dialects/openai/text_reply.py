"""OpenAI's text completion reply: deltas to chunks of a stream, or to one body. Knows no HTTP.

The text is raw: nothing is split off it. Choice i of prompt p has the index p * n + i.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from backends.contract.protocol import TokenLogprob
from gateway.dialects.dialect import frame
from gateway.dialects.openai.logprobs import (
    EchoedPrompt,
    TextCuts,
    TextLogprobs,
    TextOffsets,
    together,
)
from gateway.dialects.openai.reply import CompletionObject, CompletionReply, StoppedChoice
from gateway.dialects.openai.request import TextExchange
from gateway.terms.events import Delta, Finished, Usage, raw_text

TextFinish: TypeAlias = Literal["stop", "length", "content_filter"]


class TextChoice(StoppedChoice, frozen=True, kw_only=True):
    """A part of one text, or the whole text. `finish_reason` is null until the choice ends."""

    text: str
    reasoning: str | UnsetType = UNSET  # reports of the wait alone: a raw text has its own within
    logprobs: TextLogprobs | UnsetType = UNSET
    finish_reason: TextFinish | None = None


class TextCompletion(
    CompletionObject, frozen=True, kw_only=True, tag_field="object", tag="text_completion"
):
    """A chunk of a stream, or the whole body: the API uses one format for both."""

    choices: tuple[TextChoice, ...]


class _Growing(msgspec.Struct, eq=False):
    """One choice while it grows. Log probabilities of held-back text wait for the text."""

    index: int
    echo: str
    has_logprobs: bool
    _prompt: EchoedPrompt
    _offsets: TextOffsets
    _cuts: TextCuts = msgspec.field(default_factory=TextCuts)
    _scored: bool = False
    _waiting: tuple[TokenLogprob, ...] = ()
    _said: list[TextChoice] = []  # for `whole`

    def steps(self, delta: Delta) -> Iterable[TextChoice]:
        """The choices to send for `delta`: text first, by tokens; the finish reason alone."""
        if delta.prompt_logprobs:
            text, columns = self._prompt.take(delta.prompt_logprobs)
            self._scored = True
            yield TextChoice(index=self.index, text=text, logprobs=columns)
            return
        if self._scored and (rest := self._prompt.rest()):
            yield TextChoice(index=self.index, text=rest)
        text, end = raw_text(delta)
        if self.has_logprobs:
            self._waiting += delta.logprobs
        if text:
            logprobs, self._waiting = self._waiting, ()
            for piece, tokens in self._cuts.pieces(text, logprobs):
                yield TextChoice(index=self.index, text=piece, logprobs=self._columns(tokens))
        if end is not None:
            stop = UNSET if end.stop is None else end.stop
            yield TextChoice(
                index=self.index,
                text="",
                logprobs=self._columns(self._waiting),
                finish_reason=_reason(end),
                stop_reason=stop,
                stop_str=stop,
            )

    def add(self, delta: Delta) -> None:
        """Keep what `delta` says for `whole`."""
        self._said += self.steps(delta)

    def whole(self) -> TextChoice:
        """The choice, once it is finished: its steps put together."""
        last = self._said[-1]
        assert last.finish_reason is not None, "a choice is sent when it has ended"
        columns = [one.logprobs for one in self._said if one.logprobs is not UNSET]
        texts = ("" if self._scored else self.echo, *(one.text for one in self._said))
        logprobs = together(columns) if self.has_logprobs else UNSET
        return replace(last, text="".join(texts), logprobs=logprobs)

    def _columns(self, logprobs: Sequence[TokenLogprob]) -> TextLogprobs | UnsetType:
        return self._offsets.columns(logprobs) if logprobs else UNSET


class TextReply(CompletionReply):
    """The answer to one request in legacy completions. `echoes` are the texts of the prompts:
    needed for a request with `echo` whose prompts are token ids.
    """

    chunk = TextCompletion

    exchange: TextExchange
    echoes: Sequence[str] = ()
    _choices: list[_Growing] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        n, has_logprobs = self.exchange.request.answering.n, self._has_logprobs
        texts = [text for text in _echoes(self.exchange, self.echoes) for _ in range(n)]
        self._choices = [
            _Growing(index, text, has_logprobs, EchoedPrompt(text), TextOffsets(text))
            for index, text in enumerate(texts)
        ]
        self._unfinished = len(self._choices)

    def opening(self) -> bytes:
        """The echoed prompts; otherwise nothing, because a text has no role."""
        if self._has_logprobs:
            return b""  # it comes with its log probabilities
        return b"".join(
            frame(self._chunk(TextChoice(index=choice.index, text=choice.echo)))
            for choice in self._choices
            if choice.echo
        )

    def delta(self, delta: Delta) -> bytes:
        """Some more of one choice."""
        return self._frames_of(tuple(self._choices[delta.choice].steps(delta)))

    def add(self, delta: Delta) -> None:
        """Keep some more of one choice for `whole`."""
        self._choices[delta.choice].add(delta)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body, when every choice has finished."""
        return self._body(TextCompletion, [choice.whole() for choice in self._choices], usage)


class TextLoading(msgspec.Struct, frozen=True, kw_only=True):
    """The wait for a model, beside the text of the first choice, where SillyTavern looks for
    reasoning.
    """

    id: str
    created: int
    began: bool = False  # the reply opens the stream

    def frames(self, model: str, text: str) -> bytes:
        """Frames that say `text`."""
        said = (TextChoice(index=0, text="", reasoning=text),)
        return frame(TextCompletion(id=self.id, created=self.created, model=model, choices=said))


def _echoes(exchange: TextExchange, given: Sequence[str]) -> Sequence[str]:
    """What each prompt's choices begin with."""
    prompts = exchange.request.prompts
    if not exchange.request.echo:
        return [""] * len(prompts)
    texts = given or [prompt for prompt in prompts if isinstance(prompt, str)]
    assert len(texts) == len(prompts), "prompts of token ids are echoed by whoever can read them"
    return texts


def _reason(finished: Finished) -> TextFinish:
    assert finished.reason != "tool_calls", "raw text has no tool calls"
    return finished.reason
