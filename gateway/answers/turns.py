"""The conversations that were answered lately: how much of each was found in the cache, and where
their prompts parted. Bounded in number and in memory; the one that was quiet the longest goes.

A conversation is told by who asks, the model, and the first message that isn't the system's; what
the client calls it is its name for people.
"""

import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec

from gateway.prompt.parting import (
    Outline,
    Parting,
    Turn,
    in_known_order,
    is_same_conversation,
    outline,
    parting,
)
from gateway.terms.events import Usage
from gateway.terms.request import ChatRequest

MOST = 256
MOST_TOKENS = 8 << 20  # of all together; four bytes each

_Key = tuple[str, str, int]  # the owner, the model, a hash of the first message


class Talk:
    """One conversation on a model. Times are Unix time."""

    def __init__(self, owner: str, model: str, name: str, turn: Turn) -> None:
        self.owner = owner
        self.model = model
        self.name = name
        self.turn = turn  # the last one
        self.began = self.last = time.time()
        self.turns = 0
        self.prompt_tokens = self.cached_tokens = 0  # of all turns
        self.again_tokens = 0  # of the turns behind the first, which could be cached
        self.parting: Parting | None = None  # the last one
        self.partings: Counter[str] = Counter()  # by what

    @property
    def hit_rate(self) -> float | None:
        """What of the turns behind the first was cached; None: there is none yet."""
        return min(1.0, self.cached_tokens / self.again_tokens) if self.again_tokens else None


class TurnCounts:
    """Of all conversations since the start, by model, those that were forgotten included."""

    def __init__(self) -> None:
        self.prompt: Counter[str] = Counter()  # tokens of the turns behind the first
        self.cached: Counter[str] = Counter()  # of them, those found in the cache
        self.partings: Counter[tuple[str, str]] = Counter()  # by model and what parted


class TalkTurn(msgspec.Struct, frozen=True):
    """One answer's place in its conversation."""

    talk: Talk
    counts: TurnCounts
    number: int  # from 1
    parting: Parting | None

    def ended(self, usage: Usage) -> None:
        """It took so much."""
        talk = self.talk
        talk.prompt_tokens += usage.prompt_tokens
        if self.number > 1:
            talk.cached_tokens += usage.cached_tokens
            talk.again_tokens += usage.prompt_tokens
            self.counts.prompt[talk.model] += usage.prompt_tokens
            self.counts.cached[talk.model] += usage.cached_tokens


class Turns:
    """All conversations of a server, the quietest first."""

    def __init__(self) -> None:
        self._talks: dict[_Key, Talk] = {}
        self.counts = TurnCounts()
        self._tokens = 0

    def __iter__(self) -> Iterator[Talk]:
        return reversed(list(self._talks.values()))

    def in_order(self, request: ChatRequest, owner: str, model: str) -> tuple[ChatRequest, Outline]:
        """`request` with its tools in the order of the turn before, and its outline."""
        now = outline(request.messages, request.tools)
        talk = self._talks.get(_key(now, owner, model))
        known = talk.turn.outline if talk is not None else now
        if known.tools == now.tools or not is_same_conversation(known, now):
            return request, now
        tools = in_known_order(known.tools, request.tools)
        return msgspec.structs.replace(request, tools=tools), outline(request.messages, tools)

    def begin(
        self, request: ChatRequest, now: Outline, tokens: Sequence[int], whose: tuple[str, str, str]
    ) -> TalkTurn:
        """A turn is answered. `whose`: its owner, the model, and what the client calls it."""
        owner, model, name = whose
        key, turn, parted = _key(now, owner, model), Turn(now, array("I", tokens)), None
        talk = self._talks.pop(key, None)
        if talk is not None:
            self._tokens -= len(talk.turn.tokens)
        if talk is None or not is_same_conversation(talk.turn.outline, now):
            talk = Talk(owner, model, name, turn)
        elif (parted := parting(talk.turn, turn, _system(request))) is not None:
            talk.parting = parted
            talk.partings[parted.what] += 1
            self.counts.partings[model, parted.what] += 1
        talk.turn, talk.turns, talk.last = turn, talk.turns + 1, time.time()
        self._talks[key] = talk
        self._tokens += len(turn.tokens)
        while len(self._talks) > MOST or (self._tokens > MOST_TOKENS and len(self._talks) > 1):
            oldest = self._talks.pop(next(iter(self._talks)))
            self._tokens -= len(oldest.turn.tokens)
        return TalkTurn(talk, self.counts, talk.turns, parted)


def _key(now: Outline, owner: str, model: str) -> _Key:
    return owner, model, now.messages[0] if now.messages else 0


def _system(request: ChatRequest) -> str:
    leading = takewhile(lambda message: message.role == "system", request.messages)
    return "\n".join(message.text for message in leading)
