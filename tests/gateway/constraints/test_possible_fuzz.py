"""Schemas that refer to themselves in any way: refused by their field, or never stuck."""

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from backends.contract.conversation import JsonSchema
from backends.contract.grammar_limits import parser_limits
from gateway.constraints.compiling import grammar_of
from gateway.constraints.grammars import byte_tokenizer
from gateway.terms.errors import InvalidRequest

NAMES = ("a", "b", "c")
REFERENCES = st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in NAMES])
LEAVES = REFERENCES | st.sampled_from(
    [{"type": "null"}, {"enum": ["x"]}, {"type": "boolean"}, False]
)


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(st.sampled_from("pqr"), inner, max_size=3)
    return st.one_of(
        st.builds(
            lambda properties, count: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:count],
            },
            members,
            st.integers(0, 3),
        ),
        st.builds(
            lambda items, least: {"type": "array", "items": items, "minItems": least},
            inner,
            st.integers(0, 2),
        ),
        st.builds(
            lambda items: {"type": "array", "prefixItems": items, "minItems": len(items)},
            st.lists(inner, min_size=1, max_size=2),
        ),
        st.builds(
            lambda key, choices: {key: choices},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
    )


SCHEMAS = st.recursive(LEAVES, around, max_leaves=6)


@given(SCHEMAS, st.tuples(SCHEMAS, SCHEMAS, SCHEMAS), st.integers(0, 9))
@settings(max_examples=300)
def test_a_schema_is_refused_or_can_be_followed_to_its_end(
    root: Any, definitions: tuple[Any, ...], seed: int
) -> None:
    whole = root if isinstance(root, dict) else {"type": "object"}
    schema = {**whole, "$defs": dict(zip(NAMES, definitions, strict=True))}
    shape = JsonSchema(schema=json.dumps(schema).encode(), field="schema")
    try:
        grammar = grammar_of(shape)
    except InvalidRequest as error:
        assert error.param == "schema"  # noqa: PT017 - else it is followed
        return
    rng = random.Random(seed)
    matcher = LLMatcher(byte_tokenizer(), grammar.text, log_level=0, limits=parser_limits())
    for _ in range(120):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        assert not matcher.is_error(), (schema, matcher.get_error())
        allowed = [token for token in range(byte_tokenizer().vocab_size) if bits >> token & 1]
        if matcher.is_stopped():
            return
        assert allowed, schema
        assert matcher.consume_token(rng.choice(allowed)), (schema, matcher.get_error())
