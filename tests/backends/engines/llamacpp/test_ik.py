"""ik_llama.cpp computes what llama.cpp does, keeps the contract, and confuses none of its contexts.
Where its wheel is installed: `scripts/install ik`.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import EngineLost, LoadFailed
from backends.contract.protocol import Generation, ModelContainer
from backends.contract.samplers import Sampling
from backends.engines.engine import Token
from backends.engines.llamacpp.batch import NO_ROOM, Batch
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.machine import ik
from backends.places.container import PortContainer
from backends.places.kept.store import KeptStore
from config.engines import IkOptions, LlamaCppOptions, SpeculationOptions
from tests.backends import gguf_grown, random_gguf
from tests.backends.batching import BATCHING, GREETING, STORY
from tests.backends.cache_fuzz import distribution
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.container_contract import GREEDY, PROMISES, Subject, run, text_of
from tests.backends.engines.llamacpp import cache_kinds
from tests.backends.engines.llamacpp.test_kv_cache import CLOSE, engine, swapped, tried
from tests.backends.places.kept.conversations import texts_after_swaps
from tests.backends.places.kept.dear import DearBeginnings
from tests.backends.places.workers import load as worker
from tests.backends.places.workers import pid_of, workers

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(ik.missing()), reason=ik.missing() or "installed"),
]
OPTIONS = LlamaCppOptions(library="ik", max_concurrent=4, context_length=512)
DRAFTING = msgspec.structs.replace(OPTIONS, speculation=SpeculationOptions(mode="ngram"))
SHORT = msgspec.structs.replace(OPTIONS, context_length=160, threads=1)
SHORT_DRAFTING = msgspec.structs.replace(DRAFTING, context_length=160, threads=1)
# What computes it again: the same library, or llama.cpp.
ALONE = msgspec.structs.replace(SHORT, max_concurrent=2)
OTHER = msgspec.structs.replace(ALONE, library="llama.cpp")
ROUNDED = 0.5


@pytest.fixture(params=[OPTIONS, DRAFTING], ids=["plain", "with drafts"])
async def container(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    files = catalog.recognise(bundled.GGUF)
    loaded = await catalog.BACKENDS["llamacpp"].container.load(files, request.param, lambda _: None)
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", [*PROMISES, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


@pytest.mark.parametrize("promise", BATCHING, ids=lambda promise: promise.__name__)
async def test_batching(
    promise: Callable[[ModelContainer], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(container)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cache_kinds.write("llama", tmp_path_factory.mktemp("llama") / "model.gguf")


@pytest.mark.parametrize("options", [SHORT, SHORT_DRAFTING], ids=["plain", "with drafts"])
@pytest.mark.parametrize(
    ("cold", "close"), [(ALONE, CLOSE), (OTHER, ROUNDED)], ids=["ik", "llama.cpp"]
)
def test_what_is_found_in_the_cache_is_what_would_be_computed(
    model: Path, options: LlamaCppOptions, cold: LlamaCppOptions, close: float
) -> None:
    assert tried(model, options, jobs=40, cold=cold, close=close) > 50


def test_what_is_put_back_from_the_store_is_what_would_be_computed(model: Path) -> None:
    store = KeptStore(memory=20_000_000)
    kept = DearBeginnings(store, "the same engine", "model")
    tried(model, SHORT, jobs=30, cold=ALONE, close=CLOSE, kept=kept)
    assert store.counts().tokens["memory"] > 300


@pytest.mark.slow
def test_fifty_conversations_say_the_same_after_their_model_was_away(model: Path) -> None:
    texts_after_swaps(lambda: engine(model, SHORT), swapped)


def test_a_pool_that_was_cut_in_many_places_is_whole_again(tmp_path: Path) -> None:
    """Answers under way at once lie cell by cell between each other: one that ends leaves as many
    gaps as it had tokens, more than one graph of so many layers closes.
    """
    path = random_gguf.write(tmp_path / "model.gguf", random_gguf.Dimensions(layers=90))
    job = Generation(prompt=(1, 2, 3), sampling=GREEDY, logprobs=768)
    options = msgspec.structs.replace(SHORT, context_length=300)
    with engine(path, options) as tested, engine(path, ALONE) as cold:

        def last(one: LlamaCppEngine, key: int, tokens: int) -> list[Token]:
            drawn: list[Token] = []
            while len(drawn) < tokens:
                drawn += [t for t in one.step() if isinstance(t, Token) and t.key == key]
            return drawn

        for key in range(4):
            tested.admit(key, msgspec.structs.replace(job, prompt=(1, 2, 3 + key)))
        said = last(tested, 3, 100)
        tested.release(0)
        tested.release(2)
        tested.admit(4, msgspec.structs.replace(job, prompt=(9,) * 200))
        said += last(tested, 3, 3)
        cold.admit(0, msgspec.structs.replace(job, prompt=(1, 2, 6, *(t.id for t in said[:-1]))))
        (again,) = last(cold, 0, 1)
        assert abs(distribution(again, 768) - distribution(said[-1], 768)).max() < CLOSE


def test_a_batch_without_room_leaves_nothing_behind(model: Path) -> None:
    """Its first passes over the graph would have had some."""
    options = msgspec.structs.replace(
        ALONE, context_length=256, cache_tokens=256, batch_size=128, micro_batch_size=32
    )
    with engine(model, options) as tested:
        pool: Any = tested._context  # noqa: SLF001
        codes = [_decoded(pool, [(sequence, 96)]) for sequence in (0, 1, 2)]
        assert codes == [0, 0, NO_ROOM]
        assert pool.llama_memory_seq_pos_max(pool, 2) == -1
        assert _decoded(pool, [(2, 64)]) == 0


def test_gaps_of_several_sequences_are_closed_whichever_is_the_longest(tmp_path: Path) -> None:
    """Those of the first, cell by cell, take more than one graph; that of another, which lies
    behind them, stays the longest meanwhile.
    """
    path = random_gguf.write(tmp_path / "model.gguf", random_gguf.Dimensions(layers=90))
    options = msgspec.structs.replace(ALONE, context_length=768, cache_tokens=768)
    with engine(path, options) as tested:
        pool: Any = tested._context  # noqa: SLF001
        assert _decoded(pool, [(0, 150), (1, 150)]) == 0
        assert _decoded(pool, [(2, 300)]) == 0
        assert _decoded(pool, [(3, 150)]) == 0
        pool.llama_memory_seq_rm(pool, 0, -1, -1)
        pool.llama_memory_seq_rm(pool, 2, -1, -1)
        assert _decoded(pool, [(0, 400)]) == 0


def _decoded(pool: Any, given: list[tuple[int, int]]) -> int:
    """The code for a batch of so many tokens of each sequence, in turn."""
    rows = [(place, one) for place in range(given[0][1]) for one, _ in given]
    batch = Batch(len(rows), pool)
    for place, one in rows:
        batch.chunk([7], place, one, last=True)
    return int(pool.llama_decode(pool, batch.ready()))


# Another shape of DeepSeek's ends the process.
DEEPSEEK = gguf_grown.COMPRESSED | {
    "attention.head_count": 16, "attention.kv_lora_rank": 512, "attention.q_lora_rank": 24,
    "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
    "attention.value_length_mla": 128, "rope.dimension_count": 64, "leading_dense_block_count": 1,
    "expert_shared_count": 1, "expert_weights_scale": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("qwen3moe", IkOptions(fmoe=False)),
        ("qwen3moe", IkOptions(rtr=True)),
        ("qwen3moe", IkOptions(override_tensor=("exps=CPU", r"blk\.0=CPU"))),
        pytest.param("deepseek2", IkOptions(mla=1), marks=pytest.mark.slow),
        pytest.param("deepseek2", IkOptions(mla=0, amb=64), marks=pytest.mark.slow),
    ],
)
def test_its_own_options_change_how_it_computes_and_not_what(
    tmp_path: Path, kind: str, options: IkOptions
) -> None:
    numbers = DEEPSEEK if kind == "deepseek2" else None
    path = gguf_grown.write(kind, tmp_path / "model.gguf", numbers)
    given = msgspec.structs.replace(SHORT, ik=options)
    assert tried(path, given, jobs=10, cold=ALONE, close=ROUNDED) > 10


def test_its_own_options_arrive(model: Path) -> None:
    from backends.engines.llamacpp.ik import context_parameters, model_parameters

    found = catalog.recognise(model)
    assert found is not None
    ours = IkOptions(override_tensor=("exps=CPU",), mla=1, fmoe=False, rtr=True, amb=64)
    for options in (ALONE, msgspec.structs.replace(ALONE, ik=ours)):
        of_model, own = model_parameters(found, options), options.ik
        assert bool(of_model.tensor_buft_overrides) == bool(own.override_tensor)
        repacked = of_model.repack_tensors, not of_model.use_mmap
        assert (*repacked, of_model.mla, of_model.amb) == (own.rtr, own.rtr, own.mla, own.amb)
        of_context = context_parameters(found, options)
        assert of_context.fused_moe_up_gate == own.fmoe
        assert (of_context.mla_attn, of_context.attn_max_batch) == (own.mla, own.amb)


def test_a_place_that_there_is_not_is_refused(model: Path) -> None:
    nowhere = msgspec.structs.replace(ALONE, ik=IkOptions(override_tensor=("exps=CUDA7",)))
    with (
        pytest.raises(LoadFailed, match=r"ik\.override_tensor: 'CUDA7' is none of CPU"),
        engine(model, nowhere),
    ):
        pass


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    """A model of a quantization that ik_llama.cpp alone reads, by the program in its wheel."""
    package = find_spec("ik_llama_cpp")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent
    program = shutil.copy(folder / "bin" / "llama-quantize", tmp_path)
    Path(program).chmod(0o700)
    dimensions = random_gguf.Dimensions(width=256, heads=4, head=64, inner=512)
    plain = random_gguf.write(tmp_path / "plain.gguf", dimensions)
    made = tmp_path / "model.gguf"
    libraries = f"{folder / 'lib'}:{folder.parent / 'ik_llama_cpp_python.libs'}"
    subprocess.run(
        [program, plain, made, "IQ4_KS"],
        env=os.environ | {"LD_LIBRARY_PATH": libraries},
        check=True,
        capture_output=True,
    )
    return made


async def test_a_killed_worker_is_an_error_and_the_next_one_says_the_same(quantized: Path) -> None:
    """Of a file that llama.cpp can't load, whose vocabulary it reads."""
    job = Generation(prompt=(1, 2, 3), sampling=Sampling(temperature=0), max_tokens=12)
    said = []
    with workers() as made:
        for _ in range(2):
            container = await worker(made, quantized, LlamaCppOptions(context_length=512))
            assert ik.PACKAGE in container.info.build
            said.append(text_of((await run(container, job))[0]))
            with pytest.raises(EngineLost):
                await killed(container, msgspec.structs.replace(job, max_tokens=400))
            await container.aclose()
    assert said[0] == said[1] != ""


async def killed(container: PortContainer, job: Generation) -> None:
    """Its worker, as soon as it says something."""
    async with container.generate(job) as outputs:
        async for _ in outputs:
            os.kill(pid_of(container), signal.SIGKILL)
