"""The syntaxes of calls: each has a module that parses it, from text that may be cut anywhere, and
writes its grammar. All of them share:

reading.py     text that arrives in pieces, read as if it were whole
syntax.py      the syntaxes, as data
calls.py       the calls of an answer: numbers, ids, events
arguments.py   arguments as JSON in fragments; json_text.py and python_text.py copy values into it
coercion.py    bare text to JSON by a tool's schema
free_text.py   text that may be anything but some markers; raw.py: values as bare text
writing.py     what the writers of all syntaxes share

Here is the dispatch from a syntax to its module.
"""

from collections.abc import Mapping

from gateway.splitter.payloads import (
    bare_dict,
    elements,
    json_calls,
    key_values,
    named_json,
    nested_elements,
    pythonic,
)
from gateway.splitter.payloads.calls import Calls, read_section
from gateway.splitter.payloads.reading import Parsing, Reader
from gateway.splitter.payloads.syntax import (
    BareDictCalls,
    ElementCalls,
    JsonCalls,
    KeyValueCalls,
    NamedJsonCalls,
    NestedElementCalls,
    PythonicCalls,
    Syntax,
)
from gateway.splitter.payloads.writing import CallLark, CallSection, Unmarked, opened_calls


def parse(reader: Reader, calls: Calls, syntax: Syntax, opener: str) -> Parsing[None]:
    """Reads calls after `opener`, which may be "". Raises Malformed where the text fits none."""
    match syntax:
        case JsonCalls():
            return json_calls.parse(reader, calls, syntax)
        case NamedJsonCalls():
            return named_json.parse(reader, calls, syntax, opener)
        case ElementCalls():
            return read_section(reader, calls, syntax, opener, elements.read_call)
        case KeyValueCalls():
            return read_section(reader, calls, syntax, opener, key_values.read_call)
        case NestedElementCalls():
            return read_section(reader, calls, syntax, opener, nested_elements.read_call)
        case BareDictCalls():
            return bare_dict.parse(reader, calls, syntax)
        case _:
            return pythonic.parse(reader, calls, syntax)


def openings(lark: CallLark, syntax: Syntax) -> Mapping[str, CallSection]:
    """What begins calls in text, and the calls that follow it. Raises Unwritable."""
    match syntax:
        case JsonCalls():
            return json_calls.openings(lark, syntax)
        case NamedJsonCalls():
            return named_json.openings(lark, syntax)
        case ElementCalls():
            return opened_calls(lark, syntax, elements.written_call)
        case KeyValueCalls():
            return opened_calls(lark, syntax, key_values.written_call)
        case NestedElementCalls():
            return opened_calls(lark, syntax, nested_elements.written_call)
        case BareDictCalls():
            section = bare_dict.written(lark, syntax)
        case _:
            section = pythonic.written(lark, syntax)
    return dict.fromkeys(syntax.openers, section)


def unmarked(lark: CallLark, syntax: Syntax) -> Unmarked | None:
    """The calls that an answer may be without an opener; None where it can't be one."""
    match syntax:
        case JsonCalls(at_start=True):
            return json_calls.unmarked(lark, syntax)
        case ElementCalls(at_start=True):
            return elements.unmarked(lark, syntax)
        case PythonicCalls(at_start=True):
            return pythonic.unmarked(lark, syntax)
        case _:
            return None
