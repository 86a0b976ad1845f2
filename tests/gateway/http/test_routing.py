"""A route takes and gives what its signature says, and so does its entry in the document."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar, delete, get, post
from litestar.di import Provide
from litestar.types import ASGIApp

from gateway.http.openapi import Described
from gateway.http.routing import Routes
from gateway.http.sse import Plain

pytestmark = pytest.mark.anyio

EXAMPLES = {"A name": {"name": "Ada"}}
api = Routes()


class Order(msgspec.Struct, frozen=True):
    """Whom to greet."""

    name: str


class Greeting(msgspec.Struct, frozen=True):
    """A greeting."""

    text: str


class Silence(msgspec.Struct, frozen=True):
    """None."""

    seconds: int


class Reader:
    """Services that read a body at once."""

    async def read(self, read: Callable[[bytes], Any], body: bytes) -> Any:
        return read(body)


@api(post, "/greet", status_code=202, examples=EXAMPLES)
async def greet(request: Any, services: Reader, order: Order) -> Greeting | Silence:
    return Greeting(f"Hello, {order.name}!") if order.name else Silence(1)


@api(post, "/long", status_code=200)
async def greet_long(request: Any, services: Reader, content: Order) -> list[Greeting]:
    return [Greeting(content.name)]


@api(get, "/null")
async def null() -> None:
    return


@api(delete, "/nothing", status_code=204)
async def nothing() -> None:
    return


@api(get, "/own", text="text/plain")
async def own() -> ASGIApp:
    return Plain(b"own", media_type=b"text/plain")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    services = Provide(Reader, sync_to_thread=False)
    app: Any = Litestar([*api], dependencies={"services": services}, openapi_config=None)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client


def test_a_route_is_described_by_its_signature() -> None:
    asked = Described(takes=Order, gives=(Greeting, Silence), status=202, examples=EXAMPLES)
    assert api[greet] == asked
    assert api[greet_long] == Described(takes=Order, gives=(list[Greeting],))
    assert api[null] == Described(gives=(None,))
    assert api[nothing] == Described()
    assert api[own] == Described(text="text/plain")


async def test_a_body_is_read_and_what_is_returned_is_written(client: httpx.AsyncClient) -> None:
    answer = await client.post("/greet", json={"name": "Ada"})
    assert (answer.status_code, answer.content) == (202, b'{"text":"Hello, Ada!"}')
    assert answer.headers["content-type"] == "application/json"
    assert (await client.post("/greet", json={"name": ""})).json() == {"seconds": 1}
    answer = await client.post("/long", json={"name": "Ada", "other": None})
    assert (answer.status_code, answer.json()) == (200, [{"text": "Ada"}])


async def test_nothing_is_null_where_the_status_has_a_body(client: httpx.AsyncClient) -> None:
    answer = await client.get("/null")
    assert (answer.status_code, answer.content) == (200, b"null")
    answer = await client.delete("/nothing")
    assert (answer.status_code, answer.content) == (204, b"")


async def test_an_answer_that_sends_itself_is_left_alone(client: httpx.AsyncClient) -> None:
    answer = await client.get("/own")
    assert (answer.headers["content-type"], answer.text) == ("text/plain", "own")
