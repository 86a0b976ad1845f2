"""What is found in the cache is what would be computed, for every kind of layer: cells that stay,
windows, chunks, compressed keys, recurrent states, convolutions and mixtures, against a cold cache.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from backends.contract import catalog
from backends.contract.beginnings import Beginnings, Pace
from backends.contract.protocol import Generation
from backends.engines.engine import Engine, Token
from backends.engines.transformers import loading
from backends.engines.transformers.engine import TransformersEngine
from backends.places.kept.store import KeptStore
from config.engines import TransformersOptions
from tests.backends.cache_fuzz import Fuzz, check, distribution
from tests.backends.container_contract import GREEDY
from tests.backends.engines.transformers.test_batching_architectures import (
    BATCHED,
    STATEFUL,
    TRIED,
    write,
)
from tests.backends.pairs import every, pairs, quick
from tests.backends.places.kept.afar import from_afar
from tests.backends.places.kept.conversations import (
    kept_of_a_slot_that_is_taken,
    letters,
    texts_after_swaps,
    tokens_meanwhile,
)
from tests.backends.places.kept.dear import DearBeginnings

LENGTH = 160  # of the context
COLD = TransformersOptions(device="cpu", threads=1, max_concurrent=1, context_length=LENGTH)
ROOMY = msgspec.structs.replace(COLD, max_concurrent=4)
SCARCE = msgspec.structs.replace(ROOMY, cache_tokens=256)
LAYOUTS = {
    "roomy": ROOMY,
    "scarce": SCARCE,
    "few snapshots": msgspec.structs.replace(SCARCE, snapshot_memory=100_000),
    "no snapshots": msgspec.structs.replace(SCARCE, snapshot_memory=0),
}
QUICK = ("few snapshots",)  # room for little, so that more is taken back, copied and computed again
# Of log probabilities: rows of other passes are summed in another order, scanned in other chunks.
CLOSE = 0.1
PACE = Pace(piece=6_000, seconds=0)  # a few cells in a step


TRAINED = 64  # tokens, before a model was made to take more
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}
STRETCHED = {
    "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 8.0}
    | FACTORS
    | {"original_max_position_embeddings": TRAINED},
    "original_max_position_embeddings": TRAINED,
}


@contextmanager
def engine(path: Path, options: TransformersOptions) -> Iterator[TransformersEngine]:
    files = catalog.recognise(path, "transformers")
    made = TransformersEngine(loading.load(files, options, lambda _: True), pace=PACE)
    assert made.info.scores_prompts  # its passes are shared
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module", params=TRIED)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("made") / request.param
    write(request.param, folder)
    return folder


@pytest.mark.parametrize(
    ("model", "layout"),
    pairs(quick(BATCHED, "gemma3_text"), list(LAYOUTS), QUICK),
    indirect=["model"],
)
def test_what_is_found_in_the_cache_is_what_would_be_computed(model: Path, layout: str) -> None:
    found = tried(model, LAYOUTS[layout], jobs=40)
    assert found > 50 or (model.name in STATEFUL and layout != "roomy")


@pytest.mark.parametrize("length", [TRAINED, LENGTH])
def test_stretched_positions_are_those_of_the_context_in_every_pass(
    tmp_path: Path, length: int
) -> None:
    write("phi3", tmp_path, **STRETCHED)
    options = msgspec.structs.replace(ROOMY, context_length=length)
    with engine(tmp_path, options) as tested:
        factors = FACTORS["short_factor" if length == TRAINED else "long_factor"]
        expected = [1e4 ** (-at / 4) / factor for at, factor in enumerate(factors)]
        for positions in ([[3]], [[length - 1]]):
            turned = tested._loaded.model.model.rotary_emb  # noqa: SLF001
            turned(torch.zeros(1), torch.tensor(positions))
            assert turned.inv_freq.tolist() == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["roomy", "scarce"])
def test_stretched_positions_are_found_as_they_would_be_computed(
    tmp_path: Path, layout: str
) -> None:
    write("phi3", tmp_path, **STRETCHED)
    assert tried(tmp_path, LAYOUTS[layout], jobs=40) > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_however_long_it_goes_on(model: Path, layout: str, seed: int) -> None:
    tried(model, LAYOUTS[layout], jobs=300, seed=seed)


@pytest.mark.slow
def test_what_is_put_back_from_the_store_is_what_would_be_computed(model: Path) -> None:
    store = KeptStore(memory=20_000_000)
    kept = DearBeginnings(store, "the same engine", "model")
    tried(model, ROOMY, jobs=40, kept=kept)
    assert store.counts().tokens["memory"] > 300  # of the turns at the end alone


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0, 3, 70])
def test_a_row_that_another_conversation_takes_is_kept(tmp_path: Path, shared: int) -> None:
    write("llama", tmp_path)
    with engine(tmp_path, COLD) as tested:
        assert kept_of_a_slot_that_is_taken(tested, shared) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("model", every(TRIED, 3), indirect=True)
def test_what_comes_from_another_process_is_what_would_be_computed(model: Path) -> None:
    store = KeptStore(memory=20_000_000)
    kept = from_afar(DearBeginnings(store, "the same engine", "model"))
    tried(model, ROOMY, jobs=40, kept=kept)
    assert store.counts().tokens["memory"] > 300  # of the turns at the end alone


def test_a_model_that_was_loaded_again_puts_back_what_it_had(model: Path) -> None:
    store = KeptStore(memory=20_000_000)
    job = Generation(prompt=tuple(range(97, 123)) * 4, sampling=GREEDY)
    answers = []
    for _ in range(3):
        with engine(model, ROOMY) as tested:
            tested.kept = DearBeginnings(store, "the same engine", "model")
            tested.admit(0, job)
            tokens: list[int] = []
            while len(tokens) < 20:
                tokens += [one.id for one in tested.step() if isinstance(one, Token)]
            answers.append(tokens)
    assert answers[1:] == answers[:1] * 2
    assert store.counts().hits["memory"] == 2


def test_others_get_tokens_while_a_conversation_is_put_back(model: Path) -> None:
    with engine(model, ROOMY) as tested:
        fuzz = SwappedFuzz(tested, random.Random(0), swaps=True)
        others = tokens_meanwhile(tested, fuzz.swap, letters(1, 120))
        batching = tested._batching  # noqa: SLF001
        assert batching is not None
        cells = batching._grid.cell_bytes * 120  # noqa: SLF001 - of models with states alone: none
        assert others >= cells // PACE.piece - 1


def test_nothing_goes_on_from_a_row_that_is_being_put_back(model: Path) -> None:
    """Its states come last."""
    dice, store = random.Random(0), KeptStore(memory=20_000_000)
    long = dice.choices(range(97, 123), k=100)
    with engine(model, ROOMY) as tested, engine(model, COLD) as anew:
        tested.kept = DearBeginnings(store, "the same engine", "model")
        first_of(tested, 0, long)
        swapped(tested)
        tested.admit(1, asked_of(tested, [*long, 97]))
        tested.step()
        batching = tested._batching  # noqa: SLF001
        assert batching is not None
        there = batching._running[1].fed  # noqa: SLF001 - all of it where there are states alone
        prompt = [*long[:there], 98, 99]
        found, expected = first_of(tested, 2, prompt), first_of(anew, 0, prompt)
        words = tested.info.vocab_size
        assert abs(distribution(found, words) - distribution(expected, words)).max() < CLOSE


def asked_of(asked: TransformersEngine, prompt: Sequence[int]) -> Generation:
    return Generation(prompt=tuple(prompt), sampling=GREEDY, logprobs=asked.info.vocab_size)


def first_of(asked: TransformersEngine, key: int, prompt: Sequence[int]) -> Token:
    """The first token of the answer, which is left then."""
    asked.admit(key, asked_of(asked, prompt))
    while True:
        for result in asked.step():
            if isinstance(result, Token) and result.key == key:
                asked.release(key)
                return result


@pytest.mark.slow
@pytest.mark.parametrize("model", every(TRIED, 3, 1), indirect=True)
def test_fifty_conversations_say_the_same_after_their_model_was_away(model: Path) -> None:
    texts_after_swaps(lambda: engine(model, ROOMY), swapped)


def swapped(tested: Engine) -> None:
    """As when the model is unloaded and loaded again, but for what is being answered."""
    assert isinstance(tested, TransformersEngine)
    batching = tested._batching  # noqa: SLF001
    assert batching is not None
    for slot in batching._slots:  # noqa: SLF001
        if not slot.busy:
            batching._take_out(slot, 0)  # noqa: SLF001
            slot.shorten(0)


class SwappedFuzz(Fuzz):
    """Idle rows lose their cells at times, as when the model is unloaded and loaded again."""

    engine: TransformersEngine

    def __init__(self, tested: TransformersEngine, rng: random.Random, *, swaps: bool) -> None:
        super().__init__(tested, rng)
        self._swaps = swaps

    def between(self) -> None:
        if self._swaps and not self.rng.randrange(6):
            self.swap()

    def swap(self) -> None:
        swapped(self.engine)


def tried(
    model: Path,
    options: TransformersOptions,
    *,
    jobs: int,
    seed: int = 0,
    kept: Beginnings | None = None,
) -> int:
    """Runs so many jobs in random company; returns how many of their tokens came from the cache."""
    with engine(model, options) as tested, engine(model, COLD) as anew:
        fuzz = SwappedFuzz(tested, random.Random(seed), swaps=kept is not None)
        if kept is not None:
            tested.kept = kept
        fuzz.run(jobs)
        if kept is not None:
            fuzz.take_turns(fuzz.swap)
        for asked in fuzz.answered:
            check(asked, anew, CLOSE)
    return fuzz.found
