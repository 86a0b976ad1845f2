"""What is found in the KV cache is what would be computed: random prompts that begin alike, several
answers to one, answers cut short, continued by force and taken back in part, slots saved and
restored, too little room, for every kind of memory llama.cpp has, against a cold cache.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from backends.contract import catalog
from backends.contract.beginnings import Beginnings, Bytes, NothingKept, Pace
from backends.contract.errors import InvalidJob
from backends.contract.protocol import Generation
from backends.engines.engine import Engine, PutBack, Token
from backends.engines.llamacpp import libraries, loading
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.places.kept.store import KeptStore
from config.engines import LlamaCppOptions, SpeculationOptions
from tests.backends import gguf_grown
from tests.backends.cache_fuzz import Asked, Fuzz, check
from tests.backends.container_contract import GREEDY
from tests.backends.engines.llamacpp import cache_kinds, random_projector
from tests.backends.pairs import pairs, quick
from tests.backends.places.kept.afar import from_afar
from tests.backends.places.kept.conversations import (
    answer,
    kept_of_a_slot_that_is_taken,
    letters,
    texts_after_swaps,
    tokens_meanwhile,
)
from tests.backends.places.kept.dear import DearBeginnings

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
COLD_AND_LONG = msgspec.structs.replace(COLD, context_length=LONG)
LAYOUTS = {
    "small pool": msgspec.structs.replace(COLD, max_concurrent=4, cache_tokens=256),
    "split": msgspec.structs.replace(COLD, max_concurrent=4),
    "few snapshots": msgspec.structs.replace(
        COLD, max_concurrent=4, cache_tokens=256, snapshot_memory=100_000
    ),
    "drafts in a small pool": msgspec.structs.replace(
        COLD, max_concurrent=4, cache_tokens=256, speculation=SpeculationOptions(mode="ngram")
    ),
    "drafts, split": msgspec.structs.replace(
        COLD, max_concurrent=4, speculation=SpeculationOptions(mode="ngram")
    ),
    "long pool": msgspec.structs.replace(
        COLD, max_concurrent=4, cache_tokens=2048, context_length=LONG, micro_batch_size=16
    ),
    "long split": msgspec.structs.replace(
        COLD, max_concurrent=4, cache_tokens=3_400, context_length=LONG, micro_batch_size=16
    ),
}
QUICK = ("small pool", "long split")  # tried each time, the others in turn
GROWN = ("gpt-oss", "qwen35", "granitehybrid", "nemotron_h")
PACE = Pace(piece=6_000, seconds=0)  # a few cells in a step
CLOSE = 0.1  # of log probabilities: rows of other batches are summed in another order


@contextmanager
def engine(path: Path, options: LlamaCppOptions) -> Iterator[LlamaCppEngine]:
    files = catalog.recognise(path)
    assert files is not None
    load = loading.load
    if libraries.uses_ik(files, options):
        from backends.engines.llamacpp import ik

        load = ik.load
    made = LlamaCppEngine(load(files, options, lambda _: True), pace=PACE)
    try:
        yield made
    finally:
        made.close()


MODELS = [*cache_kinds.KINDS, *cache_kinds.SEEING, *GROWN]
# Cells that stay, a window, and states: each time; what else there is among the slow tests.
KINDS = quick(MODELS, "llama", "gemma3", "lfm2")
EACH = pytest.mark.parametrize(
    ("model", "options"), pairs(KINDS, list(LAYOUTS), QUICK), indirect=True
)
AT_ONCE = quick(["llama", "gemma3", "lfm2", "qwen35"], "llama", "lfm2")


@pytest.fixture(scope="module", params=MODELS)
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


@EACH
def test_what_is_found_in_the_cache_is_what_would_be_computed(
    model: Path, options: LlamaCppOptions
) -> None:
    assert tried(model, options, jobs=40) > 50


@EACH
def test_what_is_put_back_from_the_store_is_what_would_be_computed(
    model: Path, options: LlamaCppOptions
) -> None:
    store = KeptStore(memory=20_000_000)
    kept = DearBeginnings(store, "the same engine", "model")
    tried(model, options, jobs=30, kept=kept)
    assert store.counts().tokens["memory"] > 300  # of the turns at the end alone


@pytest.mark.parametrize("shared", [0, 3, 70])
def test_a_slot_that_another_conversation_takes_is_kept(tmp_path: Path, shared: int) -> None:
    with engine(written("llama", tmp_path), COLD) as tested:
        assert kept_of_a_slot_that_is_taken(tested, shared) == 119


@pytest.mark.parametrize(("model", "options"), pairs(MODELS, list(LAYOUTS)), indirect=True)
def test_what_comes_from_another_process_is_what_would_be_computed(
    model: Path, options: LlamaCppOptions
) -> None:
    store = KeptStore(memory=20_000_000)
    kept = from_afar(DearBeginnings(store, "the same engine", "model"))
    tried(model, options, jobs=30, kept=kept)
    assert store.counts().tokens["memory"] > 300  # of the turns at the end alone


@pytest.mark.parametrize("kind", AT_ONCE)
def test_others_get_tokens_while_a_conversation_is_put_back(tmp_path: Path, kind: str) -> None:
    with engine(written(kind, tmp_path), LAYOUTS["long pool"]) as tested:
        fuzz = LlamaFuzz(tested, random.Random(0))
        assert tokens_meanwhile(tested, fuzz.swap, letters(1, 600)) > 10


def test_a_conversation_that_leaves_while_it_is_put_back_leaves_nothing(tmp_path: Path) -> None:
    with engine(written("lfm2", tmp_path), LAYOUTS["long pool"]) as tested:
        tested.kept = DearBeginnings(KeptStore(memory=20_000_000), "the same engine", "model")
        prompt = letters(1, 600)
        first = answer(tested, 0, prompt)
        LlamaFuzz(tested, random.Random(0)).swap()
        tested.admit(1, Generation(prompt=prompt, sampling=GREEDY))
        for _ in range(4):
            tested.step()
        assert tested.keeper.places()
        tested.release(1)
        assert not any(tested.keeper.cells())
        assert answer(tested, 2, prompt) == first


@pytest.mark.parametrize("kind", AT_ONCE)
def test_a_copy_is_of_what_was_there_though_another_comes_there_in_the_same_step(
    tmp_path: Path, kind: str
) -> None:
    """One begins as the only idle slot does, and is copied from it into the empty one; then one of
    the store takes the idle slot, before anything is computed.
    """
    path, away, there = written(kind, tmp_path), letters(1, 300), letters(2, 300)
    two = msgspec.structs.replace(LAYOUTS["long split"], max_concurrent=2, cache_tokens=None)
    with engine(path, two) as tested, engine(path, COLD_AND_LONG) as anew:
        tested.kept = DearBeginnings(KeptStore(memory=20_000_000), "the same engine", "model")
        answer(tested, 0, away)
        swapped(tested)
        answer(tested, 1, there)
        prompts = (*there[:250], *letters(3, 40)), (*away, *letters(4, 5))
        asked = [Asked(_whole(tested, prompt), list(prompt), 1) for prompt in prompts]
        for key, one in enumerate(asked, 2):
            tested.admit(key, one.job)
        put_back = 0
        while not all(one.drawn for one in asked):
            for out in tested.step():
                match out:
                    case Token(key=key):
                        asked[key - 2].drawn.append(out)
                    case PutBack():
                        put_back += 1
        assert put_back == 1
        for one in asked:
            check(one, anew, CLOSE)


def _whole(tested: Engine, prompt: tuple[int, ...]) -> Generation:
    """With the distribution of each token."""
    return Generation(prompt=prompt, sampling=GREEDY, logprobs=tested.info.vocab_size)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2", "qwen35"])
@pytest.mark.parametrize("layout", ["small pool", "split"])
def test_fifty_conversations_say_the_same_after_their_model_was_away(
    tmp_path: Path, kind: str, layout: str
) -> None:
    path = written(kind, tmp_path)
    texts_after_swaps(lambda: engine(path, LAYOUTS[layout]), swapped)


def written(kind: str, folder: Path) -> Path:
    path = folder / "model.gguf"
    return gguf_grown.write(kind, path) if kind in GROWN else cache_kinds.write(kind, path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
def test_however_long_it_is_put_back(model: Path, options: LlamaCppOptions, seed: int) -> None:
    store = KeptStore(memory=20_000_000)
    kept = DearBeginnings(store, "the same engine", "model")
    tried(model, options, jobs=300, seed=seed, kept=kept)
    assert store.counts().tokens["memory"] > 300


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
    kept: Beginnings | None = None,
) -> int:
    """Runs so many jobs in random company; returns how many of their tokens came from the cache.
    `cold`: of what computes them again, whose log probabilities are that `close`.
    """
    alone = msgspec.structs.replace(cold, context_length=options.context_length)
    with engine(model, options) as tested, engine(model, alone) as anew:
        fuzz = LlamaFuzz(tested, random.Random(seed))
        if kept is not None:
            tested.kept = kept
        fuzz.run(jobs)
        if kept is not None:
            fuzz.take_turns(fuzz.swap)
        for asked in fuzz.answered:
            check(asked, anew, close)
    return fuzz.found


def swapped(tested: Engine) -> None:
    """As when the model is unloaded and loaded again, but for what is being answered."""
    assert isinstance(tested, LlamaCppEngine)
    for slot in tested._slots:  # noqa: SLF001
        if not slot.busy:
            tested._take_out(slot, 0)  # noqa: SLF001
            tested._empty(slot)  # noqa: SLF001


class LlamaFuzz(Fuzz):
    """With pictures, and slots that are saved and restored."""

    engine: LlamaCppEngine

    def __init__(self, tested: LlamaCppEngine, rng: random.Random) -> None:
        super().__init__(tested, rng)
        self._saved: list[Bytes] = []

    def between(self) -> None:
        if not isinstance(self.engine.kept, NothingKept) and not self.rng.randrange(3):
            self.swap()
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
            self._saved.append(keeper.save(slot).data)

    def swap(self) -> None:
        swapped(self.engine)

    def dressed(self, job: Generation) -> Generation:
        """Pictures: the same place in the same text has the same picture, mostly."""
        if "image" not in self.engine.info.modalities:
            return job
        marker = self.engine.tokenize(self.engine.info.image_marker or "", special=False)
        at = min(len(job.prompt) - 1, self.rng.choice((5, 5, 25)))
        colour = self.rng.choice((1, 1, 1, 200))
        return msgspec.structs.replace(
            job,
            prompt=(*job.prompt[:at], *marker, *job.prompt[at:]),
            images=(random_projector.noise(colour),),
        )
