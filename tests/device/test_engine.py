"""llama.cpp on a device: the same promises and the same numbers as on the CPU, and memory that
comes back.
"""

import gc
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed, OutOfMemory
from backends.contract.protocol import Generation, ModelContainer
from backends.engines.llamacpp import loading
from backends.machine import devices
from config.engines import LlamaCppOptions
from tests.backends.container_contract import GREEDY, PROMISES, Subject, run, text_of
from tests.backends.engines.llamacpp import cache_kinds, random_projector
from tests.backends.engines.llamacpp.test_kv_cache import COLD, tried
from tests.device.conftest import FIRST, SHORT, Loaded

pytestmark = [pytest.mark.vulkan, pytest.mark.gpu, pytest.mark.anyio]

LAYERS = 5  # of the bundled model, and its output
QUESTIONS = ("Hello!", "What is 3 plus 4?", "Say apple.", "What is the weather in Paris?")
CLOSE = 0.05  # of log probabilities: sums of halves in another order
FAR = 0.3  # of those of the least likely tokens
MIB = 1 << 20


def asking(container: ModelContainer, question: str, tokens: int = 12) -> Generation:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    prompt = container.tokenize(text, special=True)
    return Generation(prompt=prompt, sampling=GREEDY, max_tokens=tokens, logprobs=1)


async def answers(container: ModelContainer) -> list[tuple[str, list[float]]]:
    """To the questions, with the log probability of each token."""
    found = []
    for question in QUESTIONS:
        pieces, _ = await run(container, asking(container, question))
        logprobs = [each.chosen.logprob for piece in pieces for each in piece.logprobs]
        found.append((text_of(pieces), logprobs))
    return found


async def test_contract(loaded: Loaded) -> None:
    """All promises in one container's life, since each new shape of a pass is compiled once."""
    greeting = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    story = "<|im_start|>user\nTell me a long story.<|im_end|>\n<|im_start|>assistant\n"
    for promise in PROMISES:
        async with loaded() as container:
            await promise(Subject(container, prompt=greeting, long=story))


async def test_the_answers_and_their_probabilities_are_the_cpus(loaded: Loaded) -> None:
    async with loaded() as device, loaded(gpu_layers=0, main_gpu=None) as cpu:
        assert (device.info.layers, cpu.info.layers) == ({FIRST: LAYERS}, {"cpu": LAYERS})
        for mine, theirs in zip(await answers(device), await answers(cpu), strict=True):
            assert mine[0] == theirs[0]
            assert mine[1] == pytest.approx(theirs[1], abs=CLOSE)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2", "mamba"])
def test_what_is_found_in_the_cache_is_what_the_cpu_computes(kind: str, tmp_path: Path) -> None:
    model = cache_kinds.write(kind, tmp_path / "model.gguf")
    cpu = msgspec.structs.replace(COLD, gpu_layers=0)
    tested = msgspec.structs.replace(
        COLD, max_concurrent=4, cache_tokens=256, micro_batch_size=32, main_gpu=0
    )
    assert tried(model, tested, jobs=12, cold=cpu, close=FAR) > 0


async def test_a_saved_slot_goes_on_in_another_and_on_the_cpu(loaded: Loaded) -> None:
    async with loaded() as container:
        question = asking(container, QUESTIONS[1])
        first, _ = await run(container, msgspec.structs.replace(question, slot=1))
        saved = await container.slots.save(1)
        assert await container.slots.restore(0, bytes(saved.data)) == saved.tokens
        again, ended = await run(container, msgspec.structs.replace(question, slot=0))
        assert text_of(again) == text_of(first)
        assert ended.cached_tokens == ended.prompt_tokens - 1
    async with loaded(gpu_layers=0, main_gpu=None) as cpu:
        assert await cpu.slots.restore(0, bytes(saved.data)) == saved.tokens
        there, ended = await run(cpu, msgspec.structs.replace(question, slot=0))
        assert text_of(there) == text_of(first)
        assert ended.cached_tokens == ended.prompt_tokens - 1


