"""What the tests of several APIs' routes share."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from config.settings import ModelConfig
from tests.gateway.http.serving import Running, config, serving


@pytest.fixture(scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory, embed_gguf: Path
) -> AsyncIterator[Running]:
    """With the bundled model, a scripted one and an encoder."""
    folder = tmp_path_factory.mktemp("server")
    settings = config(folder)
    embedding = ModelConfig(name="minilm", path=str(embed_gguf))
    settings = msgspec.structs.replace(settings, models=(*settings.models, embedding))
    async with serving(settings, folder) as running:
        yield running
