"""What one job's parameters raise fails that job alone, and is no fault of the engine.

The engine is stepped by hand, because whoever stands above it may refuse such parameters.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import BackendError
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.engine import JobFailed, Token
from backends.engines.transformers import loading
from backends.engines.transformers.engine import TransformersEngine
from config.engines import TransformersOptions

PROMPT = (300, 301, 302, 300, 301, 302, 300, 301)
TOO_LARGE: Any = 10**400
HEALTHY = Generation(
    prompt=PROMPT,
    sampling=Sampling(
        seed=3, top_p=0.95, xtc_probability=0.5, presence_penalty=0.5, ban_eos=True, temperature=2.0
    ),
)
DRY = Sampling(dry_multiplier=1.0, dry_base=1e300, dry_allowed_length=0)
HOSTILE = (
    Generation(prompt=PROMPT, sampling=DRY),
    Generation(prompt=PROMPT, sampling=msgspec.structs.replace(DRY, dry_base=TOO_LARGE)),
    Generation(prompt=PROMPT, sampling=msgspec.structs.replace(DRY, dry_multiplier=TOO_LARGE)),
    Generation(prompt=PROMPT, sampling=Sampling(temperature=TOO_LARGE)),
    Generation(prompt=PROMPT, sampling=Sampling(top_k=TOO_LARGE)),
    Generation(prompt=PROMPT, sampling=Sampling(min_p=TOO_LARGE)),
    Generation(prompt=PROMPT, sampling=Sampling(presence_penalty=TOO_LARGE)),
    Generation(prompt=PROMPT, sampling=Sampling(logit_bias=((5, TOO_LARGE),))),
    Generation(prompt=PROMPT, sampling=Sampling(seed=TOO_LARGE, temperature=1e-40)),
    Generation(prompt=PROMPT, logprobs=-1),
)


ALONE = pytest.param("one after another", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=["batched", ALONE])
def engine(request: pytest.FixtureRequest) -> Iterator[TransformersEngine]:
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    loaded = loading.load(files, TransformersOptions(device="cpu"), lambda _: True)
    if request.param != "batched":
        loaded.pattern = None
    made = TransformersEngine(loaded)
    yield made
    made.close()


def said(engine: TransformersEngine, beside: Sequence[Generation] = ()) -> list[int]:
    """The healthy job's first tokens; others are admitted after its second."""
    tokens: list[int] = []
    running = {0}
    engine.admit(0, HEALTHY)
    while len(tokens) < 8:
        for result in engine.step():
            if isinstance(result, JobFailed):
                assert result.key, "the healthy job never fails"
                engine.release(result.key)
                running.remove(result.key)
            elif isinstance(result, Token) and not result.key:
                tokens.append(result.id)
        for key, job in enumerate(beside if len(tokens) == 2 else (), start=1):
            if key not in running:
                try:
                    engine.admit(key, job)
                except BackendError:
                    continue
                running.add(key)
    for key in running:
        engine.release(key)
    return tokens


def test_a_job_that_raises_fails_alone(engine: TransformersEngine) -> None:
    alone = said(engine)
    assert said(engine, HOSTILE) == alone
    for job in HOSTILE:
        assert said(engine, [job, job]) == alone


def test_a_job_that_raises_by_itself_is_no_fault_of_the_engine(engine: TransformersEngine) -> None:
    for job in HOSTILE:
        try:
            engine.admit(1, job)
        except BackendError:
            continue
        for _ in range(3):
            if any(isinstance(result, JobFailed) for result in engine.step()):
                break
        engine.release(1)
