"""One server on the bundled model for all tests that only ask it things."""

from collections.abc import AsyncIterator

import pytest

from tests.gateway.http.serving import Running, config, serving


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    async with serving(config(folder), folder) as server:
        yield server
