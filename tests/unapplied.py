"""What a parsed request says is not applied, as tests compare it."""

from typing import Any


def names(exchange: Any) -> tuple[str, ...]:
    """The names, as the client wrote them."""
    return tuple(field.name for field in exchange.request.answering.unapplied)
