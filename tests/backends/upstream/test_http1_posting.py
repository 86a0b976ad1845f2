"""Requests with heads that are written once say what httpx's own would."""

from typing import Any

import httpx
import pytest

from backends.upstream.http1 import DirectClient, post
from backends.upstream.upstream import client_of
from tests.backends.upstream.far import config, far, with_status

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/chat/completions", "/messages?a=1"])
async def test_both_ways_say_the_same(path: str) -> None:
    options: dict[str, Any] = {"key": "sk-ours", "headers": {"X-Team": "blue"}}
    over = {"content-type": "application/json", "authorization": "Bearer sk-theirs"}
    async with far(with_status(200, b"{}", "x-told: yes")) as one:
        settings = config(one, **options)
        async with client_of(settings) as direct, httpx.AsyncClient() as plain:
            assert isinstance(direct, DirectClient)
            plain.headers = direct.headers
            for client in (direct, plain):
                answer = await post(client, one.url + path, b'{"a": 1}', over)
                assert (answer.status_code, answer.headers["x-told"]) == (200, "yes")
                assert b"".join([part async for part in answer.stream]) == b"{}"
                await answer.aclose()

    ours, theirs = one.asked
    assert ours == theirs
    assert ours.headers["authorization"] == "Bearer sk-theirs"
    assert ours.headers["x-team"] == "blue"


async def test_a_header_that_would_end_its_line_is_not_posted() -> None:
    async with far(with_status(200, b"{}")) as one, client_of(config(one)) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await post(client, one.url, b"", {"x-request-id": "a\r\nevil: 1"})
    assert one.asked == []
