"""Traces of requests. What writes them is `gateway.http.otel`, which needs an extra: it is imported
where `tracing` is configured, and nowhere else.

A request is a span; its wait, its model's load, the reading of its prompt and its answer are spans
below it. They are written when it is over, by the times that its report has, so that a token costs
nothing. Its parent comes in the header `traceparent`, and servers elsewhere get one in turn (W3C
Trace Context). Neither prompts, answers nor keys are in a span.
"""

from collections.abc import Mapping
from typing import Protocol

from backends.contract.catalog import command
from backends.contract.remote import TRACE_HEADERS, Caller
from config.errors import ConfigError
from config.settings import TracingConfig
from gateway.http.standing import RequestReport

PARENT, _STATE = TRACE_HEADERS  # which says nothing without the first
LONGEST = 512  # characters of such a header


class Trace(Protocol):
    """One request's span. `headers`: for servers elsewhere."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def served_by(self, upstream: str, url: str) -> None:
        """A server elsewhere has begun to answer."""

    def end(self, report: RequestReport) -> None:
        """The request is over, now."""


class Tracing(Protocol):
    """One per server."""

    def begin(self, api: str, caller: Caller) -> Trace:
        """A request of `caller`, now; its parent is the caller's span, if it has one."""
        ...

    def close(self) -> None:
        """Send the last spans. Blocks."""


def tracing_of(config: TracingConfig, version: str) -> Tracing | None:
    """None where it isn't configured. Raises ConfigError where the extra isn't installed."""
    if config.endpoint is None:
        return None
    try:
        from gateway.http.otel import OpenTelemetry  # noqa: PLC0415 - an extra
    except ImportError:
        problem = f"OpenTelemetry is not installed: {command('otel')}"
        raise ConfigError("the configuration", "$.tracing.endpoint", problem) from None
    return OpenTelemetry(config, version)


def trace_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Those of a request that say which trace it belongs to: none without the one that names it."""
    if PARENT not in headers:
        return {}
    given = ((name, headers.get(name, "")) for name in TRACE_HEADERS)
    return {
        name: value
        for name, value in given
        if 0 < len(value) <= LONGEST and value.isascii() and value.isprintable()
    }
