"""The transformers container keeps the contract on the bundled model, batched and one after
another, and its own promises: what is computed once stays computed, who is long stalls nobody, and
what can't be loaded is said in words.
"""

import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.contract.protocol import ModelContainer, Progress
from backends.contract.samplers import Sampling
from backends.engines.driver import DrivenContainer
from config.engines import TransformersOptions
from tests.backends.batching import BATCHING, GREETING, STORY, said
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.container_contract import GREEDY, LASTING, Subject, closes_while_idle
from tests.backends.loopback import over_bytes

pytestmark = pytest.mark.anyio

OPTIONS = TransformersOptions(device="cpu", max_concurrent=4, context_length=512)
POOL = msgspec.structs.replace(OPTIONS, cache_tokens=1024)  # two full contexts for four jobs


async def load(
    options: TransformersOptions = OPTIONS,
    path: Path = bundled.SAFETENSORS,
    report: Callable[[Progress], None] = lambda _: None,
) -> ModelContainer:
    files = catalog.recognise(path, "transformers")
    return await catalog.BACKENDS["transformers"].container.load(files, options, report)


async def load_solo() -> ModelContainer:
    """As for a model whose passes can't be shared."""
    from backends.engines.transformers import engine, loading

    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    loaded = loading.load(files, OPTIONS, lambda _: True)
    loaded.pattern = None
    loaded.info = msgspec.structs.replace(loaded.info, max_concurrent=1)
    return DrivenContainer(engine.TransformersEngine(loaded))


ROOMS = [pytest.param(OPTIONS, id="roomy"), pytest.param(POOL, id="scarce", marks=pytest.mark.slow)]


@pytest.fixture(params=ROOMS, scope="module")
async def container(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    """Loaded once: what one promise leaves in the cache must not break the next."""
    loaded = await load(request.param)
    yield loaded
    await loaded.aclose()


@pytest.fixture(scope="module")
async def solo() -> AsyncIterator[ModelContainer]:
    loaded = await load_solo()
    yield loaded
    await loaded.aclose()


@pytest.fixture(scope="module")
async def distant() -> AsyncIterator[ModelContainer]:
    loaded = over_bytes(await load(OPTIONS))
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", LASTING, ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


@pytest.mark.slow
@pytest.mark.parametrize("promise", [*LASTING, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract_over_bytes(
    promise: Callable[[Subject], Awaitable[None]], distant: ModelContainer
) -> None:
    await promise(Subject(distant, prompt=GREETING, long=STORY))


@pytest.mark.slow
@pytest.mark.parametrize("promise", LASTING, ids=lambda promise: promise.__name__)
async def test_contract_one_after_another(
    promise: Callable[[Subject], Awaitable[None]], solo: ModelContainer
) -> None:
    await promise(Subject(solo, prompt=GREETING, long=STORY))


@pytest.mark.parametrize("loading", [load, load_solo])
async def test_it_closes_while_idle(loading: Callable[[], Awaitable[ModelContainer]]) -> None:
    await closes_while_idle(Subject(await loading(), prompt=GREETING, long=STORY))


@pytest.mark.parametrize("promise", CONSTRAINED, ids=lambda promise: promise.__name__)
async def test_constrained(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


@pytest.mark.slow
@pytest.mark.parametrize("promise", CONSTRAINED, ids=lambda promise: promise.__name__)
async def test_constrained_one_after_another(
    promise: Callable[[Subject], Awaitable[None]], solo: ModelContainer
) -> None:
    await promise(Subject(solo, prompt=GREETING, long=STORY))


@pytest.mark.parametrize("promise", BATCHING, ids=lambda promise: promise.__name__)
async def test_batching(
    promise: Callable[[ModelContainer], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(container)


async def test_a_reused_beginning_changes_nothing(container: ModelContainer) -> None:
    """From the cache or computed anew: the same text."""
    fresh = await said(container, STORY, GREEDY, 60)
    await said(container, GREETING, GREEDY)
    assert await said(container, STORY, GREEDY, 60) == fresh


async def test_a_seed_gives_the_same_text_in_any_company(container: ModelContainer) -> None:
    seeded = Sampling(seed=1, temperature=1.2, top_p=0.95, repetition_penalty=1.1)
    alone = await said(container, STORY, seeded, 40)
    assert alone == await said(container, STORY, seeded, 40)
    together: list[str] = []

    async def one(sampling: Sampling) -> None:
        text = await said(container, STORY, sampling, 40)
        if sampling is seeded:
            together.append(text)

    company = [
        Sampling(temperature=0),
        Sampling(seed=5),
        Sampling(seed=6, top_k=3, presence_penalty=1.0),
    ]
    async with anyio.create_task_group() as tasks:
        for sampling in [*company, seeded]:
            tasks.start_soon(one, sampling)
    assert together == [alone]
    assert (
        len(
            {
                await said(container, STORY, Sampling(seed=seed, temperature=5.0))
                for seed in range(4)
            }
        )
        > 1
    )


async def test_control_tokens_are_text_unless_asked_for(container: ModelContainer) -> None:
    assert len(container.tokenize("<|im_end|>", special=True)) == 1
    assert len(container.tokenize("<|im_end|>", special=False)) > 1
    text = "Grüße, 蒸気機関車 🚂<|im_end|>"
    for special in (True, False):
        assert container.detokenize(container.tokenize(text, special=special)) == text


async def test_loading_reports_how_far_it_is() -> None:
    progress: list[Progress] = []
    loaded = await load(report=progress.append)
    await anyio.lowlevel.checkpoint()
    await loaded.aclose()
    done = [step.done for step in progress]
    assert done == sorted(done)
    assert len(set(done)) > 10
    assert (
        progress[-1].done
        == progress[-1].total
        == (bundled.SAFETENSORS / "model.safetensors").stat().st_size
    )


async def test_an_abandoned_load_leaves_nothing() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    loaded = await load()
    await loaded.aclose()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled.SAFETENSORS, tmp_path / "model"))


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


async def test_weights_that_are_broken_are_an_error_in_words(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(LoadFailed, match="model can't be loaded"):
        await load(path=folder)


async def test_an_architecture_nobody_knows_is_named(folder: Path) -> None:
    rewrite(folder / "config.json", model_type="steamengine", architectures=["SteamForCausalLM"])
    with pytest.raises(UnsupportedModel, match="steamengine"):
        await load(path=folder)


@pytest.mark.parametrize("kind", ["t5", "qwen2_audio"])
async def test_an_architecture_that_goes_on_with_no_text_is_refused(
    kind: str, folder: Path
) -> None:
    (folder / "config.json").write_text(
        json.dumps({"model_type": kind, "architectures": ["OldForConditionalGeneration"]})
    )
    with pytest.raises(UnsupportedModel, match=f"'{kind}' doesn't generate text"):
        await load(path=folder)


async def test_code_of_the_models_own_is_not_run_unasked(folder: Path) -> None:
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    rewrite(folder / "config.json", model_type="own", auto_map=own)
    (folder / "own.py").write_text("raise SystemExit('was run')")
    with pytest.raises(LoadFailed, match="trust_remote_code: true"):
        await load(path=folder)


@pytest.mark.parametrize("device", ["cuda:9", "toaster"])
async def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(LoadFailed, match=device):
        await load(msgspec.structs.replace(OPTIONS, device=device))
