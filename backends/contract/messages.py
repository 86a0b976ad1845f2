"""The messages between the two ends of a container. All are frozen structs, of which
`backends.contract.framing` makes bytes: so the engine's end may live in another process.

    the gateway's end                                        the engine's end
    (`backends.places.container`)                            (`backends.engines.driver`)

    Begin(key, job) ──────────────────────────────▶   compiles its grammar, waits in line, runs it
         ◀── Began(key) ───────────────────────────   only of a job with a constraint
         ◀── Outcomes ─────────────────────────────   one for each step, with all jobs' outputs
    Finish(key) ──────────────────────────────────▶   its `Ended` comes in one of these
    Leave(key) ───────────────────────────────────▶   the device drops it
         ◀── Left(key) ────────────────────────────
    ReadSlots, SaveSlot, RestoreSlot, EraseSlot ──▶   carried out between two steps
         ◀── Answered(number, ...) ────────────────
    Encode(key, inputs) ──────────────────────────▶   of a model that makes vectors or ranks
         ◀── Encoded(key, ...) ────────────────────
    Keep ─────────────────────────────────────────▶   its conversations are kept from now on
         ◀── KeptAsked(number, ...) ───────────────   what its engine asks the store
    KeptAnswered(number, ...) ────────────────────▶
         ◀── Broke(reason) ────────────────────────   before the errors that it causes
    Close ────────────────────────────────────────▶
         ◀── Closed ───────────────────────────────
         ◀── Lost(reason) ─────────────────────────   in place of all that is to come

A job's key and an order's number are chosen by the gateway's end, and used once. After a job's
`Ended` or `Failure` nothing more comes of it but `Left`, where it is to leave all the same.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec
import numpy as np

from backends.contract.beginnings import Bytes, SavedSlot, Taken, TakenFacts, Tier, packed
from backends.contract.encoder import EncoderInput
from backends.contract.errors import (
    BackendError,
    BackendMissing,
    EngineLost,
    GenerationFailed,
    InvalidJob,
    LoadFailed,
    NotAble,
    OutOfMemory,
    PromptTooLong,
    UnsupportedModel,
)
from backends.contract.protocol import Generation, ModelInfo, Output, SlotState
from config.values import alike

# Errors that are a text alone, by their names. What isn't told apart is the nearest above it.
_KINDS: Mapping[str, type[BackendError]] = {
    kind.__name__: kind
    for kind in (
        *(BackendError, BackendMissing, EngineLost, GenerationFailed),
        *(LoadFailed, NotAble, OutOfMemory, UnsupportedModel),
    )
}


class PortMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What crosses between the two ends."""


class Failure(PortMessage, frozen=True):
    """A `BackendError` on its way. `param`: of an InvalidJob; the counts: of a PromptTooLong."""

    kind: str
    text: str
    param: str | None = None
    prompt_tokens: int = 0
    context_length: int = 0

    @classmethod
    def of(cls, error: BackendError) -> "Failure":
        """What `error` says."""
        match error:
            case PromptTooLong():
                counts = error.prompt_tokens, error.context_length
                return cls("PromptTooLong", str(error), error.param, *counts)
            case InvalidJob():
                return cls("InvalidJob", str(error), error.param)
        names = (kind.__name__ for kind in type(error).__mro__)
        return cls(next(name for name in names if name in _KINDS), str(error))

    def error(self) -> BackendError:
        """The error, to be raised where it came to."""
        match self.kind:
            case "PromptTooLong":
                return PromptTooLong(self.prompt_tokens, self.context_length)
            case "InvalidJob":
                return InvalidJob(self.text, self.param)
        return _KINDS.get(self.kind, BackendError)(self.text)


class OfJob(PortMessage, frozen=True):
    """About a job, by its key."""

    key: int


class Numbered(PortMessage, frozen=True):
    """A question or an answer, by its number."""

    number: int


class Begin(OfJob, frozen=True):
    """A job joins the line. It is within `backends.contract.bounds`."""

    job: Generation


class Finish(OfJob, frozen=True):
    """A job ends before the next step, with the cause "stopped"; harmless when it is over."""


class Leave(OfJob, frozen=True):
    """A job's reader has gone: answered with `Left` when the device doesn't work for it."""


class ReadSlots(Numbered, frozen=True):
    """Answered with `SlotStates`, between two steps."""


class SaveSlot(Numbered, frozen=True):
    """Answered with a `SavedSlot` once the slot is idle."""

    slot: int


class RestoreSlot(Numbered, frozen=True, eq=False):
    """Answered with `SlotTokens` once the slot is idle. `data`: of a `SavedSlot`."""

    slot: int
    data: Bytes


class EraseSlot(Numbered, frozen=True):
    """Answered with `SlotTokens` once the slot is idle."""

    slot: int


class Withdraw(Numbered, frozen=True):
    """Who gave the order has left: it is not carried out any more, nor answered."""


class Close(PortMessage, frozen=True):
    """The last command: the device is given back, and all that is left gets an error."""


class Encode(OfJob, frozen=True):
    """To a model that makes vectors or ranks: answered with `Encoded`, or `Left` after `Leave`."""

    inputs: tuple[EncoderInput, ...]


class Keep(PortMessage, frozen=True):
    """Its conversations outlive their slots: the store may be asked. Before the first `Begin`."""


