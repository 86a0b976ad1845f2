"""Which parser reads which syntax."""

from gateway.splitter.calls import Calls
from gateway.splitter.payloads import (
    bare_dict,
    elements,
    json_calls,
    key_values,
    named_json,
    nested_elements,
    pythonic,
)
from gateway.splitter.reading import Parsing, Reader
from gateway.splitter.syntax import (
    BareDictCalls,
    ElementCalls,
    JsonCalls,
    KeyValueCalls,
    NamedJsonCalls,
    NestedElementCalls,
    Syntax,
)


def parse(reader: Reader, calls: Calls, syntax: Syntax, opener: str) -> Parsing[None]:
    """Reads calls after `opener`, which may be "". Raises Malformed where the text fits none."""
    match syntax:
        case JsonCalls():
            return json_calls.parse(reader, calls, syntax)
        case NamedJsonCalls():
            return named_json.parse(reader, calls, syntax, opener)
        case ElementCalls():
            return elements.parse(reader, calls, syntax, opener)
        case KeyValueCalls():
            return key_values.parse(reader, calls, syntax, opener)
        case NestedElementCalls():
            return nested_elements.parse(reader, calls, syntax, opener)
        case BareDictCalls():
            return bare_dict.parse(reader, calls, syntax)
        case _:
            return pythonic.parse(reader, calls, syntax)
