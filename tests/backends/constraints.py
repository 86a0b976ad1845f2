"""Grammars for tests, and what their texts look like."""

import json

from backends.contract.protocol import Constraint


def lark(text: str, *, fast_forward: bool = True) -> Constraint:
    grammar = json.dumps({"grammars": [{"lark_grammar": text}]})
    return Constraint(grammar=grammar, fast_forward=fast_forward)


def regex(pattern: str, *, fast_forward: bool = True) -> Constraint:
    return lark(f"start: /{pattern}/", fast_forward=fast_forward)


def schema(value: object, *, fast_forward: bool = True) -> Constraint:
    grammar = json.dumps({"grammars": [{"json_schema": value}]})
    return Constraint(grammar=grammar, fast_forward=fast_forward)
