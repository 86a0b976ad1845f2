"""The routes of a module, and what each takes and gives, by its signature.

A handler's parameter `order` is the request's body, read as the struct that it is annotated with;
`content` likewise, of a body that may be long. What the handler returns is written as JSON of the
annotated type. One that sends its answer itself is annotated `ASGIApp`: what that takes and gives
is said to the decorator or, where it is long, put in place of what the decorator made of it.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import signature
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from litestar import head
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from gateway.dialects.dialect import body
from gateway.dialects.fields import Fields, given_fields, json_object, order_object
from gateway.http.openapi import Described
from gateway.http.sse import Plain

Read: TypeAlias = Callable[[bytes, type[Any]], Any]
Work: TypeAlias = Callable[..., Awaitable[Any]]
OK, NO_CONTENT = 200, 204


def read_order(content: bytes, shape: type[Any]) -> Any:
    """A short body as a `shape`. Raises InvalidRequest, TooLarge."""
    return Fields(order_object(content), {}).read(shape)


def read_content(content: bytes, shape: type[Any]) -> Any:
    """A body as a `shape`; a null is no field. Raises InvalidRequest, TooLarge."""
    return given_fields(json_object(content)).read(shape)


class Routes(dict[HTTPRouteHandler, Described]):
    """A module's routes, each decorated with `@api(get, "/path", …)`, and what each takes and
    gives. `order`: how short bodies are read here.
    """

    def __init__(self, order: Read = read_order) -> None:
        super().__init__()
        self._read: Mapping[str, Read] = {"order": order, "content": read_content}

    def __call__(
        self, verb: Callable[..., HTTPRouteHandler], path: str | list[str], **options: Any
    ) -> Callable[[Work], HTTPRouteHandler]:
        """Add a route. `verb`: Litestar's decorator, which takes those `options` that are no fields
        of `Described`.
        """
        said = {name: options.pop(name) for name in Described.__struct_fields__ if name in options}

        def add(work: Work) -> HTTPRouteHandler:
            kinds = get_type_hints(work, include_extras=True)
            taken = next((name for name in self._read if name in kinds), "")
            status, gives = options.get("status_code", OK), kinds["return"]
            writes = gives != ASGIApp and status != NO_CONTENT and verb is not head
            answered = self._answering(work, taken, kinds, status if writes else None)
            handler = verb(path, **options)(answered)
            told = {"takes": kinds.get(taken)}
            if writes:
                told |= {"gives": _each(gives), "status": status}
            self[handler] = Described(**{**told, **said})
            return handler

        return add

    def _answering(self, work: Work, taken: str, kinds: dict[str, Any], status: int | None) -> Work:
        """`work` as Litestar calls it: with a request, and an answer that sends itself. `status`:
        None: it is one already, or there is none.
        """
        if not taken and status is None:
            return work

        @wraps(work)
        async def answered(**given: Any) -> Any:
            if taken:
                sent, read = await given["request"].body(), self._read[taken]
                if taken == "order":  # short, or refused at once
                    given[taken] = read(sent, kinds[taken])
                else:
                    given[taken] = await given["services"].read(
                        lambda content: read(content, kinds[taken]), sent
                    )
            found = await work(**given)
            return found if status is None else Plain(body(found), status=status)

        called = signature(work)
        rest = [one for name, one in called.parameters.items() if name != taken]
        seen = {name: kind for name, kind in kinds.items() if name != taken}
        answered.__annotations__ = seen if status is None else {**seen, "return": ASGIApp}
        answered.__signature__ = called.replace(parameters=rest)  # type: ignore[attr-defined]
        return answered


def _each(gives: Any) -> tuple[Any, ...]:
    """The types of an answer."""
    kinds = get_args(gives) if get_origin(gives) is UnionType else (gives,)
    return tuple(None if kind is NoneType else kind for kind in kinds)
