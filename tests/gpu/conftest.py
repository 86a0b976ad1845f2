"""These tests need a CUDA card and nothing else but the checkout: `make test-gpu`, or
`scripts/card`, which bounds them in time. In its dry run there is no card, and every engine has its
form for CPUs.
"""

import gc
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.machine import devices
from tests.real import lab

DRY = os.environ.get("ROUNDHOUSE_CARD") == "none"
DEVICE = "cpu" if DRY else "cuda:0"


@pytest.fixture(scope="session")
def card() -> str:
    """The card's name. Who asks for these tests wants them run: without a card they fail."""
    if DRY:
        return "none"
    if not torch.cuda.is_available():
        pytest.fail(f"no CUDA card is here, or torch {torch.__version__} can't use it")
    return str(torch.cuda.get_device_name())


@pytest.fixture(scope="module", params=["exllamav2", "exllamav3"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def library(card: str, backend: str) -> Any:
    """The backend's `Library`; its extension is compiled now if it wasn't before: some minutes."""
    return import_module(f"backends.engines.{backend}.container").installed()


@pytest.fixture(scope="session")
def real() -> Path:
    """SmolLM2 135M Instruct at 16 bits, a Hugging Face folder."""
    return lab.smollm2_folder()


@pytest.fixture
def used(card: str) -> Callable[[], int]:
    """Bytes of the first card that are taken, as its driver counts them."""

    def counted() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        if DRY:
            pytest.skip("there is no driver to ask")
        used = devices.memory()["cuda:0"].used
        assert used is not None, "the driver says it of every card"
        return used

    return counted
