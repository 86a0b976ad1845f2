"""What a client learns of another server's error: all but its addresses and keys."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from backends.places.upstream.refusals import MAX_MESSAGE, Cleaner, refusal, retry_after

CLEANER = Cleaner(["http://gpu-7.lan:8000/v1", "http://box:9000/v1"], ["our-secret", ""])


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("can't reach http://gpu-7.lan:8000/v1/chat: no", "can't reach …/chat: no"),
        ("see gpu-7.lan", "see …"),
        ("at box:9000", "at …"),
        ("a box of keys", "a box of keys"),
        ("10.0.0.3:8000 refused", "… refused"),
        ("[fd00::1]:8000 refused", "… refused"),
        ("wrong key our-secret!", "wrong key …!"),
        ("wrong key sk-proj-abc123DEF456", "wrong key …"),
        ("redis://cache.internal/0 is down", "… is down"),
        ("context has 8192 tokens, you sent 9000", "context has 8192 tokens, you sent 9000"),
        ("version 1.2.3", "version 1.2.3"),
    ],
)
def test_addresses_and_keys_are_taken_out(text: str, cleaned: str) -> None:
    assert CLEANER.clean(text) == cleaned


def test_a_message_is_cut() -> None:
    assert len(CLEANER.clean("x" * 100_000)) == MAX_MESSAGE


def test_a_key_at_the_cut_is_taken_out_whole() -> None:
    text = "x" * (MAX_MESSAGE - 4) + " our-secret"

    assert CLEANER.clean(text).endswith(" …")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "type": "t"}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "too long"}', "too long"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc":["body"]}]'),
        (b"too long", "too long"),
        (b"<html>too long</html>", "The upstream answered with status 400."),
        (b"", "The upstream answered with status 400."),
        (b"[" * 10_000, "[" * 200),
    ],
)
def test_the_message_is_found_in_every_servers_form(body: bytes, message: str) -> None:
    error = refusal(400, {}, body)

    assert (error.status, str(error)) == (400, message)


@pytest.mark.parametrize(
    ("status", "kept", "type"),
    [
        (400, 400, "invalid_request_error"),
        (404, 404, "invalid_request_error"),
        (500, 500, "server_error"),
        (401, 502, "server_error"),
        (204, 502, "server_error"),
        (302, 502, "server_error"),
        (999, 502, "server_error"),
    ],
)
def test_a_status_is_kept_where_it_is_the_clients(status: int, kept: int, type: str) -> None:
    error = refusal(status, {}, b'{"detail": "no"}')

    assert (error.status, error.type) == (kept, type)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("", None),
        ("-1", None),
        ("nan", None),
        ("soon", None),
        ("99999999", None),
    ],
)
def test_retry_after_in_seconds(text: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": text}) == seconds


def test_retry_after_as_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)

    found = retry_after({"retry-after": date})

    assert found is not None
    assert 50 < found <= 60
