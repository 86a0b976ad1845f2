"""exllamav2 with weights that people would recognise: SmolLM2 says what it says in transformers."""

import pytest

from config.engines import ExLlamaV2Options, TransformersOptions
from tests.backends.parity import load
from tests.gpu.asking import QUESTIONS, greedy, near
from tests.real import lab

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ASKED = QUESTIONS[:3]
TOKENS = 16
OURS = ExLlamaV2Options(context_length=512, max_concurrent=1)
PRECISE = TransformersOptions(context_length=512, device="cpu", dtype="float32")


async def test_smollm2_says_what_it_says_in_transformers() -> None:
    told = []
    for backend, options in (("exllamav2", OURS), ("transformers", PRECISE)):
        container = await load(backend, options, lab.smollm2_folder())
        told.append([await greedy(container, question, TOKENS) for question in ASKED])
        await container.aclose()
    both = zip(*told, strict=True)
    assert [near(mine, theirs) for mine, theirs in both] == [""] * len(ASKED)
    assert "Paris" in told[0][0].text
