"""Both engines with the bundled model, loaded once."""

from collections.abc import Iterator

import pytest

from tests.bundled.examinees import LlamaCppExaminee, TransformersExaminee


@pytest.fixture(scope="session")
def llama_cpp_model() -> Iterator[LlamaCppExaminee]:
    examinee = LlamaCppExaminee()
    yield examinee
    examinee.close()


@pytest.fixture(scope="session")
def transformers_model() -> TransformersExaminee:
    return TransformersExaminee()
