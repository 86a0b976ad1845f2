"""Errors are copied to be said in other words, whatever they are made of."""

from copy import copy

import pytest

from backends.contract.errors import UpstreamError
from gateway.terms.errors import GatewayError, InvalidRequest, UpstreamFailed

FAILED = UpstreamError("too many", status=429, param="max_tokens", code="slow_down")


@pytest.mark.parametrize(
    "error", [UpstreamFailed(FAILED), InvalidRequest("n: too many", param="n", retry_after=1.0)]
)
def test_a_copy_is_the_same_error(error: GatewayError) -> None:
    copied = copy(error)
    assert type(copied) is type(error)
    assert vars(copied) == vars(error)
    assert copied.args == error.args
