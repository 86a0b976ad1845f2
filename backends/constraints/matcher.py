"""One job's state in its grammar: the tokens so far, the allowed next ones, the forced ones.

The driver passes it each token (`take`) and asks for forced tokens (`force`); an engine asks for
the mask of the next token (`Mask`). All of it on the engine's thread, but that a mask may be
computed on another one (`MaskThreads`) while the device works, which the next caller waits for.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

import msgspec
from llguidance import LLMatcher

from backends.errors import BackendError, GenerationFailed, InvalidJob
from backends.processors import cores
from backends.protocol import Generation

_NEVER = float("-inf")
THREADS = 4  # at most; a mask takes some ten microseconds, and seldom milliseconds


class Mask(Protocol):
    """Which tokens a job may draw next."""

    def allowed(self) -> bytes:
        """One bit per token: bit t % 8 of byte t // 8, as many bytes as the vocabulary's tokens
        need. At least one is set. Waits for it where it is being computed.

        Raises InvalidJob or GenerationFailed, which is the job's failure alone.
        """
        ...

    def drawn(self, token: int) -> None:
        """For an engine that draws on before it hands the token over: what follows it is asked for
        next.
        """
        ...

    def taken_back(self, count: int) -> None:
        """The last `count` tokens that were drawn so are not handed over, but drawn anew."""
        ...


class Bans:
    """Tokens that the client bans beside the grammar, as one number with a bit for each token.

    An engine is given the job without them (`unbanned`), so that its samplers and the mask can't
    contradict each other, and the choice is never made among tokens that are all forbidden.
    """

    def __init__(self, job: Generation, ends: Sequence[int], size: int) -> None:
        sampling = job.sampling
        self.bytes = -(-size // 8)  # of a mask
        self.least = job.min_tokens
        self.no_end = sampling.ban_eos
        self.ends = _bits(ends, size)
        biased = (token for token, bias in sampling.logit_bias if bias == _NEVER)
        self.banned = _bits((*sampling.banned_tokens, *biased), size)
        if sampling.allowed_tokens:
            self.banned |= _bits(range(size), size) & ~_bits(sampling.allowed_tokens, size)

    def applied(self, allowed: bytes, said: int) -> bytes:
        """Of the tokens a grammar allows after `said` tokens, those that may come. Where it allows
        nothing but to end, that may come. Raises InvalidJob where nothing is left.
        """
        held = self.no_end or said < self.least
        if not held and not self.banned:
            return allowed
        left = int.from_bytes(allowed, "little") & ~self.banned
        if held:
            left = left & ~self.ends or left
        if not left:
            reason = "no token is left that the grammar allows and the request doesn't forbid"
            raise InvalidJob(reason, "logit_bias")
        return left.to_bytes(len(allowed), "little")


def unbanned(job: Generation) -> Generation:
    """The job without what `Bans` handles."""
    finite = tuple(pair for pair in job.sampling.logit_bias if pair[1] != _NEVER)
    sampling = msgspec.structs.replace(
        job.sampling, logit_bias=finite, banned_tokens=(), allowed_tokens=(), ban_eos=False
    )
    return msgspec.structs.replace(job, sampling=sampling, min_tokens=0)


def _bits(tokens: Iterable[int], size: int) -> int:
    marked = bytearray(-(-size // 8))
    for token in tokens:
        marked[token >> 3] |= 1 << (token & 7)
    return int.from_bytes(marked, "little")


class Matcher:
    """See above. `forces`: as many tokens as the grammar leaves no choice in are forced; 0: none
    ever.
    """

    def __init__(self, place: LLMatcher, bans: Bans, *, forces: int) -> None:
        self._place = place
        self._bans = bans
        self._forces = forces
        self._ahead: deque[int] = deque()  # consumed, and not yet taken
        self._said = 0  # tokens consumed
        self.complete = False  # nothing can follow them
        self._pending: Future[None] | None = None
        self._allowed: bytes | None = None  # of the present place

    # -- the driver's side -----------------------------------------------------------------------

    def take(self, token: int) -> None:
        """`token` is part of the output. Raises GenerationFailed where the grammar has no such."""
        if self._ahead:
            expected = self._ahead.popleft()
            assert token == expected, "an engine hands over what it was forced to, and what it drew"
            return
        self._consume(token)

    def force(self, tokens: Sequence[int] = ()) -> tuple[int, ...]:
        """What must come next: `tokens`, whatever an engine has drawn ahead, and after them what
        the grammar leaves no choice in. Raises GenerationFailed where it has no such `tokens`.
        """
        if self._ahead and not tokens:
            return ()
        self.rewind(0)
        self._say(tokens)
        self._say(self._no_choice())
        return tuple(self._ahead)

    def _say(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._consume(token)
            self._ahead.append(token)

    def _no_choice(self) -> Sequence[int]:
        if not self._forces or self._bans.banned or self.complete:
            return ()
        self._settle()
        tokens = self._place.compute_ff_tokens()
        return tokens if len(tokens) >= self._forces else ()

    @property
    def stopped(self) -> bool:
        """Nothing can follow what was taken."""
        return self.complete and not self._ahead

    def rewind(self, count: int) -> None:
        """The last `count` tokens taken are void, nor was what an engine has drawn ahead."""
        back = count + len(self._ahead)
        self._ahead.clear()
        self._back(back)

    def _back(self, count: int) -> None:
        if not count:
            return
        self._settle()
        self._said -= count
        self._allowed, self.complete = None, False
        if not self._place.rollback(count):
            raise self._failure()

    # -- the engine's side -----------------------------------------------------------------------

    def allowed(self) -> bytes:
        """See `Mask.allowed`."""
        self._settle()
        if self._allowed is None:
            self.compute()
        assert self._allowed is not None
        return self._allowed

    def drawn(self, token: int) -> None:
        """See `Mask.drawn`."""
        self._consume(token)
        self._ahead.append(token)

    def taken_back(self, count: int) -> None:
        """See `Mask.taken_back`."""
        assert count <= len(self._ahead)
        for _ in range(count):
            self._ahead.pop()
        self._back(count)

    # -- masks -----------------------------------------------------------------------------------

    @property
    def wants_mask(self) -> bool:
        return self._allowed is None and self._pending is None

    def await_mask(self, pending: "Future[None]") -> None:
        """`pending` computes the mask of the present place."""
        self._pending = pending

    def compute(self) -> None:
        """The mask, without the GIL where it takes time. Raises InvalidJob or GenerationFailed."""
        allowed = self._place.compute_bitmask()
        if self._place.is_error():
            raise self._failure()
        self._allowed = self._bans.applied(allowed[: self._bans.bytes], self._said)

    def _settle(self) -> None:
        """Wait for the thread that computes the mask; its errors are raised again by `compute`."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.exception()

    def _consume(self, token: int) -> None:
        self._settle()
        self._said += 1
        self._allowed = None
        if not self._place.consume_token(token):
            raise self._failure()
        self.complete = self._place.is_stopped()

    def _failure(self) -> GenerationFailed:
        return GenerationFailed(f"the grammar could not be followed: {self._place.get_error()}")


class MaskThreads:
    """Those of one driver, for masks. Begins none until the first constrained job."""

    def __init__(self) -> None:
        self._count = min(THREADS, cores())
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, matchers: Iterable[Matcher]) -> None:
        """Compute the next masks of those that want one, shared out among the threads."""
        wanting = [one for one in matchers if one.wants_mask]
        if wanting and self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, "masks")
        for first in range(min(self._count, len(wanting))):
            part = wanting[first :: self._count]
            assert self._pool is not None
            pending = self._pool.submit(_compute, part)
            for matcher in part:
                matcher.await_mask(pending)

    def close(self) -> None:
        """No mask is being computed once this has returned."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _compute(matchers: Sequence[Matcher]) -> None:
    for matcher in matchers:
        with suppress(BackendError):  # raised again when the mask is requested
            matcher.compute()
