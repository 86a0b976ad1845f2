"""The vocabulary of the format table: markers of phases, syntaxes of calls, and the reasoning
markers that several formats share. Data only.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

IdStyle: TypeAlias = Literal["openai", "mistral", "kimi"]


class ReasoningMarkers(msgspec.Struct, frozen=True):
    """What surrounds reasoning. The first of each tuple is what the family itself writes.

    `anywhere`: the open marker is a special token and counts wherever it stands. A textual one
    counts only at the very start of the output; later it is a word of the answer.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    anywhere: bool = False

    @property
    def open(self) -> str:
        """What begins reasoning, as the family writes it."""
        return self.opens[0]

    @property
    def close(self) -> str:
        """What ends reasoning, as the family writes it: say this to make a model stop thinking."""
        return self.closes[0]


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    """What every syntax of calls has: the texts around a section of calls, and whether calls may
    stand at the start of an answer without an opener.
    """

    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    at_start: bool = False


class OpenedCalls(_Calls, frozen=True, kw_only=True):
    """A syntax in which each call has an opener of its own; `before_call` may stand before it."""

    before_call: tuple[str, ...] = ()
    call_opens: tuple[str, ...]
    call_closes: tuple[str, ...] = ()


class JsonCalls(_Calls, frozen=True, kw_only=True):
    """Calls as JSON objects that carry name and arguments: one, several, or an array of them.

    `closers` may be missing in the output. `fences`: texts that may stand before the JSON.
    `named_by_key`: each object is {name: arguments}.
    """

    fences: tuple[str, ...] = ()
    needs_fence: bool = False
    needs_array: bool = False
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    id_keys: tuple[str, ...] = ()
    named_by_key: bool = False


class NamedJsonCalls(OpenedCalls, frozen=True, kw_only=True):
    """Calls as a name, then the arguments as a JSON object.

    `openers` begin a section, or at once a call where they are in `call_opens` too. `name_ends` and
    the closers may be missing. `id_end`: an id stands before the name and ends so. `id_opens`: an
    id follows the name. `numbered`: the name is written `functions.N:3`, which is the call's id.
    `or_array`: how an array is read. `prose`: the opener is ordinary text, too, unless a tool's
    name follows.
    """

    name_prefixes: tuple[str, ...] = ()
    name_ends: tuple[str, ...] = ()
    id_end: str = ""
    id_opens: tuple[str, ...] = ()
    fences: tuple[str, ...] = ()
    numbered: bool = False
    prose: bool = False
    or_array: JsonCalls | None = None


Typing: TypeAlias = Literal["schema", "string", "type"]


class ElementCalls(OpenedCalls, frozen=True, kw_only=True):
    """Calls as elements: `<invoke name="N"><parameter name="K">V</parameter></invoke>`.

    A head holds attributes (`name="N"`) or just the name (`<function=N>`). `typing`: what gives a
    value's type: the tool's schema, or the attribute of that name (`string="true"`,
    `type="number"`). `trims_newline`: one newline at each side of a value is markup. `cdata`: a
    value may stand in `<![CDATA[..]]>`.
    """

    head_ends: tuple[str, ...] = (">",)
    after_call: tuple[str, ...] = ()
    parameter_opens: tuple[str, ...]
    parameter_closes: tuple[str, ...]
    name_attributes: tuple[str, ...] = ("name",)
    typing: Typing = "schema"
    trims_newline: bool = False
    cdata: bool = False


class KeyValueCalls(OpenedCalls, frozen=True, kw_only=True):
    """Calls as a name and pairs of key and value elements, typed by the tool's schema. Without
    `key_opens` the pairs are lines, and the first of `key_closes` ends a key.
    """

    name_ends: tuple[str, ...] = ()
    key_opens: tuple[str, ...] = ()
    key_closes: tuple[str, ...]
    value_opens: tuple[str, ...] = ()
    value_closes: tuple[str, ...] = ()


class NestedElementCalls(OpenedCalls, frozen=True, kw_only=True):
    """Calls as nested elements named after keys, lists as `<item>`, tags after `prefix`."""

    prefix: str


class BareDictCalls(_Calls, frozen=True, kw_only=True):
    """Calls as `call:N{key:value,..}` with strings between `quote` marks, without escapes."""

    quote: str


class PythonicCalls(_Calls, frozen=True, kw_only=True):
    """Calls as in Python: `[f(a='x', b=1), g()]`, brackets optional unless `needs_list`.

    `method`: what follows the name of a builtin tool, as in `brave_search.call(..)`. `or_objects`:
    how JSON objects in the same place are read.
    """

    needs_list: bool = False
    method: str = ""
    or_objects: JsonCalls | None = None


Syntax: TypeAlias = (
    JsonCalls
    | NamedJsonCalls
    | ElementCalls
    | KeyValueCalls
    | NestedElementCalls
    | BareDictCalls
    | PythonicCalls
)


class Headers(msgspec.Struct, frozen=True, kw_only=True):
    """Messages with a header that says what their body is.

    A header runs from one of `openers` (or from one of `starts` where the output begins) to one of
    `ends`, with `inner` markers in it. Regular expressions with one group find the function called
    (`recipient`), a builtin tool (`foreign`), whose messages are dropped, as other servers do, and
    the kind of text (`channel`): what is none of `reasoning` is content.

    How a model is made to write it: `turn` before any header but the first, then one of `thoughts`,
    of `answers`, or of `calls`, whose `{name}` is the function and whose body its arguments, or
    calls in the format's syntax.
    """

    openers: tuple[str, ...]
    starts: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    ends: tuple[str, ...]
    recipient: str = "(?!)"  # nothing
    foreign: str = "(?!)"
    channel: str
    reasoning: frozenset[str]
    body_ends: tuple[str, ...]
    turn: str = ""
    thoughts: tuple[str, ...]
    answers: tuple[str, ...]
    calls: tuple[str, ...] = ()


class PastCalls(msgspec.Struct, frozen=True):
    """How calls of earlier turns stand in a prompt whose template doesn't write them itself.

    `before` a name, `between` it and the arguments, `after` them. `numbered`: the calls of the
    conversation are counted, behind the name. `pythonic`: the arguments are Python's keywords.
    """

    begin: str
    before: str
    between: str
    after: str
    separator: str
    end: str
    numbered: bool = False
    pythonic: bool = False


PAST_HERMES = PastCalls(
    "", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n", ""
)


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One family's way of writing: an entry of the table.

    `shell_opens` and `shell_closes` surround the answer and are no part of it. `special_tokens`:
    the markers are special tokens, so the engine has to be asked for them
    (`skip_special_tokens=False`), and they mean what they mean wherever they stand.
    """

    id: str
    reasoning: ReasoningMarkers | None = None
    syntaxes: tuple[Syntax, ...] = ()
    headers: Headers | None = None
    shell_opens: tuple[str, ...] = ()
    shell_closes: tuple[str, ...] = ()
    special_tokens: bool = False
    ids: IdStyle = "openai"
    past: PastCalls = PAST_HERMES
    implied_opener: str = ""  # what the prompt ends with and belongs to the output


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a format, or in JSON, keys aside."""
    match value:
        case str():
            yield value
        case list() | tuple() | frozenset():
            for inner in value:
                yield from texts_of(inner)
        case Mapping():
            yield from texts_of(list(value.values()))
        case msgspec.Struct():
            yield from texts_of(msgspec.structs.astuple(value))


THINK = ReasoningMarkers(("<think>",), ("</think>",))
