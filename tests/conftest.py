"""What all tests share: async tests run on asyncio, because the server does."""

import gc

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def _settled_heap() -> None:
    """Every unload collects garbage; it needn't walk through three engines and ten thousand tests
    each time.
    """
    gc.collect()
    gc.freeze()
