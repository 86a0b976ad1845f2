"""Compiled grammars, each once for a model, by its text.

Compiling is off the event loop and off the engine's thread, on two threads with stacks deep enough
for any grammar that `backends.bounds` lets through: llguidance's compiler recurses into rules and
`$ref`s (about 5 KB a level), and a stack that overflows ends the process. It doesn't hold the GIL.
"""

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

import anyio
from llguidance import LLMatcher

from backends.constraints.limits import parser_limits
from backends.constraints.matcher import Bans, Matcher
from backends.constraints.tokenizer import GrammarTokenizer, Vocabulary
from backends.errors import InvalidJob
from backends.protocol import Constraint, Generation

KEPT = 128  # compiled grammars
KEPT_BYTES = 4 << 20  # of their texts; a compiled one takes some times its text
COMPILERS = 2  # a costly grammar holds up only others like it
STACK = 256 << 20  # bytes; of address space, of which only what is reached becomes memory
_stack = threading.Lock()  # of `threading.stack_size`, which is the process's


class Compiling:
    """One grammar under way, and how many jobs wait for it."""

    def __init__(self, future: "Future[LLMatcher]") -> None:
        self.future = future
        self.waiting = 0


class Grammars:
    """Those of one model. Only the event loop's thread calls it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: GrammarTokenizer | None = None
        self._making = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
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
        return Matcher(compiled.deep_copy(), bans, forces=forces)

    async def aclose(self) -> None:
        """No thread asks the vocabulary for anything once this has returned."""
        if self._threads is not None:
            threads, self._threads = self._threads, None
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(lambda: threads.shutdown(cancel_futures=True))

    async def _compiled(self, grammar: str) -> LLMatcher:
        if (known := self._known.get(grammar)) is not None:
            self._known.move_to_end(grammar)
            return known
        compiling = self._under_way.get(grammar) or self._begin(grammar)
        compiling.waiting += 1
        try:
            await _done(compiling.future)
            return compiling.future.result()
        finally:
            compiling.waiting -= 1
            if not compiling.waiting:
                self._ended(grammar, compiling)

    def _begin(self, grammar: str) -> Compiling:
        compiling = Compiling(self._submit(grammar))
        self._under_way[grammar] = compiling
        return compiling

    def _ended(self, grammar: str, compiling: Compiling) -> None:
        """No job waits for it any more: it is done, or cancelled."""
        del self._under_way[grammar]
        if compiling.future.cancel() or not compiling.future.done():
            return
        if compiling.future.exception() is None:
            self._keep(grammar, compiling.future.result())

    def _keep(self, grammar: str, compiled: LLMatcher) -> None:
        self._known[grammar] = compiled
        while len(self._known) > KEPT or sum(map(len, self._known)) > KEPT_BYTES:
            self._known.popitem(last=False)

    def _submit(self, grammar: str) -> "Future[LLMatcher]":
        if self._threads is None:
            self._threads = ThreadPoolExecutor(COMPILERS, "grammar")
        with _stack:
            before = threading.stack_size(STACK)
            try:
                return self._threads.submit(self._compile, grammar)
            finally:
                threading.stack_size(before)

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


async def _done(future: "Future[LLMatcher]") -> None:
    """A cancelled caller leaves `future` to the other waiters."""
    waiter = asyncio.wrap_future(future)
    waiter.add_done_callback(lambda one: one.cancelled() or one.exception())
    await asyncio.wait([waiter])
