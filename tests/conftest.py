"""What all tests share: async tests run on asyncio, because the server does."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