@pytest.mark.parametrize("kind", list(cache_kinds.SEEING))
async def test_pictures_are_seen_on_the_device_as_on_the_cpu(
    kind: str, loaded: Loaded, tmp_path: Path
) -> None:
    model = random_projector.write(kind, tmp_path)

    async def seen(container: ModelContainer, colour: int) -> list[float]:
        marker = container.info.image_marker
        prompt = container.tokenize(f"hello {marker} you", special=True)
        job = Generation(
            prompt=prompt,
            images=(random_projector.noise(colour),),
            sampling=GREEDY,
            max_tokens=1,
            logprobs=5,
        )
        pieces, _ = await run(container, job)
        (only,) = (each for piece in pieces for each in piece.logprobs)
        return [candidate.logprob for candidate in only.top]

    async with loaded(model) as device, loaded(model, gpu_layers=0, main_gpu=None) as cpu:
        for colour in (1, 200):
            mine, theirs = await seen(device, colour), await seen(cpu, colour)
            assert mine == pytest.approx(theirs, abs=CLOSE)


async def test_two_devices_share_the_layers_and_the_answer_is_the_same(
    loaded: Loaded, second: str
) -> None:
    async with loaded(main_gpu=None, tensor_split=(1, 1)) as both:
        assert set(both.info.layers) == {FIRST, second}
        assert sum(both.info.layers.values()) == LAYERS
        split = await answers(both)
    async with loaded(main_gpu=1) as other:
        assert other.info.layers == {second: LAYERS}
        for mine, theirs in zip(split, await answers(other), strict=True):
            assert mine[0] == theirs[0]
            assert mine[1] == pytest.approx(theirs[1], abs=CLOSE)


async def test_layers_that_stay_in_main_memory_are_computed_there(loaded: Loaded) -> None:
    async with loaded(gpu_layers=2) as half, loaded(gpu_layers=0, main_gpu=None) as cpu:
        assert half.info.layers == {FIRST: 2, "cpu": LAYERS - 2}
        for mine, theirs in zip(await answers(half), await answers(cpu), strict=True):
            assert mine[0] == theirs[0]


async def test_a_load_computes_a_prompt_and_a_token_before_any_request_does() -> None:
    """So that kernels are compiled in the load. What was computed is forgotten."""
    from backends.engines.llamacpp.library import api

    def computed(options: LlamaCppOptions) -> int:
        model = loading.load(catalog.recognise(bundled.GGUF), options, lambda _: True)
        try:
            counts = api.llama_perf_context(model.context)
            memory = api.llama_get_memory(model.context)
            assert api.llama_memory_seq_pos_max(memory, 0) == -1
            return int(counts.n_p_eval)  # tokens that were waited for together; 1 for none
        finally:
            model.free()

    on_cpu = msgspec.structs.replace(SHORT, gpu_layers=0, main_gpu=None)
    assert computed(SHORT) == SHORT.micro_batch_size + 1
    assert computed(on_cpu) == 1


async def test_a_cache_that_the_device_cannot_address_is_refused(
    loaded: Loaded, vulkan: None
) -> None:
    """llama.cpp ends the process over it."""
    with pytest.raises(OutOfMemory, match=rf"more than {FIRST} allows in one buffer"):
        async with loaded(context_length=4_000_000, max_concurrent=1):
            pass
    async with loaded() as container:
        assert container.info.layers == {FIRST: LAYERS}


async def test_a_load_that_is_cancelled_leaves_nothing(loaded: Loaded) -> None:
    for delay in (0.0, 0.05, 0.2):
        with anyio.move_on_after(delay):
            async with loaded():
                pass
    async with loaded() as container:
        pieces, _ = await run(container, asking(container, QUESTIONS[0]))
        assert text_of(pieces)


async def test_a_broken_file_is_refused_with_its_reason(loaded: Loaded, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(bundled.GGUF.read_bytes()[:-1000])
    with pytest.raises(LoadFailed):
        async with loaded(broken):
            pass


def used() -> int:
    """Bytes of the device as its driver counts them. Mesa's lies in main memory, so what it keeps
    shows in the process.
    """
    counted = devices.devices()[FIRST].used
    return psutil.Process().memory_info().rss if counted is None else counted


async def test_fifty_loads_and_unloads_give_the_memory_back(loaded: Loaded) -> None:
    held = []
    for _ in range(50):
        async with loaded() as container:
            await run(container, asking(container, QUESTIONS[0], tokens=2))
        gc.collect()
        held.append(used())
    # The first loads leave compiled kernels behind; one of the model alone is 10 MiB.
    assert max(held[-10:]) - held[10] < 10 * MIB
