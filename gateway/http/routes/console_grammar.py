"""The check of a grammar while it is written: whether it can be enforced, what of it is relaxed,
and how a text misses it. No model takes part.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from litestar import post

from backends.contract.conversation import Grammar, JsonSchema, Regex, Shape
from gateway.constraints.compiling import fault_unconstrained, grammar_of
from gateway.http.auth import AnyRequest
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import attended
from gateway.terms.errors import InvalidRequest

EXAMPLE = {"A regex, and a text": {"kind": "regex", "grammar": "[0-9]+", "text": "12"}}

api = Routes()


class GrammarOrder(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: what `grammar` is: a JSON schema, a regex, or a grammar of GBNF or Lark. `text`: to
    be held against it; null: nothing is.
    """

    kind: Literal["schema", "regex", "grammar"]
    grammar: str
    text: str | None = None


class GrammarWire(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: why it can't be enforced. `relaxed`: places where it is enforced less strictly than
    it is written. `fault`: how the text misses it; null where it has the form, or none was given.
    """

    ok: bool
    error: str | None = None
    relaxed: Sequence[str] = ()
    fault: str | None = None


@api(post, "/v1/admin/grammar/check", status_code=200, access="user", examples=EXAMPLE)
async def check(request: AnyRequest, services: Services, order: GrammarOrder) -> GrammarWire:
    """Check a schema, a regex or a grammar, and a text against it."""
    async with attended(request):
        return await services.threads.run(lambda _wanted: checked(order))


def checked(order: GrammarOrder) -> GrammarWire:
    """Belongs into a worker thread: see `gateway.constraints.compiling`."""
    shape = _shape(order)
    try:
        grammar = grammar_of(shape)
    except InvalidRequest as error:
        return GrammarWire(ok=False, error=error.message.removeprefix("grammar: "))
    fault = None if order.text is None else fault_unconstrained(shape, order.text)
    relaxed = [str(note) for note in (*grammar.relaxed, *grammar.closed)]
    return GrammarWire(ok=True, relaxed=relaxed, fault=fault)


def _shape(order: GrammarOrder) -> Shape:
    """Raises InvalidRequest for a schema that is no JSON."""
    match order.kind:
        case "schema":
            return JsonSchema(schema=order.grammar.encode(), field="grammar")
        case "regex":
            return Regex(pattern=order.grammar, field="grammar")
        case "grammar":
            return Grammar(text=order.grammar, field="grammar")
