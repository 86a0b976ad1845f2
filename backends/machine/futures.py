"""Futures that are settled by whoever comes first, and that nobody may wait for any more."""

from asyncio import Future
from typing import TypeVar

T = TypeVar("T")


def settle(future: Future[T], outcome: T | Exception) -> None:
    """Its result or its exception, where it has none yet. An exception that nobody asks for is no
    mistake.
    """
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        future.exception()
    else:
        future.set_result(outcome)
