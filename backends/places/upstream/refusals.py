"""Another server's error as the client gets it: its status, type and message, without its addresses
and keys.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from backends.contract.errors import UpstreamError
from backends.places.upstream.reading import MOST_WORDS, error_in

MAX_MESSAGE = 2_000  # characters
HIDDEN = "…"
# A URL, an address with its port, and what has the form of a key: whole words only.
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,10}://[^\s\"'<>]+", re.IGNORECASE)
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b|\[[0-9a-fA-F:.]{2,45}\](?::\d+)?")
_KEY = re.compile(r"\b(?:sk|pk|key|hf|gsk|xai)[-_][A-Za-z0-9_*.-]{6,}")

# Statuses that may be about the server, not the request: another replica may do better.
ELSEWHERE = frozenset({403, 404, 408, 429, 500, 502, 503, 504, 529})
IN_DOUBT = frozenset({403, 408, 500})  # of them: failures that a request can cause
NO_FAILURES = frozenset({404, 429})


class Cleaner:
    """Takes out of texts what clients needn't know. `urls`, `secrets`: those of one upstream."""

    def __init__(self, urls: Iterable[str], secrets: Iterable[str]) -> None:
        hosts = {part for url in urls for part in _places(url)}
        words = sorted({*filter(None, secrets), *hosts}, key=len, reverse=True)
        self._own = re.compile("|".join(map(re.escape, words))) if words else None

    def clean(self, text: str) -> str:
        """`text`, cut to `MAX_MESSAGE` at last, so that no half of a key is left."""
        for pattern in (self._own, _URL, _ADDRESS, _KEY):
            if pattern is not None:
                text = pattern.sub(HIDDEN, text)
        return text[:MAX_MESSAGE]

    def cleaned(self, error: UpstreamError) -> UpstreamError:
        """`error` as clients may see it."""
        return UpstreamError(
            self.clean(str(error)),
            status=error.status,
            type=self.clean(error.type),
            code=None if error.code is None else self.clean(error.code),
            param=None if error.param is None else self.clean(error.param),
            retry_after=error.retry_after,
        )


def _places(url: str) -> tuple[str, ...]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return (url, parts.netloc, host) if "." in host else (url, parts.netloc)


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
    """The error that a response with another status than 200 is. Not cleaned yet.

    401 is about our key, which the client can't change: it becomes 502.
    """
    error = _read(body, status)
    if 300 <= status < 400:
        text = "The upstream sent a redirect, which is not followed."
        return UpstreamError(text, code="upstream_redirects")
    if status == 401:
        return UpstreamError(
            f"The upstream refused this server's key: {error}", code="upstream_refused_key"
        )
    error.status = status if 400 <= status <= 599 else 502
    error.retry_after = retry_after(headers)
    return error


def _read(body: bytes, status: int) -> UpstreamError:
    """An error in a known shape, or whatever text there is."""
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    if (error := error_in(body, kind)) is not None:
        return error
    is_page = body.lstrip().startswith(b"<")
    text = "" if is_page else body[:MOST_WORDS].decode("utf-8", "replace")
    return UpstreamError(text or f"The upstream answered with status {status}.", type=kind)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from a number or a date. None where it has no valid value."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return seconds if 0 <= seconds <= 86_400 else None
