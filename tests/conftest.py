"""What all tests share: async tests run on asyncio, because the server does."""

import gc

import pytest
from hypothesis import HealthCheck, settings

# A test states a promise, not a speed: a busy machine breaks none. And what it says of a checkout
# it says again: examples are the same each time, unless `--hypothesis-profile=search` looks for new
# ones, as the fuzzing at length does.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", BUSY, derandomize=True)
settings.register_profile("search", BUSY, derandomize=False)
settings.load_profile("same")


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
