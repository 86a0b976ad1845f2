"""A client's JSON schema as a grammar: carried by llguidance as far as it can, relaxed to the
nearest that it can where it can't, and the whole of it for the check afterwards.
"""

from gateway.constraints.grammars import Check, CompileBudget, Relaxation, ShapeGrammar, runnable
from gateway.constraints.reading import read
from gateway.constraints.relaxing import relaxed, schema_entry
from gateway.errors import InvalidRequest
from gateway.shapes import JsonSchema


def schema_grammar(
    shape: JsonSchema, name: str, allowance: CompileBudget | None = None
) -> ShapeGrammar:
    """Raises InvalidRequest, see `compiling.grammar_of`."""
    schema = read(shape.schema, shape.field)
    carried, relaxations = relaxed(schema, shape.field, allowance or CompileBudget())
    if shape.strict:
        _enforced(relaxations, shape.field)
    entries = runnable((schema_entry(carried, name),), shape.field)
    return ShapeGrammar(name=name, entries=entries, relaxed=relaxations, check=Check(schema.check))


def _enforced(relaxations: tuple[Relaxation, ...], field: str) -> None:
    """Raises InvalidRequest where there are any."""
    for each in relaxations:
        message = f'{field}: {each.place}: "{each.keyword}" can\'t be enforced'
        raise InvalidRequest(f"{message}; strict: true asks for it.", param=field)
