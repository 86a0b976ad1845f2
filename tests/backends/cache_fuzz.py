"""Fuzzing of an engine's cache: what is found there is what would be computed. Random prompts that
begin alike, several answers to one, answers cut short, continued by force and taken back in part,
in random company; each against a cold cache. A tool of tests.
"""

import random
from collections.abc import Callable

import msgspec
import numpy
from numpy.typing import NDArray

from backends.contract.protocol import Generation
from backends.engines.engine import Engine, PromptRead, PutBack, Token
from tests.backends.container_contract import GREEDY


class Asked(msgspec.Struct):
    """A job, and what has been drawn for it."""

    job: Generation
    text: list[int]  # its prompt, without pictures
    wanted: int  # tokens
    drawn: list[Token] = []


class Fuzz:
    """Keeps the engine busy with jobs that share beginnings, and lets go of some early."""

    def __init__(self, tested: Engine, rng: random.Random) -> None:
        self.engine = tested
        self.rng = rng
        self.running: dict[int, Asked] = {}
        self.answered: list[Asked] = []
        self.found = 0
        self.length = tested.info.context_length
        self._known = [rng.choices(range(97, 123), k=self.length * 5 // 8) for _ in range(3)]

    def run(self, jobs: int) -> None:
        for key in range(jobs):
            while len(self.running) == self.engine.info.max_concurrent:
                self._step()
            self._admit(key)
            for _ in range(self.rng.choice((0, 0, 1, 3, 9))):
                self._step()
            self.between()
        while self.running:
            self._step()

    def _admit(self, key: int) -> None:
        """A new prompt, or another answer to one that is being answered."""
        if self.running and not self.rng.randrange(4):
            other = self.rng.choice(list(self.running.values()))
            text, job = other.text, other.job
        else:
            text = self._prompt()
            job = Generation(
                prompt=tuple(text), sampling=GREEDY, logprobs=self.engine.info.vocab_size
            )
            job = msgspec.structs.replace(job, marks=self._marks(len(text)))
            if not self.rng.randrange(3):  # what makes it take snapshots of the answer, too
                sampling = msgspec.structs.replace(GREEDY, banned_strings=("none",))
                job = msgspec.structs.replace(job, sampling=sampling)
            job = self.dressed(job)
        if self.engine.admit(key, job) + 60 >= self.length:
            self.engine.release(key)
        else:
            wanted = self.rng.randrange(1, 60 if job.sampling.banned_strings else 30)
            self.running[key] = Asked(job, text, wanted)

    def between(self) -> None:
        """What else an engine can do."""

    def take_turns(self, away: Callable[[], None]) -> None:
        """Three conversations of three turns, one after the other; `away` is called between two
        turns.
        """
        known = [self.rng.choices(range(97, 123), k=60) for _ in range(3)]
        for turn in range(3):
            for number, text in enumerate(known):
                job = Generation(
                    prompt=tuple(text), sampling=GREEDY, logprobs=self.engine.info.vocab_size
                )
                self.engine.admit(1_000 + 10 * turn + number, job)
                self.running[1_000 + 10 * turn + number] = asked = Asked(job, text, 4)
                while not asked.drawn or len(asked.drawn) < asked.wanted:
                    self._pass()
                drawn = [token.id for token in asked.drawn]
                known[number] = [*text, *drawn, *self.rng.choices(range(97, 123), k=5)]
                away()

    def dressed(self, job: Generation) -> Generation:
        """What else a job may have."""
        return job

    def _marks(self, length: int) -> tuple[int, ...]:
        """Where the renderer might say that prompts part; hints, whatever they are."""
        return tuple(self.rng.randrange(2 * length) for _ in range(self.rng.choice((0, 1, 3))))

    def _prompt(self) -> list[int]:
        """The beginning of something known, mostly, and something new; it is known from then on."""
        known = self.rng.choice(self._known)
        kept = known[: self.rng.choice((len(known), self.rng.randrange(len(known))))]
        new = self.rng.randrange(1, self.length // 8)
        prompt = [*kept, *self.rng.choices(range(97, 123), k=new)][: self.length - 70]
        self._remember(prompt)
        return prompt

    def _remember(self, text: list[int]) -> None:
        self._known[self.rng.randrange(len(self._known))] = text

    def _pass(self) -> None:
        for token in self.engine.step():
            if isinstance(token, PromptRead | PutBack):
                continue
            assert isinstance(token, Token)
            if token.key not in self.running:
                continue
            asked = self.running[token.key]
            asked.drawn.append(token)
            if len(asked.drawn) >= asked.wanted and token.logprob is not None:
                del self.running[token.key]
                self.answered.append(asked)
                self._remember([*asked.text, *(token.id for token in asked.drawn)])
                self.found += self.engine.release(token.key)

    def _step(self) -> None:
        self._pass()
        if self.running and not self.rng.randrange(12):  # a client has left
            left = self.rng.choice(list(self.running))
            del self.running[left]
            self.engine.release(left)
        if self.running and not self.rng.randrange(6):  # an answer goes back and on otherwise
            self._rewind(*self.rng.choice(list(self.running.items())))
        if self.running and not self.rng.randrange(8):  # an answer goes on as it must
            self._force(*self.rng.choice(list(self.running.items())))

    def _force(self, key: int, asked: Asked) -> None:
        if asked.drawn:
            self.engine.force(key, self.rng.choices(range(97, 123), k=self.rng.randrange(1, 6)))

    def _rewind(self, key: int, asked: Asked) -> None:
        if asked.drawn:
            count = self.rng.randrange(1, len(asked.drawn) + 1)
            del asked.drawn[len(asked.drawn) - count :]
            self.engine.rewind(key, count, ())


def check(asked: Asked, cold: Engine, close: float) -> None:
    """The first and the last of the tokens came from the distribution a cold cache gives."""
    own = [number for number, token in enumerate(asked.drawn) if token.logprob is not None]
    for drawn in {own[0], own[-1]}:
        before = tuple(token.id for token in asked.drawn[:drawn])
        cold.recover()
        cold.admit(0, msgspec.structs.replace(asked.job, prompt=asked.job.prompt + before))
        tokens: list[Token] = []
        while not tokens:
            tokens = [one for one in cold.step() if isinstance(one, Token)]
        (token,) = tokens
        words = cold.info.vocab_size
        difference = abs(distribution(asked.drawn[drawn], words) - distribution(token, words)).max()
        assert difference < close


def distribution(token: Token, words: int) -> NDArray[numpy.float64]:
    """The log probabilities of all tokens, by their ids."""
    assert token.logprob is not None
    found = numpy.zeros(words)
    for candidate in token.logprob.top:
        found[candidate.token] = candidate.logprob
    return found
