"""Constrained decoding, written once for every engine: which tokens may come next, by a grammar.

`GrammarTokenizer` is a loaded model's vocabulary in llguidance's form, `Grammars` compiles and
keeps grammars, and `Matcher` is one job's place in its grammar. The driver owns the matchers; an
engine sees `Mask` alone: bits, no grammar. llguidance (https://github.com/guidance-ai/llguidance)
is imported nowhere else in the backends, except for the limits in `backends.contract`.
"""

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio
import msgspec
from llguidance import LLMatcher, LLTokenizer

from backends.contract.errors import BackendError, GenerationFailed, InvalidJob
from backends.contract.grammar_limits import TOO_MUCH, control_tokens, parser_limits
from backends.contract.protocol import Constraint, Generation, Tokenizer, Tokenizing
from backends.engines.threads import cores, submit_deep

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

    def fitting(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, the first ones, the grammar allows in this order."""
        ...


class Bans:
    """Tokens that the client bans beside the grammar, as one number with a bit for each token.

    An engine is given the job without them (`unbanned`), so that its samplers and the mask can't
    contradict each other, and the choice is never made among tokens that are all forbidden.
    """

    def __init__(self, job: Generation, ends: Sequence[int], size: int) -> None:
        sampling = job.sampling
        every = (1 << size) - 1
        self.bytes = -(-size // 8)  # of a mask
        self.all = every.to_bytes(self.bytes, "little")
        self.least = job.min_tokens
        self.no_end = sampling.ban_eos
        self.ends = _bits(ends, size)
        biased = (token for token, bias in sampling.logit_bias if bias == _NEVER)
        self.banned = _bits((*sampling.banned_tokens, *biased), size)
        if sampling.allowed_tokens:
            self.banned |= every & ~_bits(sampling.allowed_tokens, size)

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


class Matcher(msgspec.Struct, eq=False):
    """One job's state in its grammar: the tokens so far, the allowed next ones, the forced ones.
    `_forces`: as many tokens as the grammar leaves no choice in are forced; 0: none ever.

    The driver passes it each token (`take`) and asks for forced tokens (`force`); an engine asks
    for the mask of the next token (`Mask`). All of it on the engine's thread, but that a mask may
    be computed on another one (`MaskThreads`) while the device works, which the next caller waits
    for.
    """

    _place: LLMatcher
    _bans: Bans
    _forces: int
    _forget: Callable[[], object]
    _ahead: deque[int] = msgspec.field(default_factory=deque)  # consumed, and not yet taken
    _said: int = 0  # tokens consumed
    complete: bool = False  # nothing can follow them
    let_go: str = ""  # why the grammar binds no more, from some token on
    _pending: "Future[None] | None" = None
    _allowed: bytes | None = None  # of the present place

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
        if not self._forces or self._bans.banned or self.complete or self.let_go:
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
        count += len(self._ahead)
        self._ahead.clear()
        if not count:
            return
        self._settle()
        self._said -= count
        self._allowed, self.complete = None, False
        if not self.let_go and not self._place.rollback(count):
            self._fail()

    def allowed(self) -> bytes:
        """See `Mask.allowed`."""
        self._settle()
        if self._allowed is None:
            self.compute()
        assert self._allowed is not None
        return self._allowed

    def fitting(self, tokens: Sequence[int]) -> int:
        """See `Mask.fitting`."""
        self._settle()
        if self.let_go:
            return len(tokens)
        return 0 if self.complete else int(self._place.validate_tokens(list(tokens)))

    def drawn(self, token: int) -> None:
        """See `Mask.drawn`."""
        self._consume(token)
        self._ahead.append(token)

    @property
    def wants_mask(self) -> bool:
        return self._allowed is None and self._pending is None

    def await_mask(self, pending: "Future[None]") -> None:
        """`pending` computes the mask of the present place."""
        self._pending = pending

    def compute(self) -> None:
        """The mask, without the GIL where it takes time. Raises InvalidJob or GenerationFailed."""
        allowed = self._bans.all if self.let_go else self._place.compute_bitmask()
        if self._place.is_error() and not self.let_go:
            self._fail()
            allowed = self._bans.all
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
        if self.let_go:
            return
        if self._place.consume_token(token):
            self.complete = self._place.is_stopped()
        else:
            self._fail()

    def _fail(self) -> None:
        """Lets go where the grammar took more than it may: what is written stands, and goes on
        freely. Raises InvalidJob where nothing is, GenerationFailed where it has no such token.
        """
        reason = self._place.get_error()
        if not any(words in reason for words in TOO_MUCH):
            raise GenerationFailed(f"the grammar could not be followed: {reason}")
        self._forget()
        if not self._said:
            raise InvalidJob(f"can't be enforced: {reason}", "response_format")
        self.let_go = f"the grammar was let go midway: {reason.partition('<state>')[0].strip()}"


class MaskThreads:
    """Those of one driver, for masks. Begins none until the first constrained job."""

    def __init__(self) -> None:
        self._count = min(THREADS, cores())
        self._pool = ThreadPoolExecutor(self._count, "masks")

    def begin(self, matchers: Iterable[Matcher]) -> None:
        """Compute the next masks of those that want one, shared out among the threads."""
        wanting = [one for one in matchers if one.wants_mask]
        for first in range(min(self._count, len(wanting))):
            part = wanting[first :: self._count]
            pending = self._pool.submit(_compute, part)
            for matcher in part:
                matcher.await_mask(pending)

    def close(self) -> None:
        """No mask is being computed once this has returned."""
        self._pool.shutdown(cancel_futures=True)


def _compute(matchers: Sequence[Matcher]) -> None:
    for matcher in matchers:
        with suppress(BackendError):  # raised again when the mask is requested
            matcher.compute()


# Written before a text that is tokenized alone, so that no tokenizer takes its beginning for that
# of a document and puts a space there; the tokens it takes are left out again.
_MARK = "\x02"


class EngineTokenizer(Tokenizer, Tokenizing, Protocol):
    """The part of `engine.Engine` that describes tokens; any thread may call it."""


class _Spelled:
    """What `LLTokenizer` takes for a tokenizer (llguidance's `TokenizerWrapper`)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: EngineTokenizer) -> None:
        size = vocabulary.info.vocab_size
        self.ends = [token for token in range(size) if vocabulary.ends(token)]
        self.eos_token_id = next(iter(self.ends), size - 1)
        self.special_token_ids = sorted({*self.ends, *control_tokens(vocabulary).values()})
        self.tokens = [vocabulary.piece(token) for token in range(size)]
        for token in self.special_token_ids:  # an end token may have no text
            self.tokens[token] = self.tokens[token] or b"<token-%d>" % token
        self._tokenize = partial(vocabulary.tokenize, special=False)
        self._mark = self._tokenize(_MARK)

    def __call__(self, text: str | bytes) -> list[int]:
        """As one that stands after others."""
        whole = text.decode(errors="replace") if isinstance(text, bytes) else text
        tokens, marked = self._tokenize(_MARK + whole), len(self._mark)
        apart = tokens[:marked] == self._mark
        return list(tokens[marked:] if apart else self._tokenize(whole))


class GrammarTokenizer:
    """A model's vocabulary in llguidance's form. Made on a worker thread: llguidance keeps the GIL
    for 2 to 3 us a token.

    It is made of what each engine reports of its tokens: their bytes, which of them are control
    tokens, which end a generation, and how a text is tokenized. The last is what makes forced
    tokens those that the model's own tokenizer makes of their text.
    """

    def __init__(self, vocabulary: EngineTokenizer) -> None:
        spelled = _Spelled(vocabulary)
        self.size = vocabulary.info.vocab_size
        self.ends = spelled.ends
        self.tokens = LLTokenizer(
            spelled,  # type: ignore[arg-type]  # it is asked for by its attributes
            n_vocab=self.size,
            eos_token=self.ends or None,
        )


KEPT = 128  # compiled grammars
KEPT_BYTES = 4 << 20  # of their texts; a compiled one takes some times its text
COMPILERS = 2  # a costly grammar holds up only others like it
STACK = 256 << 20  # bytes; of address space, of which only what is reached becomes memory


class Compiling(msgspec.Struct, eq=False):
    """One grammar under way, and how many jobs wait for it."""

    future: "asyncio.Future[LLMatcher]"
    waiting: int = 0


class Grammars:
    """The compiled grammars of one model, each once, by its text. Only the event loop's thread
    calls it.

    Compiling is off the event loop and off the engine's thread, on threads with stacks deep enough
    for any grammar that `backends.contract.bounds` lets through: llguidance's compiler recurses
    into rules and `$ref`s (about 5 KB a level), and a stack that overflows ends the process. It
    doesn't hold the GIL.
    """

    def __init__(self, vocabulary: EngineTokenizer) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: GrammarTokenizer | None = None
        self._making = threading.Lock()
        self._threads = ThreadPoolExecutor(COMPILERS, "grammar")
        self._known: OrderedDict[str, LLMatcher] = OrderedDict()
        self._under_way: dict[str, Compiling] = {}

    @property
    def kept(self) -> int:
        """How many compiled grammars are kept."""
        return len(self._known)

    async def matcher(self, job: Generation, constraint: Constraint) -> Matcher:
        """For one job. Raises InvalidJob for a grammar that can't be compiled."""
        compiled = await self._compiled(constraint.grammar)
        assert self._tokenizer is not None  # a grammar was compiled with it
        wanted = constraint.fast_forward and job.logprobs is None
        forces = self._vocabulary.info.forces_from if wanted else 0
        bans = Bans(job, self._tokenizer.ends, self._tokenizer.size)
        # Copies share a lexer: once it is full the next job needs another. Any thread may say so.
        forget = partial(self._known.pop, constraint.grammar, None)
        return Matcher(compiled.deep_copy(), bans, forces, forget)

    async def aclose(self) -> None:
        """No thread asks the vocabulary for anything once this has returned."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(self._threads.shutdown, cancel_futures=True))

    async def _compiled(self, grammar: str) -> LLMatcher:
        if (known := self._known.pop(grammar, None)) is not None:
            self._known[grammar] = known  # as the last
            return known
        compiling = self._under_way.get(grammar) or self._begin(grammar)
        compiling.waiting += 1
        try:
            await asyncio.wait([compiling.future])  # a cancelled caller leaves it to the others
            return compiling.future.result()
        finally:
            compiling.waiting -= 1
            if not compiling.waiting:
                self._ended(grammar, compiling.future)

    def _begin(self, grammar: str) -> Compiling:
        compile_ = partial(self._compile, grammar)
        future = asyncio.wrap_future(submit_deep(self._threads, STACK, compile_))
        compiling = self._under_way[grammar] = Compiling(future)
        return compiling

    def _ended(self, grammar: str, future: "asyncio.Future[LLMatcher]") -> None:
        """No job waits for it any more: it is done, or cancelled."""
        del self._under_way[grammar]
        cancelled = future.cancel() or future.cancelled()
        if not cancelled and future.exception() is None:
            self._keep(grammar, future.result())

    def _keep(self, grammar: str, compiled: LLMatcher) -> None:
        self._known[grammar] = compiled
        # The names at once: an engine's thread may forget one meanwhile (`Matcher`).
        while len(self._known) > KEPT or sum(map(len, tuple(self._known))) > KEPT_BYTES:
            self._known.popitem(last=False)

    def _compile(self, grammar: str) -> LLMatcher:
        """On a thread. The first mask is computed too: it is where most of what a grammar costs at
        all is paid, and copies have it.
        """
        with self._making:
            if self._tokenizer is None:
                self._tokenizer = GrammarTokenizer(self._vocabulary)
        compiled = LLMatcher(self._tokenizer.tokens, grammar, log_level=0, limits=parser_limits())
        if not compiled.is_error():
            compiled.compute_bitmask()
        if compiled.is_error():
            raise InvalidJob(f"can't be enforced: {compiled.get_error()}", "response_format")
        return compiled
