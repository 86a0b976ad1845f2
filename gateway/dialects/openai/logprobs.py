"""The figures of an answer in OpenAI's formats: log probabilities as chat's list of tokens and as
text completion's columns; `usage`, and llama.cpp's `timings` and `prompt_progress`.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from backends.contract.protocol import Candidate, PromptProgress, TokenLogprob
from gateway.dialects.logprobs import LogprobWire, finite, logprob_wire, token_text
from gateway.terms.events import Usage


class ChatLogprobs(msgspec.Struct, frozen=True):
    """A choice's `logprobs` in chat."""

    content: tuple[LogprobWire, ...]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """A choice's `logprobs` in legacy completions: columns with one entry per token. An entry of
    `top_logprobs` always contains the chosen token. The entries of the first token of an echoed
    prompt are null, because no token precedes it.
    """

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]
    text_offset: tuple[int, ...]


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> ChatLogprobs:
    """`tokens` in chat's shape."""
    return ChatLogprobs(tuple(map(logprob_wire, tokens)))


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


class TextOffsets:
    """Where tokens begin in the text of one choice, the echoed prompt included.

    Counted in UTF-16 units, because the one known reader of offsets, SillyTavern, cuts JavaScript
    strings with them. Tokens inside one character share its offset.
    """

    def __init__(self, start: str = "") -> None:
        self._decoder = _decoder()
        self._next = _utf16_length(start)

    def columns(self, tokens: Iterable[TokenLogprob]) -> TextLogprobs:
        """`tokens`, which follow those of the last call."""
        tokens = tuple(tokens)
        return _columns(tokens, [self._passed(token.chosen) for token in tokens])

    def _passed(self, candidate: Candidate) -> int:
        offset = self._next
        self._next += _utf16_length(self._decoder.decode(candidate.text))
        return offset


class EchoedPrompt(msgspec.Struct, eq=False):
    """The text of a prompt while its tokens come, and where in it each begins."""

    _text: str
    _at: int = 0  # characters passed
    _offset: int = 0  # the same in UTF-16 units
    _decoder: codecs.IncrementalDecoder = msgspec.field(default_factory=_decoder)
    _begun: bool = False

    def take(self, tokens: Sequence[TokenLogprob]) -> tuple[str, TextLogprobs]:
        """The text up to the end of `tokens`, which follow those of the last call."""
        start, offsets = self._at, []
        for token in tokens:
            offsets.append(self._offset)
            self._pass(self._decoder.decode(token.chosen.text))
        columns = _columns(tokens, offsets, unknown=0 if self._begun else 1)
        self._begun = True
        return self._text[start : self._at], columns

    def rest(self) -> str:
        """The text behind the last token."""
        start, self._at = self._at, len(self._text)
        return self._text[start:]

    def _pass(self, text: str) -> None:
        """A token may have a space that the prompt has not (SentencePiece's first), or stand for
        nothing in it (a bos).
        """
        candidates = (text, text.removeprefix(" "))
        passed = next((one for one in candidates if self._text.startswith(one, self._at)), "")
        self._at += len(passed)
        self._offset += _utf16_length(passed)


def _columns(
    tokens: Sequence[TokenLogprob], offsets: Sequence[int], unknown: int = 0
) -> TextLogprobs:
    """`unknown`: how many of the first tokens have no log probability."""
    nothing, known = (None,) * unknown, tokens[unknown:]
    return TextLogprobs(
        tokens=tuple(token_text(token.chosen) for token in tokens),
        token_logprobs=(*nothing, *(finite(token.chosen) for token in known)),
        top_logprobs=(*nothing, *map(_alternatives, known)),
        text_offset=tuple(offsets),
    )


def together(parts: Sequence[TextLogprobs]) -> TextLogprobs:
    """Columns that follow each other."""
    names = TextLogprobs.__struct_fields__
    whole = ([getattr(part, name) for part in parts] for name in names)
    return TextLogprobs(*(tuple(chain.from_iterable(columns)) for columns in whole))


