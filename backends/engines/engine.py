"""The driver's interface to an engine: one model on one device, stepped by one thread."""

from collections.abc import Collection, Sequence
from typing import Protocol, TypeAlias

import msgspec

from backends.contract.beginnings import Tier
from backends.contract.errors import BackendError
from backends.contract.protocol import (
    Generation,
    PromptProgress,
    Scored,
    TokenLogprob,
)
from backends.engines.constraints import EngineTokenizer, Mask


class Token(msgspec.Struct, frozen=True, gc=False):
    """One token a step produced for job `key`. `drafted`: how many tokens were drafted to come here
    and behind, on the first of them that is drawn; `accepted`: it is one that was drafted.
    """

    key: int
    id: int
    logprob: TokenLogprob | None = None
    drafted: int = 0
    accepted: bool = False


class PromptScored(msgspec.Struct, frozen=True):
    """The next tokens of job `key`'s prompt, in order; all of them before its first `Token`."""

    key: int
    scored: Scored


class PromptRead(msgspec.Struct, frozen=True):
    """How much of job `key`'s prompt is processed. To a job that requests progress from its
    beginning to its end; to others while it takes more than a piece, or waits for another's.
    """

    key: int
    progress: PromptProgress


class PutBack(msgspec.Struct, frozen=True):
    """Of job `key`'s prompt, so many tokens were put back from the store (`backends.places.kept`)
    and not computed. `tier`: where they lay.
    """

    key: int
    tokens: int
    tier: Tier


class JobFailed(msgspec.Struct, frozen=True):
    """Job `key` can't go on, which only the engine knows. The driver releases it."""

    key: int
    error: BackendError


StepResult: TypeAlias = Token | PromptScored | PromptRead | PutBack | JobFailed


class Owned(Protocol):
    """What the thread itself does with its engine."""

    def recover(self) -> None:
        """After a failed step: forget all jobs and start anew."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...


class Engine(EngineTokenizer, Owned, Protocol):
    """One model on one device. Only one thread calls it, except as a tokenizer."""

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        """Take a job; never more than `info.max_concurrent` at once, and none together with others
        whose `info.adapter_scales` are different. Returns the tokens of its
        prompt, pictures included; if they are too many the job is released at once. `mask`: what
        each of its tokens may be; only where `info.constrains`.

        Raises InvalidJob.
        """
        ...

    def step(self) -> Sequence[StepResult]:
        """One forward pass for all jobs. May be empty while prompts are being computed.

        Where tokens were drafted (`backends.engines.speculation`) a pass has the logits of several
        tokens of a job. It hands over the first; the steps that follow hand over the next of these
        jobs, without a pass.

        Raises OutOfMemory or GenerationFailed; then all jobs have failed and `recover` is called.
        """
        ...

    def force(self, key: int, tokens: Sequence[int]) -> None:
        """Make job `key` continue with `tokens`, computed together as a prompt is; the coming step
        returns them like any others. What an engine has drawn ahead is forgotten.
        """
        ...

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        """Take back the newest `count` tokens that were handed over for job `key`, and all that are
        not yet; the next one is none of `banned`, unless no other may come. Only where
        `info.rewinds`.
        """
        ...

    def release(self, key: int) -> int:
        """Forget a job. When this returns, the device does no more work for it. Returns how many
        tokens of its prompt were found in the KV cache.
        """
        ...
