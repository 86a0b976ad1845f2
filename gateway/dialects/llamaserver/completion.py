"""llama-server's completion reply (pieces of `content`, the last with `stop`) and its slots. Pure.

With several prompts or choices each piece carries its `index`, and the whole answer is an array.
What the last piece counts is of its own choice.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from backends.contract.protocol import Candidate, PromptProgress, SlotState, TokenLogprob
from gateway.dialects.dialect import Reply, body, frame
from gateway.dialects.llamaserver.request import (
    CompletionExchange,
    GenerationSettings,
    own_settings,
    settings,
)
from gateway.dialects.logprobs import token_text
from gateway.dialects.openai.logprobs import ProgressWire, TextCuts, Timings, progress_wire, timings
from gateway.terms.events import ChoiceReport, Delta, Finished, Parameters, Usage, raw_text
from gateway.terms.request import GenerationParams

_LEAST = -1e9  # JSON has no infinity


class CandidateWire(msgspec.Struct, frozen=True, kw_only=True):
    """A token that could have been chosen. `prob` is of what the samplers left."""

    id: int
    token: str
    bytes: Sequence[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET


class TokenWire(CandidateWire, frozen=True, kw_only=True):
    """The chosen token and what else there was."""

    top_logprobs: Sequence[CandidateWire] | UnsetType = UNSET
    top_probs: Sequence[CandidateWire] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A piece, or the whole. The last piece has `stop`, and what the answer cost."""

    index: int
    content: str
    tokens: Sequence[int] = ()
    stop: bool = False
    completion_probabilities: Sequence[TokenWire] | UnsetType = UNSET
    prompt_progress: ProgressWire | UnsetType = UNSET
    id_slot: int | UnsetType = UNSET  # where the request named one
    model: str | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    generation_settings: GenerationSettings | UnsetType = UNSET
    prompt: str | UnsetType = UNSET  # as the model read it
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET  # the context was full
    stop_type: str | UnsetType = UNSET  # "eos", "limit" or "word"
    stopping_word: str | UnsetType = UNSET  # the stop string that was found, or ""
    tokens_cached: int | UnsetType = UNSET  # of the prompt, found in the cache
    timings: Timings | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET


class _Growing(msgspec.Struct, eq=False):
    """One choice while it grows."""

    texts: list[str] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    has_new_line: bool = False
    stop_type: str = "eos"
    stopping_word: str = ""
    cuts: TextCuts = msgspec.field(default_factory=TextCuts)

    def take(self, delta: Delta) -> str:
        """Keep what `delta` says; its text."""
        text, end = raw_text(delta)
        self.tokens += delta.tokens
        match end:
            case Finished(stop=str(word)):
                self.stop_type, self.stopping_word = "word", word
            case Finished(reason="length"):
                self.stop_type = "limit"
        self.has_new_line = self.has_new_line or "\n" in text
        return text

    def next_tokens(self, count: int | None) -> Sequence[int]:
        """The next `count` tokens, or all that have not been sent."""
        sent = self.tokens[:count]
        del self.tokens[: len(sent)]
        return sent