class TakenHead(TakenFacts, frozen=True, array_like=True):
    """A `Taken` without its bytes. `sizes`: of its buffers."""

    tokens: bytes
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, taken: Taken) -> "TakenHead":
        """What is to be said of it before its bytes come."""
        return alike(cls, taken)(tokens=packed(taken.tokens))

    def empty(self) -> Taken:
        """With room for the bytes that are to come. Raises ValueError where it contradicts
        itself.
        """
        if len(self.sizes) != 1 + len(self.places):
            raise ValueError("a snapshot without its place")
        buffers = tuple(np.empty(size, np.uint8) for size in self.sizes)
        return alike(Taken, self)(tokens=array("q", self.tokens), buffers=buffers)


class FoundThere(PortMessage, frozen=True):
    """A beginning that can be read by the number of its question; see `beginnings.Found`."""

    start: int
    tier: Tier
    head: TakenHead


class ComingThere(PortMessage, frozen=True):
    """One is being read from disk: ask again."""


class NothingThere(PortMessage, frozen=True):
    """There is none; or no, or what was asked for is gone."""


class KeptBytes(PortMessage, frozen=True, eq=False):
    """A piece of one."""

    data: Bytes


class Welcome(PortMessage, frozen=True):
    """Yes."""


KeptAnswer: TypeAlias = FoundThere | ComingThere | NothingThere | KeptBytes | Welcome


class KeptAnswered(Numbered, frozen=True):
    """To the `KeptAsked` of that number."""

    answer: KeptAnswer


SlotOrder: TypeAlias = ReadSlots | SaveSlot | RestoreSlot | EraseSlot
Command: TypeAlias = (
    Begin | Finish | Leave | SlotOrder | Withdraw | Close | Encode | Keep | KeptAnswered
)


class Began(OfJob, frozen=True):
    """The grammar of a job's constraint is compiled, and the job is in line."""


class Outcomes(PortMessage, frozen=True):
    """What one step gave, for all jobs: by the job's key, in order."""

    outputs: tuple[tuple[int, Output | Failure], ...]


class Left(OfJob, frozen=True):
    """The device no longer works for this job."""


class SlotStates(PortMessage, frozen=True):
    """All slots, in order."""

    states: tuple[SlotState, ...]


class SlotTokens(PortMessage, frozen=True):
    """How many tokens were restored, or erased."""

    tokens: int


SlotAnswer: TypeAlias = SlotStates | SavedSlot | SlotTokens


class Answered(Numbered, frozen=True):
    """What became of an order."""

    answer: SlotAnswer | Failure


class Broke(PortMessage, frozen=True):
    """The model can't generate any more."""

    reason: str


class Closed(PortMessage, frozen=True):
    """The device is free. The last event."""


class Lost(PortMessage, frozen=True):
    """The other end is gone, and the device free: no command is carried out any more, and none is
    answered. The last event; the gateway's own port says so, for who is gone says nothing.
    `unreached`: see `Leasable.is_unreached`.
    """

    reason: str
    unreached: bool = False


class Encoded(OfJob, frozen=True):
    """For each input, in their order, what `EncoderContainer.encode` gives; or why it doesn't."""

    vectors: tuple[bytes, ...] = ()
    failure: Failure | None = None


class FindLongest(PortMessage, frozen=True):
    """`Beginnings.longest`; tokens as `shelf.packed` has them. Answered with `FoundThere`,
    `ComingThere` or `NothingThere`.
    """

    owner: str
    tokens: bytes
    than: int


class ReadFound(PortMessage, frozen=True):
    """Of what the question `found` was answered with the next piece. Answered with `KeptBytes`."""

    found: int


class FoundUsed(PortMessage, frozen=True):
    """`Beginnings.put_back`. Not answered."""

    found: int
    tokens: int
    seconds: float


class IsWanted(PortMessage, frozen=True):
    """`Beginnings.wants`. Answered with `Welcome` or `NothingThere`, as all that follow."""

    owner: str
    tokens: bytes
    size: int
    seconds: float


class Offer(PortMessage, frozen=True):
    """A beginning is about to come, in pieces, by the number of this question. `seconds`: that
    taking it out took. Not answered: its first piece is.
    """

    head: TakenHead
    seconds: float


class OfferedBytes(PortMessage, frozen=True, eq=False):
    """Its next piece; behind the last one it is kept: `Beginnings.keep`."""

    offer: int
    data: Bytes


KeptQuestion: TypeAlias = FindLongest | ReadFound | FoundUsed | IsWanted | Offer | OfferedBytes


class KeptAsked(Numbered, frozen=True):
    """An engine asks the store of conversations. Numbers are the engine's end's."""

    question: KeptQuestion


Event: TypeAlias = Began | Outcomes | Left | Answered | Broke | Closed | Lost | Encoded | KeptAsked


class Port(Protocol):
    """The engine's end, as the gateway's sees it. Used on the event loop's thread."""

    @property
    def info(self) -> ModelInfo: ...

    def connect(self, receive: Callable[[Event], None]) -> None:
        """`receive` gets all events from now on, on the event loop's thread, in their order."""
        ...

    def send(self, command: Command) -> None:
        """Does not wait."""
        ...
