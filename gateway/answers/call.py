"""One call of a client on its way through the answers: what it wants, and who wants it."""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from backends.contract.remote import UNKNOWN_CALLER, Caller
from config.values import alike
from gateway.keys.access import Access
from gateway.registry import Waiting

T = TypeVar("T")
U = TypeVar("U")

OnWait: TypeAlias = Callable[[Waiting], None]


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """`caller`: for a server elsewhere that answers it; `on_wait` is told of the wait for the
    model; `conversation`: what the client calls the one it belongs to.
    """

    request: T
    access: Access
    caller: Caller = UNKNOWN_CALLER
    on_wait: OnWait | None = None
    conversation: str = ""

    def of(self, request: U) -> "Call[U]":
        """The same caller's, for another request."""
        return alike(Call, self)(request=request)