class CompletionReply(Reply):
    """The answer to one request, as a stream or whole. `report` gives the report of each choice
    that has ended.
    """

    exchange: CompletionExchange
    model: str
    report: Callable[[int], ChoiceReport | None]
    parameters: Parameters | None = None
    _choices: list[_Growing] = msgspec.field(default_factory=list)

    @property
    def _answering(self) -> GenerationParams:
        return self.exchange.request.answering

    def __post_init__(self) -> None:
        self._choices = [_Growing() for _ in range(self.exchange.choices)]

    def delta(self, delta: Delta) -> bytes:
        """Some more of one choice, by tokens where those have probabilities; the end is sent by
        `closing`.
        """
        if delta.progress is not None:
            return frame(_reading(delta.choice, delta.progress))
        choice = self._choices[delta.choice]
        text = choice.take(delta)
        if not text:
            choice.logprobs += delta.logprobs  # the end token's go with the last piece
            return b""
        return b"".join(
            frame(self._piece(delta.choice, piece, tokens))
            for piece, tokens in choice.cuts.pieces(text, delta.logprobs)
        )

    def closing(self, usage: Usage) -> bytes:
        """The last piece of each choice."""
        return b"".join(map(frame, self._ends(usage)))

    def add(self, delta: Delta) -> None:
        """Keep some more of one choice for `whole`."""
        choice = self._choices[delta.choice]
        choice.texts.append(choice.take(delta))
        choice.logprobs += delta.logprobs

    def whole(self, usage: Usage) -> bytes:
        """The JSON body: an object, or an array of several choices."""
        answers = list(self._ends(usage))
        return body(answers if len(answers) > 1 else answers[0])

    def _piece(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> Completion:
        return Completion(
            index=index,
            content=text,
            tokens=self._choices[index].next_tokens(len(logprobs) or None),
            completion_probabilities=self._probabilities(logprobs),
        )

    def _ends(self, usage: Usage) -> Iterator[Completion | dict[str, Any]]:
        """The last piece of each choice, with the fields that the request chose; without a choice
        all of them.
        """
        names = self.exchange.response_fields
        for index, choice in enumerate(self._choices):
            last = self._last(index, choice, usage)
            yield chosen(msgspec.to_builtins(last), names) if names else last

    def _last(self, index: int, choice: _Growing, usage: Usage) -> Completion:
        """With the text of a whole answer: what a stream has sent is not kept."""
        report = self.report(index)
        cost = report.usage if report else usage
        return Completion(
            index=index,
            content="".join(choice.texts),
            tokens=choice.next_tokens(None) if self._answering.returns_tokens else (),
            stop=True,
            completion_probabilities=self._probabilities(choice.logprobs),
            id_slot=UNSET if report is None or report.job.slot is None else report.job.slot,
            model=self.model,
            tokens_predicted=cost.completion_tokens,
            tokens_evaluated=cost.prompt_tokens,
            generation_settings=self._settings(report),
            prompt=report.prompt if report else UNSET,
            has_new_line=choice.has_new_line,
            truncated=report.context_full if report else UNSET,
            stop_type=choice.stop_type,
            stopping_word=choice.stopping_word,
            tokens_cached=cost.cached_tokens,
            timings=timings(cost),
            parameters=self.parameters or UNSET,
        )

    def _settings(self, report: ChoiceReport | None) -> GenerationSettings | UnsetType:
        """Not known of a model that runs elsewhere."""
        if report is None:
            return UNSET
        return own_settings(
            report.job,
            context_length=report.context_length,
            model=self.model,
            stream=self._answering.streamed,
        )

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> Sequence[TokenWire] | UnsetType:
        """Tokens as llama-server reports them: logarithms of the model's own probabilities, or the
        plain ones of what the samplers left. UNSET where there are none.
        """
        return [self._token(one) for one in logprobs] or UNSET

    def _token(self, one: TokenLogprob) -> TokenWire:
        top = [CandidateWire(**self._candidate(other)) for other in one.top]
        if self._answering.after_samplers:
            return TokenWire(**self._candidate(one.chosen), top_probs=top)
        return TokenWire(**self._candidate(one.chosen), top_logprobs=top)

    def _candidate(self, candidate: Candidate) -> dict[str, Any]:
        text = token_text(candidate)
        known = {"id": candidate.token, "token": text, "bytes": tuple(candidate.text)}
        if self._answering.after_samplers:
            return {**known, "prob": math.exp(candidate.logprob)}
        return {**known, "logprob": max(candidate.logprob, _LEAST)}


def chosen(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Of `values` what `names` say; `a/b` is the field b inside of a, by that whole name. What is
    not there is left out.
    """
    found: dict[str, Any] = {}
    for name in names:
        value: Any = values
        for step in name.split("/"):
            value = value.get(step, UNSET) if isinstance(value, dict) else UNSET
        if value is not UNSET:
            found[name] = value
    return found


def _reading(index: int, progress: PromptProgress) -> Completion:
    """How far the prompt is; with the timings so far."""
    cost = Usage(
        prompt_tokens=progress.done,
        cached_tokens=progress.cached,
        completion_tokens=0,
        prefill_seconds=progress.seconds,
    )
    wire = progress_wire(progress)
    return Completion(index=index, content="", prompt_progress=wire, timings=timings(cost))


IDLE = -1  # the task of a slot that has none, and what is left of an answer without a limit

Action: TypeAlias = Literal["save", "restore", "erase"]


class NextTokenWire(msgspec.Struct, frozen=True):
    """The progress of an answer: tokens generated, and tokens that its limit still allows."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class SlotWire(msgspec.Struct, frozen=True, kw_only=True):
    """One slot. Texts are never included; parameters are for administrators only."""

    id: int
    id_task: int
    n_ctx: int
    speculative: bool = False
    is_processing: bool
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_cache: int | UnsetType = UNSET  # whose cells it holds, where that is known
    params: GenerationSettings | UnsetType = UNSET
    next_token: Sequence[NextTokenWire]


class SlotOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A request to save, restore or erase a slot."""

    filename: str = ""
    model: str | None = None


class SlotSaved(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens, and the size of the file in bytes. `timings`: the duration, as `save_ms`."""

    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: Mapping[str, float]


class SlotRestored(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens, and the size of the file in bytes. `verified`: the file's digest matches the
    saved one. `timings`: the duration, as `restore_ms`.
    """

    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    verified: bool
    timings: Mapping[str, float]


class SlotErased(msgspec.Struct, frozen=True, kw_only=True):
    """The number of erased tokens."""

    id_slot: int
    n_erased: int


def slot_wire(state: SlotState, *, context_length: int, shows_params: bool) -> SlotWire:
    """A slot as it is now."""
    job, done = state.job, state.generated if state.job is not None else 0
    limit = job.max_tokens if job is not None else None
    left = IDLE if limit is None else max(0, limit - done)
    params = settings(job, context_length=context_length) if job and shows_params else UNSET
    return SlotWire(
        id=state.id,
        id_task=IDLE if job is None or state.task is None else state.task,
        n_ctx=context_length,
        is_processing=job is not None,
        n_prompt_tokens=UNSET if job is None else state.prompt,
        n_prompt_tokens_cache=UNSET if state.cells is None else state.cells,
        params=params,
        next_token=[NextTokenWire(job is not None, left, done)],
    )
