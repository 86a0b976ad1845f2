"""llama.cpp's places: a job may name one, and what one holds is saved, put back and forgotten.

And what a job may have told of itself: how its prompt is read, what the samplers left.
"""

import math
import struct
from collections.abc import AsyncIterator

import anyio
import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import InvalidJob
from backends.contract.protocol import (
    Ended,
    Generation,
    ModelContainer,
    Piece,
    PromptProgress,
    TokenLogprob,
)
from backends.contract.samplers import Sampling
from backends.engines.llamacpp.kv_cache import packed, unpacked
from config.engines import LlamaCppOptions
from tests.backends.container_contract import run, text_of
from tests.backends.loopback import over_bytes
from tests.hang import HANG

pytestmark = pytest.mark.anyio

GREEDY = Sampling(temperature=0)
TEXT = "The capital of France is a city on a river, and people like to go there."


@pytest.fixture(params=[False, True], ids=["here", "over bytes"])
async def container(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    options = LlamaCppOptions(max_concurrent=2, context_length=512, threads=1)
    files = catalog.recognise(bundled.GGUF)
    loaded = await catalog.BACKENDS["llamacpp"].container.load(files, options, lambda _: None)
    used = over_bytes(loaded) if request.param else loaded
    yield used
    await used.aclose()


def job(container: ModelContainer, text: str = TEXT, **changes: object) -> Generation:
    prompt = container.tokenize(text, special=True)
    made = Generation(prompt=prompt, sampling=GREEDY, max_tokens=8)
    return msgspec.structs.replace(made, **changes)


async def test_a_saved_slot_is_found_again_in_another(container: ModelContainer) -> None:
    first, ended = await run(container, job(container, slot=1))
    saved = await container.slots.save(1)
    assert saved.tokens == ended.prompt_tokens + ended.completion_tokens - 1
    assert await container.slots.erase(1) == saved.tokens
    assert await container.slots.restore(0, bytes(saved.data)) == saved.tokens
    again, ended = await run(container, job(container, slot=0))
    assert ended.cached_tokens == ended.prompt_tokens - 1
    assert text_of(again) == text_of(first)


async def test_a_named_slot_finds_its_own_cells_alone(container: ModelContainer) -> None:
    await run(container, job(container, slot=1))
    _, other = await run(container, job(container, slot=0))
    _, same = await run(container, job(container, slot=1))
    assert (other.cached_tokens, same.cached_tokens) == (0, same.prompt_tokens - 1)


async def test_an_erased_slot_is_computed_anew(container: ModelContainer) -> None:
    await run(container, job(container, slot=1))
    await container.slots.erase(1)
    _, ended = await run(container, job(container, slot=1))
    assert ended.cached_tokens == 0


async def test_a_busy_slot_is_saved_when_it_is_idle(container: ModelContainer) -> None:
    long = job(container, slot=0, max_tokens=400, sampling=Sampling(temperature=0, ban_eos=True))
    saved: list[int] = []

    async def save() -> None:
        saved.append((await container.slots.save(0)).tokens)

    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks, container.generate(long) as outputs:
            await anext(aiter(outputs))
            tasks.start_soon(save)
            states = await container.slots.states()
            assert [state.task is None for state in states] == [False, True]
            assert states[0].prompt == len(long.prompt)
            assert not saved
            async for _ in outputs:
                pass
    assert saved == [len(long.prompt) + 399]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a saved slot"),
        (b"GGUF" * 10, "is not a saved slot"),
        (b"qsgg\1" + bytes(7), "version 1; this one reads"),
        (packed([1, 2, 3])[:-4], "is truncated"),
        (packed([1, 2, 3]), "cells don't match this model"),
        (packed([1, 2, 3]) + b"\xff" * 64, "cells don't match this model"),
        (packed([1 << 30]), "lacks tokens of the file"),
        (packed([1] * 600), "context of 512"),
    ],
)
async def test_a_file_that_is_no_slot_of_this_model_is_refused(
    container: ModelContainer, data: bytes, said: str
) -> None:
    with pytest.raises(InvalidJob, match=said) as refused:
        await container.slots.restore(0, data)
    assert refused.value.param == "filename"
    await run(container, job(container))  # it goes on


def test_lists_of_tokens_are_read_packed_and_plain() -> None:
    plain = struct.pack("=III3i", *struct.unpack("=II", packed([])[:8]), 3, 5, 6, 7)
    assert unpacked(packed([5, 6, 7]) + b"state") == ((5, 6, 7), len(packed([5, 6, 7])))
    assert unpacked(plain + b"state") == ((5, 6, 7), len(plain))
    for words in ([-1, 9, 0, 0], [-1, 1, 7, 0], [-1, 1, 0, 1], [-1]):
        head = struct.pack("=I", len(words))
        with pytest.raises(InvalidJob):
            unpacked(packed([])[:8] + head + struct.pack(f"={len(words)}i", *words))


async def test_a_slot_that_is_not_there_is_named(container: ModelContainer) -> None:
    with pytest.raises(InvalidJob, match="0 to 1"):
        await container.slots.save(2)
    with pytest.raises(InvalidJob, match="0 to 1") as refused:
        await run(container, job(container, slot=-1))
    assert refused.value.param == "id_slot"


async def test_reading_a_prompt_is_reported_from_its_cells_to_its_end(
    container: ModelContainer,
) -> None:
    await run(container, job(container))
    progress: list[PromptProgress] = []
    last: list[Piece | Ended] = []
    longer = job(container, TEXT + " And there is more of it." * 12, reports_progress=True)
    async with container.generate(longer) as outputs:
        async for output in outputs:
            if isinstance(output, PromptProgress):
                assert not last
                progress.append(output)
            elif isinstance(output, Piece | Ended):
                last.append(output)
    assert progress[0].done == progress[0].cached > 8
    assert progress[0].seconds == 0
    assert [one.done for one in progress] == sorted({one.done for one in progress})
    assert {(one.total, one.cached) for one in progress} == {
        (len(longer.prompt), progress[0].cached)
    }
    assert progress[-1].done == progress[-1].total


async def test_what_the_samplers_left_adds_up_to_one(container: ModelContainer) -> None:
    sampling = Sampling(temperature=0.7, top_k=5, seed=3)
    asked = job(container, sampling=sampling, logprobs=10, after_samplers=True)
    pieces, _ = await run(container, asked)
    tokens: list[TokenLogprob] = [one for piece in pieces for one in piece.logprobs]
    plain, _ = await run(container, job(container, sampling=sampling))
    assert text_of(pieces) == text_of(plain)
    assert tokens
    for token in tokens:
        chances = [math.exp(one.logprob) for one in token.top]
        assert len(chances) == 5
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1)
        assert token.chosen in token.top
