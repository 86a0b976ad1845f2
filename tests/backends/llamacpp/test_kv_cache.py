"""What is found in the KV cache is what would be computed: random prompts that begin alike, several
answers to one, answers cut short, continued by force and taken back in part, slots saved and
restored, too little room, for every kind of memory llama.cpp has, against a cold cache.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy
import pytest
from numpy.typing import NDArray

from backends import catalog
from backends.engine import Token
from backends.errors import InvalidJob
from backends.llamacpp import loading
from backends.llamacpp.engine import LlamaCppEngine
from backends.protocol import Generation
from config.engines import LlamaCppOptions
from tests.backends import gguf_grown
from tests.backends.contract import GREEDY
from tests.backends.llamacpp import cache_kinds, random_projector

LENGTH = 160  # of the context
LONG = 800  # longer than what llama.cpp keeps of a window
COLD = LlamaCppOptions(
    max_concurrent=1,
    context_length=LENGTH,
    threads=1,
    cache_type_k="f32",
    cache_type_v="f32",
    flash_attention="off",
)
LAYOUTS = {
    "small pool": msgspec.structs.replace(COLD, max_concurrent=4, cache_tokens=256),
    "split": msgspec.structs.replace(COLD, max_concurrent=4),
    "few snapshots": msgspec.structs.replace(
        COLD, max_concurrent=4, cache_tokens=256, snapshot_memory=100_000
    ),
    "long pool": msgspec.structs.replace(
        COLD, max_concurrent=4, cache_tokens=2048, context_length=LONG, micro_batch_size=16
    ),
    "long split": msgspec.structs.replace(
        COLD, max_concurrent=4, context_length=LONG, micro_batch_size=16
    ),
}
GROWN = ("gpt-oss", "qwen35", "granitehybrid", "nemotron_h")
CLOSE = 0.1  # of log probabilities: rows of other batches are summed in another order


class Asked(msgspec.Struct):
    """A job, and what has been drawn for it."""

    job: Generation
    text: list[int]  # its prompt, without pictures
    wanted: int  # tokens
    drawn: list[Token] = []


@contextmanager
def engine(path: Path, options: LlamaCppOptions) -> Iterator[LlamaCppEngine]:
    files = catalog.recognise(path)
    assert files is not None
    made = LlamaCppEngine(loading.load(files, options, lambda _: True))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module", params=[*cache_kinds.KINDS, *cache_kinds.SEEING, *GROWN])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in cache_kinds.SEEING:
        return random_projector.write(request.param, folder)
    if request.param in GROWN:
        return gguf_grown.write(request.param, folder / "model.gguf")
    return cache_kinds.write(request.param, folder / "model.gguf")


@pytest.fixture(params=LAYOUTS)
def options(request: pytest.FixtureRequest) -> LlamaCppOptions:
    return LAYOUTS[request.param]


def test_what_is_found_in_the_cache_is_what_would_be_computed(
    model: Path, options: LlamaCppOptions
) -> None:
    assert tried(model, options, jobs=40) > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
def test_however_long_it_goes_on(model: Path, options: LlamaCppOptions, seed: int) -> None:
    # 400 to 1,100 where a small pool holds recurrent states, which go back to few places
    assert tried(model, options, jobs=300, seed=seed) > 300


def tried(
    model: Path,
    options: LlamaCppOptions,
    *,
    jobs: int,
    seed: int = 0,
    cold: LlamaCppOptions = COLD,
    close: float = CLOSE,
) -> int:
    """Runs so many jobs in random company; returns how many of their tokens came from the cache.
    `cold`: of what computes them again, whose log probabilities are that `close`.
    """
    alone = msgspec.structs.replace(cold, context_length=options.context_length)
    with engine(model, options) as tested, engine(model, alone) as anew:
        fuzz = Fuzz(tested, random.Random(seed))
        fuzz.run(jobs)
        for asked in fuzz.answered:
            check(asked, anew, close)
    return fuzz.found


class Fuzz:
    """Keeps the engine busy with jobs that share beginnings, and lets go of some early."""

    def __init__(self, tested: LlamaCppEngine, rng: random.Random) -> None:
        self.engine = tested
        self.rng = rng
        self.running: dict[int, Asked] = {}
        self.answered: list[Asked] = []
        self.found = 0
        self.length = tested.info.context_length
        self._saved: list[bytes] = []
        self._known = [rng.choices(range(97, 123), k=self.length * 5 // 8) for _ in range(3)]

    def run(self, jobs: int) -> None:
        for key in range(jobs):
            while len(self.running) == self.engine.info.max_concurrent:
                self._step()
            self._admit(key)
            for _ in range(self.rng.choice((0, 0, 1, 3, 9))):
                self._step()
            self._save_or_restore()
        while self.running:
            self._step()

    def _admit(self, key: int) -> None:
        """A new prompt, or another answer to one that is being answered."""
        if self.running and not self.rng.randrange(4):
            other = self.rng.choice(list(self.running.values()))
            text, job = other.text, other.job
        else:
            text = self._prompt()
            job = Generation(prompt=tuple(text), sampling=GREEDY, logprobs=cache_kinds.WORDS)
            job = msgspec.structs.replace(job, marks=self._marks(len(text)))
            if not self.rng.randrange(3):  # what makes it take snapshots of the answer, too
                sampling = msgspec.structs.replace(GREEDY, banned_strings=("none",))
                job = msgspec.structs.replace(job, sampling=sampling)
            if "image" in self.engine.info.modalities:
                job = self._with_pictures(job)
        if self.engine.admit(key, job) + 60 >= self.length:
            self.engine.release(key)
        else:
            wanted = self.rng.randrange(1, 60 if job.sampling.banned_strings else 30)
            self.running[key] = Asked(job, text, wanted)

    def _marks(self, length: int) -> tuple[int, ...]:
        """Where the renderer might say that prompts part; hints, whatever they are."""
        return tuple(self.rng.randrange(2 * length) for _ in range(self.rng.choice((0, 1, 3))))

    def _save_or_restore(self) -> None:
        keeper = self.engine.keeper
        slots = range(len(keeper.cells()))
        idle = [slot for slot in slots if slot not in keeper.places().values()]
        if not idle or self.rng.randrange(4):
            return
        slot = self.rng.choice(idle)
        if self._saved and self.rng.randrange(2):
            try:
                keeper.restore(slot, self.rng.choice(self._saved))
            except InvalidJob:  # no room for it now
                assert not keeper.cells()[slot]
        elif all(token >= 0 for token in self.engine.keeper._slots[slot].tokens):  # noqa: SLF001
            self._saved.append(bytes(keeper.save(slot).data))

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

    def _with_pictures(self, job: Generation) -> Generation:
        """The same place in the same text has the same picture, mostly."""
        marker = self.engine.tokenize(self.engine.info.image_marker or "", special=False)
        at = min(len(job.prompt) - 1, self.rng.choice((5, 5, 25)))
        colour = self.rng.choice((1, 1, 1, 200))
        return msgspec.structs.replace(
            job,
            prompt=(*job.prompt[:at], *marker, *job.prompt[at:]),
            images=(random_projector.noise(colour),),
        )

    def _step(self) -> None:
        for token in self.engine.step():
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


def check(asked: Asked, cold: LlamaCppEngine, close: float) -> None:
    """The first and the last of the tokens came from the distribution a cold cache gives."""
    own = [number for number, token in enumerate(asked.drawn) if token.logprob is not None]
    for drawn in {own[0], own[-1]}:
        before = tuple(token.id for token in asked.drawn[:drawn])
        cold.recover()
        cold.admit(0, msgspec.structs.replace(asked.job, prompt=asked.job.prompt + before))
        tokens: Sequence[object] = ()
        while not tokens:
            tokens = cold.step()
        (token,) = tokens
        assert isinstance(token, Token)
        difference = abs(distribution(asked.drawn[drawn]) - distribution(token)).max()
        assert difference < close


def distribution(token: Token) -> NDArray[numpy.float64]:
    """The log probabilities of all tokens, by their ids."""
    assert token.logprob is not None
    found = numpy.zeros(cache_kinds.WORDS)
    for candidate in token.logprob.top:
        found[candidate.token] = candidate.logprob
    return found
