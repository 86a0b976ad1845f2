"""A chain of samplers is freed with what has it, and no other way."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("backends.engines.llamacpp.library")

ROOT = Path(__file__).parents[4]
PROGRAM = """
from types import SimpleNamespace
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.llamacpp import sampling

def free(pointer):
    print("freed", flush=True)

sampling.api.llama_sampler_free = free
words = SimpleNamespace(size=100, ends=frozenset(), pointer=None)
chain = sampling.Chain(Generation(prompt=(1,), sampling=Sampling(seed=1)), words, 1_000)
other = sampling.Chain(Generation(prompt=(1,), sampling=Sampling(seed=1)), words, 1_000)
del other
print("the end", flush=True)
"""


def test_one_that_is_in_use_outlasts_the_process() -> None:
    """The engine's thread may be drawing from it while Python ends."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split("\n") == ["freed", "the end", ""]
