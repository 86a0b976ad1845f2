"""These tests need a CUDA card and nothing else but the checkout: `make test-gpu`."""

from importlib import import_module
from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def card() -> str:
    """The card's name. Who asks for these tests wants them run: without a card they fail."""
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
    return import_module(f"backends.{backend}.container").installed()
