"""When the model or its processor breaks: those who ran hear why, in words of ours, and the next
are served.
"""

import weakref
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import torch
from PIL import Image as Pillow

from backends.contract import catalog
from backends.contract.errors import BackendError, GenerationFailed, OutOfMemory
from backends.contract.protocol import Ended, Generation, Image, Pixels
from backends.contract.samplers import Sampling
from backends.engines.driver import DrivenContainer
from backends.engines.transformers import loading
from backends.engines.transformers.engine import TransformersEngine
from backends.engines.transformers.memory import ran_out
from config.engines import TransformersOptions
from tests.backends import random_vision
from tests.backends.container_contract import GREEDY, run

pytestmark = pytest.mark.anyio

KIND = "qwen2_5_vl"
PICTURE = Pillow.new("RGB", (32, 32), "red")
ENDLESS = Sampling(temperature=0, ban_eos=True)
CARD_FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
CPU_FULL = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")


class Subject(DrivenContainer):
    """A container that can be broken: its model is at hand, and its processor raises what lies in
    `faults`.
    """

    def __init__(self, loaded: loading.TransformersModel) -> None:
        self.model = loaded.model
        self.faults: list[Exception] = []
        self._process = loaded.processor
        loaded.processor = self._processor
        loaded.traced = None  # so that what is hung onto the model's forward is called
        super().__init__(TransformersEngine(loaded))

    def _processor(self, **inputs: Any) -> Any:
        if self.faults:
            raise self.faults.pop()
        return self._process(**inputs)

    def sees_nothing(self) -> None:
        """From now on its vision tower fails."""

        def fail(*_: Any) -> None:
            raise KeyError("no eyes")

        self._eyes = self.model.model.visual.register_forward_pre_hook(fail)

    def sees_again(self) -> None:
        self._eyes.remove()

    def job(self, pictures: int) -> Generation:
        prompt = self.tokenize(
            random_vision.prompt(random_vision.KINDS[KIND], pictures), special=True
        )
        shown = Image(32, 32, Pixels(PICTURE.tobytes()))
        return Generation(prompt=prompt, images=(shown,) * pictures, sampling=GREEDY, max_tokens=8)


@pytest.fixture(scope="module")
async def subject(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    """One for all: it survives every test."""
    folder = random_vision.write(KIND, tmp_path_factory.mktemp("sighted"))
    files = catalog.recognise(folder, "transformers")
    container = Subject(loading.load(files, TransformersOptions(device="cpu"), lambda _: True))
    yield container
    await container.aclose()


@contextmanager
def breaking(model: Any, error: Exception, after: int) -> Any:
    """The model's forward raises `error` once `after` passes were made."""
    passes = iter(range(after))

    def fail(*_: Any) -> None:
        if next(passes, None) is None:
            raise error

    hook = model.register_forward_pre_hook(fail)
    yield
    hook.remove()


async def goes_on(subject: Subject) -> None:
    for pictures in (0, 1):
        _, ended = await run(subject, subject.job(pictures))
        assert isinstance(ended, Ended)


@pytest.mark.parametrize("pictures", [0, 1], ids=["batched", "alone"])
@pytest.mark.parametrize("after", [0, 3], ids=["in the prompt", "in the answer"])
@pytest.mark.parametrize(
    ("error", "raised"),
    [(CARD_FULL, OutOfMemory), (CPU_FULL, OutOfMemory), (KeyError("odd"), GenerationFailed)],
    ids=["card full", "memory full", "broken"],
)
async def test_a_pass_that_fails(
    pictures: int, after: int, error: Exception, raised: type[BackendError], subject: Subject
) -> None:
    with breaking(subject.model, error, after):
        with pytest.raises(raised):
            await run(subject, subject.job(pictures))
    await goes_on(subject)


async def test_memory_may_run_out_time_and_again(subject: Subject) -> None:
    for _ in range(3):
        with breaking(subject.model, CARD_FULL, after=2):
            async with anyio.create_task_group() as tasks:
                for pictures in (0, 0, 1):
                    tasks.start_soon(fails, subject, pictures)
    await goes_on(subject)


async def test_a_picture_job_that_fails_leaves_those_beside_it_alone(subject: Subject) -> None:
    broken = subject.job(1)
    blind = Generation(prompt=subject.job(0).prompt, sampling=ENDLESS, max_tokens=30)
    async with subject.generate(blind) as outputs:
        await anext(aiter(outputs))
        subject.sees_nothing()
        for _ in range(3):
            with pytest.raises(GenerationFailed, match="no eyes"):
                await run(subject, broken)
        subject.sees_again()
        *_, last = [output async for output in outputs]
    assert isinstance(last, Ended)
    assert last.completion_tokens == 30
    assert subject.failure is None
    await goes_on(subject)


async def fails(subject: Subject, pictures: int) -> None:
    with pytest.raises(OutOfMemory):
        await run(subject, subject.job(pictures))


@pytest.mark.parametrize("pictures", [0, 1], ids=["batched", "alone"])
async def test_who_keeps_the_error_keeps_no_tensors(pictures: int, subject: Subject) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def fill(*_: Any) -> None:
        activations = torch.zeros(8)
        held.append(weakref.ref(activations))
        raise CARD_FULL

    with subject.model.register_forward_pre_hook(fill):
        with pytest.raises(OutOfMemory) as kept:
            await run(subject, subject.job(pictures))
    assert str(CARD_FULL) in str(kept.value)
    assert [tensor() for tensor in held] == [None]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MemoryError(), OutOfMemory),
        (CPU_FULL, OutOfMemory),
        (KeyError("size"), GenerationFailed),
        (AssertionError(), GenerationFailed),
    ],
    ids=repr,
)
async def test_a_processor_that_fails(
    error: Exception, raised: type[BackendError], subject: Subject
) -> None:
    subject.faults.append(error)
    with pytest.raises(raised):
        await run(subject, subject.job(1))
    await goes_on(subject)


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
    ids=str,
)
def test_what_means_that_memory_ran_out(error: Exception, full: bool) -> None:
    assert ran_out(error) == full
