"""What the tests of several engines share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def seeing_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model that sees, taught once: a Hugging Face folder."""
    from tests.backends import trained_vision

    return trained_vision.train(tmp_path_factory.mktemp("seeing"))
