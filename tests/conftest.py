"""What all tests share: async tests run on asyncio, because the server does."""

import gc

import pytest
from hypothesis import HealthCheck, settings

# A test states a promise, not a speed: a busy machine breaks none.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


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
