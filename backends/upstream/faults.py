"""Errors of another server in our words: it answered with none, or with none that can be read."""

from backends.errors import UpstreamError


class Unhealthy(UpstreamError):
    """It said nothing that could be handed on: the words are ours."""


def broken(what: str) -> Unhealthy:
    """It sent something invalid."""
    return Unhealthy(f"The upstream sent {what}.", code="upstream_broken")


def too_large(what: str) -> Unhealthy:
    """It sent more than is taken."""
    return Unhealthy(f"The upstream sent {what}.", code="upstream_too_large")


def cut(why: str = "") -> Unhealthy:
    """Its answer has no end."""
    return Unhealthy(f"The upstream cut the answer off{why}.", code="upstream_cut")


def late(what: str, seconds: float) -> Unhealthy:
    """It took too long to do `what`."""
    text = f"The upstream didn't {what} within {seconds:g} s."
    return Unhealthy(text, status=504, code="upstream_timeout")
