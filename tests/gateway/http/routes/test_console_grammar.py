"""The check of a grammar while it is written."""

from typing import Any

import pytest

from gateway.http.routes.console_grammar import GrammarOrder, checked
from tests.gateway.http.serving import Running

pytestmark = pytest.mark.anyio

UNIQUE = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'


def order(kind: Any, grammar: str, text: str | None = None) -> GrammarOrder:
    return GrammarOrder(kind=kind, grammar=grammar, text=text)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (order("regex", "[0-9"), "unclosed character class"),
        (order("grammar", "start: foo"), 'unknown name: "foo"'),
        (order("grammar", 'root ::= "yes'), "not a GBNF grammar"),
        (order("grammar", ""), "no start rule found"),
        (order("grammar", "// a comment"), "no start rule found"),
        (order("schema", '{"type": "objec"}'), '$: "type" must be one of'),
        (order("schema", '{"type":'), "not a JSON schema"),
    ],
)
def test_what_cant_be_enforced_says_why(given: GrammarOrder, error: str) -> None:
    found = checked(given)
    assert not found.ok
    assert found.error is not None
    assert error in found.error


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (order("regex", "[0-9]+", "12"), None),
        (order("regex", "[0-9]+", "1x"), "it isn't of the shape from byte 1 on"),
        (order("regex", "[0-9]+", ""), "it ends before its shape is whole"),
        (order("grammar", 'root ::= "yes" | "no"', "no"), None),
        (order("schema", UNIQUE, "[1, 1]"), '$: "uniqueItems" is not satisfied'),
        (order("schema", UNIQUE, "[1, 2]"), None),
    ],
)
def test_a_text_is_held_against_it(given: GrammarOrder, fault: str | None) -> None:
    found = checked(given)
    assert found.ok
    assert found.fault == fault


def test_what_is_relaxed_is_named() -> None:
    (note,) = checked(order("schema", UNIQUE)).relaxed
    assert note.startswith('$: "uniqueItems" relaxed to')


async def test_a_page_asks_for_it(server: Running) -> None:
    body = {"kind": "regex", "grammar": "[0-9]+", "text": "1x"}
    answer = await server.client.post("/v1/admin/grammar/check", json=body)
    assert answer.status_code == 200
    assert answer.json()["ok"]
    assert "byte 1" in answer.json()["fault"]
    answer = await server.client.post("/v1/admin/grammar/check", json={**body, "kind": "html"})
    assert answer.status_code == 400
    assert "kind" in answer.json()["error"]["message"]
