"""Log probabilities as a list of tokens, the way of OpenAI's chats and responses, and of Ollama."""

import msgspec

from backends.contract.protocol import Candidate, TokenLogprob

FLOOR = -9999.0  # OpenAI's value for tokens that are too unlikely; JSON has no -Infinity


class CandidateWire(msgspec.Struct, frozen=True):
    """A candidate token. `bytes` are exact where `token` contains U+FFFD."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class LogprobWire(CandidateWire, frozen=True):
    """The chosen token and the other candidates. `top_logprobs` is never null, because SillyTavern
    would lose the reply.
    """

    top_logprobs: tuple[CandidateWire, ...]


def logprob_wire(one: TokenLogprob) -> LogprobWire:
    """`one` as it is sent."""
    others = tuple(CandidateWire(*_candidate(other)) for other in one.top)
    return LogprobWire(*_candidate(one.chosen), others)


def _candidate(one: Candidate) -> tuple[str, float, tuple[int, ...]]:
    return token_text(one), finite(one), tuple(one.text)


def token_text(one: Candidate) -> str:
    """A token's text; bytes that are none by themselves are U+FFFD."""
    return one.text.decode("utf-8", "replace")


def finite(one: Candidate) -> float:
    """A token's log probability, for JSON."""
    return max(FLOOR, one.logprob)  # NaN is not greater, so it becomes the floor too
