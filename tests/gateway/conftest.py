"""The gateway's tests run on the scripted engine and llama.cpp: torch takes seconds to import."""

import sys
from collections.abc import Iterator

import pytest

from backends.engines.llamacpp import library
from backends.machine import prebuilt

if prebuilt.library() is not None:
    library.imported()  # tests that import the bindings themselves would look for a compiled one

SLOW_TO_IMPORT = {"torch", "transformers", "exllamav2", "exllamav3"}


@pytest.fixture(scope="session", autouse=True)
def without_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unless a slow test was asked for, or other tests imported them before."""
    before = SLOW_TO_IMPORT & sys.modules.keys()
    yield
    if not any(item.get_closest_marker("slow") for item in request.session.items):
        assert before or not SLOW_TO_IMPORT & sys.modules.keys(), (
            "a test of the gateway needs torch"
        )
