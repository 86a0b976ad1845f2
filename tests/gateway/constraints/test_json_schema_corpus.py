"""200 schemas from the field are served, and nothing that satisfies one is refused but what it
doesn't list.
"""

import json
from typing import Any

import pytest

from tests.gateway.constraints.machine import Machine, cases, schema


def refused_of(machine: Machine, values: list[Any]) -> list[Any]:
    texts = {
        json.dumps(value, ensure_ascii=False, separators=separators): value
        for value in values
        for separators in (None, (",", ":"))
    }
    return [value for text, value in texts.items() if not machine.takes(text)]


def opened(node: Any) -> Any:
    """`node`, which says of each object that others than its properties may be there."""
    if isinstance(node, list):
        return [opened(each) for each in node]
    if not isinstance(node, dict):
        return node
    further = {"additionalProperties": True} if isinstance(node.get("properties"), dict) else {}
    return {**further, **{key: opened(each) for key, each in node.items()}}


def test_every_schema_is_served_and_takes_what_satisfies_it() -> None:
    refused = []
    for case in cases():
        machine = Machine(schema(opened(case.schema)).text)
        refused += [(case.id, value) for value in refused_of(machine, case.valid)]
    assert refused == []


@pytest.mark.slow
def test_as_they_stand_few_refuse_what_satisfies_them_for_members_that_they_dont_list() -> None:
    refusing = []
    for case in cases():
        made = schema(case.schema)
        if refused_of(Machine(made.text), case.valid):
            assert made.closed
            refusing.append(case.id)
    assert len(refusing) <= 10


@pytest.mark.slow
def test_most_schemas_are_carried_whole() -> None:
    relaxed = [case.id for case in cases() if schema(case.schema).relaxed]

    assert len(relaxed) <= 21  # one of them for what stands inside `oneOf`
