"""Log probabilities as a list of tokens, the way of Ollama and of the Responses API."""

import msgspec

from backends.contract.protocol import Candidate, TokenLogprob

LEAST = -1e9  # JSON has no infinity


class CandidateWire(msgspec.Struct, frozen=True):
    """A candidate token."""

    token: str
    bytes: tuple[int, ...]
    logprob: float


class LogprobWire(CandidateWire, frozen=True, kw_only=True):
    """The chosen token and the other candidates."""

    top_logprobs: tuple[CandidateWire, ...]


def logprob_wire(one: TokenLogprob) -> LogprobWire:
    """`one` as it is sent."""
    others = tuple(CandidateWire(*_candidate(other)) for other in one.top)
    return LogprobWire(*_candidate(one.chosen), top_logprobs=others)


def _candidate(one: Candidate) -> tuple[str, tuple[int, ...], float]:
    return one.text.decode(errors="replace"), tuple(one.text), max(one.logprob, LEAST)
