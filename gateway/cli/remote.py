"""A client of a running server's public API."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import httpx

from gateway.cli import CommandFailed

# A model may be loaded, and others served, before the first byte of an answer.
PATIENCE = httpx.Timeout(10.0, read=None)
UNAUTHORIZED = 401


class Remote:
    """One server. Every failure is a CommandFailed in the server's own words."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._http = httpx.Client(base_url=self.url, headers=bearer(key), timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, *fields: str) -> Any:
        """The JSON of an answer, which is an object that has `fields`."""
        with self._translated():
            return self._json(self._http.get(path), fields)

    def text(self, path: str) -> str:
        """An answer as it is."""
        with self._translated():
            return _checked(self._http.get(path)).text

    def post(self, path: str, body: Mapping[str, Any], *fields: str) -> Any:
        """As `get`; of an empty answer, None."""
        with self._translated():
            answer = self._http.post(path, json=body)
            return self._json(answer, fields) if fields or _checked(answer).content else None

    def delete(self, path: str, **params: str) -> Any:
        """As `get`."""
        with self._translated():
            return self._json(self._http.delete(path, params=params))

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON of a stream's events as they come; comments are left out. An event that is an
        error raises.
        """
        headers = {"Accept": "text/event-stream"}
        with (
            self._translated(),
            self._http.stream("POST", path, json=body, headers=headers) as answer,
        ):
            if answer.is_error:
                answer.read()
            _checked(answer)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise self._is_another()
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data is line or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise CommandFailed(_message(event))
                yield event

    def _json(self, answer: httpx.Response, fields: Sequence[str] = ()) -> Any:
        try:
            found = _checked(answer).json()
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found.keys() >= set(fields):
            raise self._is_another()
        return found

    def _is_another(self) -> CommandFailed:
        return CommandFailed(
            f"the server at {self.url} is not Roundhouse; use --url to choose another"
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError:
            raise CommandFailed(
                f"no server answers at {self.url}; start one with `roundhouse serve`, or name "
                "another with --url"
            ) from None
        except httpx.HTTPError as error:
            raise CommandFailed(f"{self.url}: {error}") from None
        except UnicodeEncodeError:  # arguments and stdin may hold any bytes
            raise CommandFailed("the text to send is not valid UTF-8") from None


def bearer(key: str | None) -> dict[bytes, bytes]:
    """The header that carries a key; a file or a variable may have ended it with a line feed."""
    sent = (key or "").strip().encode(errors="surrogateescape")
    return {b"authorization": b"Bearer " + sent} if sent else {}


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise CommandFailed(refusal(answer))
    return answer


def refusal(answer: httpx.Response) -> str:
    """What a server says of an answer that was read and is an error."""
    hint = " (set it with --key or $ROUNDHOUSE_KEY)" if answer.status_code == UNAUTHORIZED else ""
    try:
        return _message(answer.json()) + hint
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}"


def _message(answer: Any) -> str:
    """OpenAI's error envelope, whose `error` may be a text too."""
    error = answer["error"]
    return str(error["message"] if isinstance(error, dict) else error)
