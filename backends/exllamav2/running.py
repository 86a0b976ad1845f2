"""One request of ours, which may take several jobs of exllamav2.

exllamav2 reserves cache pages for all that a job may write when it starts. A request without a
limit would so keep the rest of the context for itself; instead it gets `STRETCH` tokens at a time.
Where a job ends the next one begins with all that was written, whose pages are still in the cache.
Tokens that are forced are such a new beginning too.
"""

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from backends.driver import Accounting, Token
from backends.exllamav2.logprobs import Witness
from backends.protocol import Generation, TokenLogprob

STRETCH = 2048  # tokens


class Running:
    """`prompt` is the request's as the generator takes it, `settings` its sampler's state."""

    def __init__(self, key: int, job: Generation, prompt: list[int], settings: Any) -> None:
        self.key = key
        self.job = job
        self.prompt = prompt
        self.settings = settings
        self.embeddings: list[Any] = []  # of its pictures
        self.limit = 0  # tokens that fit, or are wanted
        self.written: list[int] = []  # after the prompt
        self.current: Any = None  # the ExLlamaV2DynamicJob that writes on; None: there is none
        self.witness: Witness | None = None  # where logprobs are wanted
        self._ready: deque[Token] = deque()  # of what is written, not handed over yet
        self._first: Any = None  # the first job: it knows what was in the cache
        self._dice: random.Random | None = None

    @property
    def ready(self) -> bool:
        return bool(self._ready)

    @property
    def left(self) -> int:
        """How many more tokens may be written."""
        return self.limit - len(self.written)

    def begin(self, current: Any, witness: Witness | None) -> None:
        """`current` writes on. The dice are those of the first job: its seed counts for all."""
        self._first = self._first or current
        self._dice = self._dice or current.rng
        current.rng = self._dice
        self.current, self.witness = current, witness

    def write(self, tokens: Sequence[int]) -> None:
        """The present job has drawn `tokens`."""
        for token in tokens:
            self.written.append(token)
            self._ready.append(Token(self.key, token, self._told()))

    def _told(self) -> TokenLogprob | None:
        return self.witness.told.popleft() if self.witness is not None else None

    def force(self, tokens: Sequence[int]) -> None:
        """`tokens` follow what was handed over; what was written beyond that is forgotten."""
        if self._ready:
            del self.written[-len(self._ready) :]
            self._ready.clear()
        for token in tokens[: self.left]:
            self.written.append(token)
            self._ready.append(Token(self.key, token))

    def end(self, token: int) -> None:
        """No more fits. Whoever counts otherwise (pictures take more room than their placeholders)
        learns it from an end token.
        """
        self._ready.append(Token(self.key, token))

    def hand_over(self) -> Token:
        """The oldest token that is ready."""
        return self._ready.popleft()

    def cost(self, page_size: int) -> Accounting:
        prompt, first = len(self.prompt), self._first
        cached = first.cached_pages * page_size + first.cached_tokens if first else 0
        return Accounting(prompt_tokens=prompt, cached_tokens=min(cached, prompt))
