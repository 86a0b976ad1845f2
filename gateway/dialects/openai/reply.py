"""The common part of the replies of chat and of legacy completions: the facts of an answer, its
chunks, and how a stream ends.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from gateway.dialects.dialect import DONE, Reply, body, frame
from gateway.dialects.openai.logprobs import (
    Timings,
    UsageSoFar,
    UsageWire,
    timings,
    usage_so_far,
    usage_wire,
)
from gateway.dialects.openai.request import ChatExchange, TextExchange
from gateway.terms.events import Parameters, Usage


class AnswerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer when it begins. `created` is Unix time; `usage` the usage so far,
    for those who want it in every chunk.
    """

    id: str
    created: int
    model: str
    parameters: Parameters | UnsetType = UNSET
    fingerprint: str = ""
    usage: UsageSoFar | None = None

    @property
    def shown(self) -> dict[str, Any]:
        """What stands in each chunk, and in a whole body."""
        named = {"id": self.id, "created": self.created, "model": self.model}
        return {**named, "system_fingerprint": self.fingerprint or UNSET}


class CompletionObject(msgspec.Struct, frozen=True, kw_only=True):
    """The common part of an event and of a whole body."""

    id: str
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    usage: UsageWire | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET


class StoppedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that may have ended. `stop_reason` (vLLM) and `stop_str` (TabbyAPI) contain the stop
    string that ended it.
    """

    index: int
    stop_reason: str | UnsetType = UNSET
    stop_str: str | UnsetType = UNSET


class CompletionReply(Reply):
    """The answer to one request, as a stream or whole.

    A stream is `opening`, `delta`…, `closing`, or `failed` at any time; each gives frames, several
    joined or none (b""). The whole is `add`…, then `whole`.
    """

    chunk: ClassVar[type[msgspec.Struct]]  # the struct of an event

    exchange: ChatExchange | TextExchange
    facts: AnswerFacts
    _unfinished: int = 0  # choices
    _end: Any = None  # the last choice's, which waits for the timings

    @property
    def _usage(self) -> UsageSoFar | None:
        return self.facts.usage if self.exchange.stream_options.is_continuous else None

    @property
    def _has_logprobs(self) -> bool:
        return self.exchange.request.answering.logprobs is not None

    def closing(self, usage: Usage) -> bytes:
        """The usage if it was asked for, else the timings in the last chunk; the end of the
        stream.
        """
        end = b""
        if self._end is not None:
            end = frame(msgspec.structs.replace(self._chunk(self._end), timings=timings(usage)))
        include_usage = self.exchange.stream_options.include_usage
        parameters = self.facts.parameters
        if not include_usage and parameters is UNSET:
            return end + DONE
        cost = self._cost(usage) if include_usage else {}
        chunk = self.chunk(**self.facts.shown, choices=(), parameters=parameters, **cost)
        return end + frame(chunk) + DONE

    def _frames_of(self, choices: Sequence[Any]) -> bytes:
        """Chunks with these steps of one choice; the last of all waits for `closing`."""
        if choices and choices[-1].finish_reason is not None:
            self._unfinished -= 1
            if not self._unfinished and not self.exchange.stream_options.include_usage:
                *choices, self._end = choices
        return b"".join([frame(self._chunk(choice)) for choice in choices])

    def _chunk(self, choice: Any) -> msgspec.Struct:
        usage = UNSET if self._usage is None else usage_so_far(self._usage)
        return self.chunk(**self.facts.shown, choices=(choice,), usage=usage)

    def _body(
        self, form: type[msgspec.Struct], choices: Sequence[Any], usage: Usage, **more: Any
    ) -> bytes:
        facts = {**self.facts.shown, **self._cost(usage), **more}
        return body(form(**facts, choices=tuple(choices), parameters=self.facts.parameters))

    def _cost(self, usage: Usage) -> dict[str, Any]:
        return {"usage": usage_wire(usage), "timings": timings(usage)}
