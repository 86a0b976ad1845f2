"""These tests need a CUDA card and nothing else but the checkout: `make test-gpu`."""

import pytest
import torch

from backends.exllamav2.library import Library, installed


@pytest.fixture(scope="session")
def card() -> str:
    """The card's name. Who asks for these tests wants them run: without a card they fail."""
    if not torch.cuda.is_available():
        pytest.fail(f"no CUDA card is here, or torch {torch.__version__} can't use it")
    return str(torch.cuda.get_device_name())


@pytest.fixture(scope="session")
def library(card: str) -> Library:
    """exllamav2, whose extension is compiled now if it wasn't before: some minutes."""
    return installed()
