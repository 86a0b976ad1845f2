"""exllamav2 where flash-attn is missing: jobs run one after another, and attention is torch's."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from backends.contract.protocol import ModelContainer
from config.engines import ExLlamaV2Options
from tests.backends.adapters import NAMES, answered, each_gets_its_own_in_any_company, write_folder
from tests.backends.batching import GREETING, STORY
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.container_contract import PROMISES, Subject
from tests.backends.parity import load
from tests.cardless.random_models import FAMILIES, write
from tests.cardless.test_exllamav2_architectures import LENGTHS, NEAR, chances, expected, farthest

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ENVIRONMENT: Mapping[str, str] = {"EXLLAMA_NO_FLASH_ATTN": "1"}
OPTIONS = ExLlamaV2Options(max_concurrent=4, context_length=512)
LONGER = msgspec.structs.replace(OPTIONS, context_length=768)
OTHERS = ("llama", "qwen3", "gemma 2", "cohere 2", "mistral", "glm 4")


@pytest.fixture
async def container() -> AsyncIterator[ModelContainer]:
    loaded = await load("exllamav2", OPTIONS)
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", [*PROMISES, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


async def test_jobs_run_one_after_another(container: ModelContainer) -> None:
    assert container.info.max_concurrent == 1


@pytest.mark.parametrize("family", OTHERS)
async def test_its_numbers_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """No token sees those behind it, as with exllamav2's own choice of attention it would."""
    folder = write(tmp_path / "model", *FAMILIES[family])
    ours, theirs = await chances(LONGER, folder), expected(folder)
    assert max(farthest(*pair) for pair in zip(ours, theirs, strict=True)) < NEAR


@pytest.mark.parametrize("family", ["gemma 2, a short window", "cohere 2, four layers"])
async def test_beyond_its_window_hardly_anything_is_missing(family: str, tmp_path: Path) -> None:
    """exllamav2 gives all queries of a chunk the last one's window, which is 256 here."""
    kind, settings = FAMILIES[family]
    folder = write(tmp_path / "model", kind, {**settings, "sliding_window": 256})
    ours, theirs = await chances(LONGER, folder), expected(folder)
    near = [farthest(*pair) for pair in zip(ours, theirs, strict=True)]
    assert max(near[: len(LENGTHS) - 1]) < NEAR
    assert near[-1] < 0.1  # with chunks of 256 it is up to 1.2


async def test_what_adapters_made_of_a_prompt_is_not_used_with_others(tmp_path: Path) -> None:
    paths = {name: str(write_folder(tmp_path / name, name)) for name in NAMES}
    adapted = msgspec.structs.replace(OPTIONS, adapters=paths, adapter_scaling={"clerk": 0.0})
    container = await load("exllamav2", adapted)
    await each_gets_its_own_in_any_company(container)
    prompt = container.tokenize(STORY, special=True)
    found = [(await answered(container, prompt, chosen))[1] for chosen in ("poet", "poet", "none")]
    assert [ended.cached_tokens > 0 for ended in found] == [False, True, False]
    await container.aclose()
