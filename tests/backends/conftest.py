"""What the tests of several engines share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def seeing_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model that sees, taught once: a Hugging Face folder."""
    from tests.backends import trained_vision

    return trained_vision.train(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="session")
def embed_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 as a GGUF file."""
    from tests.backends import encoder_folders, encoder_gguf

    path = tmp_path_factory.mktemp("embed") / "minilm.gguf"
    return encoder_gguf.write(encoder_folders.minilm(), path, half=True)