class TextCuts(msgspec.Struct, eq=False):
    """Cuts the text of one choice into its tokens, chunk by chunk.

    For SillyTavern, which shows a streamed chunk's text as one token, with the alternatives of the
    chunk's first.
    """

    _decoder: codecs.IncrementalDecoder = msgspec.field(default_factory=_decoder)

    def pieces(
        self, text: str, tokens: Iterable[TokenLogprob]
    ) -> Iterator[tuple[str, tuple[TokenLogprob, ...]]]:
        """`text` with its `tokens`, which follow those of the last call.

        Tokens inside one character stay together. Text beyond the tokens comes last, without any.
        """
        start = end = 0
        kept: list[TokenLogprob] = []
        for token in tokens:
            kept.append(token)
            end += len(self._decoder.decode(token.chosen.text))
            if start < end < len(text):
                yield text[start:end], tuple(kept)
                start, kept = end, []
        yield text[start:], tuple(kept)


def _alternatives(token: TokenLogprob) -> dict[str, float]:
    """The likelier one stays where two tokens have the same text."""
    alternatives: dict[str, float] = {}
    for candidate in (*token.top, token.chosen):
        alternatives.setdefault(token_text(candidate), finite(candidate))
    return alternatives


def _utf16_length(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


UsageSoFar: TypeAlias = Callable[[], Usage]


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt tokens."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """Of the completion tokens."""

    reasoning_tokens: int


class UsageWire(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's `usage`, and the price if another server reports one."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    cost: Any = UNSET
    cost_details: Any = UNSET


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp's `timings`, and ours: `queued_ms`; of the cached tokens those that were put back
    from the store of kept conversations (`kept_n`), and from where (`kept_in`). `prompt_n` excludes
    the cached tokens (`cache_n`). The first token is generated with the prompt: `predicted_ms` and
    the rates cover those after it (llama.cpp, server_slot_stats).
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    queued_ms: float
    kept_n: int | UnsetType = UNSET
    kept_in: str | UnsetType = UNSET
    draft_n: int | UnsetType = UNSET
    draft_n_accepted: int | UnsetType = UNSET


def usage_wire(usage: Usage) -> UsageWire | UnsetType:
    """`usage` as OpenAI counts; left out where nobody counted."""
    if not usage.is_counted:
        return UNSET
    return UsageWire(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens),
        completion_tokens_details=CompletionDetails(usage.reasoning_tokens),
        **usage.further,
    )


def usage_so_far(usage: UsageSoFar) -> UsageWire | UnsetType:
    """Where it is known: another server may count at the end alone."""
    found = usage()
    return usage_wire(found) if found.prompt_tokens else UNSET


def timings(usage: Usage) -> Timings | UnsetType:
    """`usage` as llama.cpp times; left out where nobody counted the tokens."""
    if not usage.is_counted:
        return UNSET
    computed = usage.computed_tokens
    steps = max(0, usage.completion_tokens - 1)
    prompt_ms, predicted_ms = usage.prefill_seconds * 1000, usage.decode_seconds * 1000
    return Timings(
        cache_n=usage.cached_tokens,
        prompt_n=computed,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_share(prompt_ms, computed),
        prompt_per_second=_share(1000.0 * computed, prompt_ms),
        predicted_n=usage.completion_tokens,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_share(predicted_ms, steps),
        predicted_per_second=_share(1000.0 * steps, predicted_ms),
        queued_ms=usage.queue_seconds * 1000,
        kept_n=usage.kept_tokens or UNSET,
        kept_in=usage.kept_in or UNSET,
        draft_n=usage.drafted_tokens or UNSET,
        draft_n_accepted=usage.accepted_tokens if usage.drafted_tokens else UNSET,
    )


class ProgressWire(msgspec.Struct, frozen=True):
    """llama-server's `prompt_progress`: `processed` of `total` tokens, including cached ones."""

    total: int
    cache: int
    processed: int
    time_ms: float


def progress_wire(progress: PromptProgress) -> ProgressWire:
    """`progress` as llama-server reports it."""
    seconds = progress.seconds
    return ProgressWire(progress.total, progress.cached, progress.done, seconds * 1000)


def _share(amount: float, parts: float) -> float:
    """0 where there are no parts, because JSON has no infinity."""
    return amount / parts if parts > 0 else 0.0
