"""200 schemas from the field are served, and nothing that satisfies one is refused."""

import json

from tests.gateway.constraints.machine import Machine, cases, schema


def test_every_schema_is_served_and_takes_what_satisfies_it() -> None:
    refused = []
    for case in cases():
        machine = Machine(schema(case.schema).text)
        for value in case.valid:
            for separators in (None, (",", ":")):
                text = json.dumps(value, ensure_ascii=False, separators=separators)
                if not machine.takes(text):
                    refused.append((case.id, text))
    assert refused == []


def test_most_schemas_are_carried_whole() -> None:
    relaxed = [case.id for case in cases() if schema(case.schema).relaxed]

    assert len(relaxed) <= 20
