"""The common part of the writers of all syntaxes: tools, sections of calls, white space."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from backends.contract.conversation import INPUT, JsonSchema, ToolInput
from gateway.constraints.compiling import lark_of
from gateway.constraints.grammars import CompileBudget, proven
from gateway.constraints.json_schema import carried_schema
from gateway.constraints.lark import GrammarTooLarge, Lark, literal, one_of
from gateway.constraints.lark_reading import (
    ReadGrammar,
    UnreadableGrammar,
    read_lark,
)
from gateway.constraints.schemas import (
    GRAMMAR,
    Field,
    ObjectValue,
    Schema,
    SchemaReader,
    StringValue,
)
from gateway.constraints.values import (
    MOST_UNORDERED,
    Json,
    Unwritable,
    Values,
    in_any_order,
    in_any_order_to_end,
)
from gateway.splitter.payloads.calls import NAME, Opened
from gateway.splitter.payloads.coercion import Declared
from gateway.splitter.payloads.spelled import Bare, Quoted, spelled
from gateway.terms.errors import InvalidRequest
from gateway.terms.request import Tool

SPACES = ("", " ", "\n")  # what models put between an opener of words and what follows it


class CallSection(msgspec.Struct, frozen=True):
    """What follows an opener. After `calls` the output may end; after `closer` it is text again, or
    after `calls` if `done`. `again`: another opener may follow `calls` without a closer.
    """

    calls: str
    closer: str = ""
    done: bool = False
    again: bool = True


class Unmarked(msgspec.Struct, frozen=True):
    """Calls without an opener. `unlike`: a regular expression of what an answer that is none can't
    begin with.
    """

    calls: str
    unlike: str


class WritableTool:
    """A tool as its calls are to be written. `parameters`: what a grammar carries of its schema, an
    object without further properties unless it wants them. `reading`: what was made of it for other
    notations than JSON. `relaxed`: what isn't carried.

    Agents bring schemas that are none by dozens. One that can't be used leaves the arguments any
    object, unless the tool is `strict`: then it raises InvalidRequest, which names the tool, as it
    does for what of a strict tool's schema can't be carried. `budget` is that of all tools.
    """

    def __init__(self, tool: Tool, budget: CompileBudget) -> None:
        self.name = tool.name
        if tool.input is None:
            schema, self.relaxed = _carried(tool, budget)
        else:
            grammar, self.relaxed = _ruled(tool.input, budget)
            schema = _of_input(grammar)
        self.parameters: Schema = {"type": "object", **(schema or {})}
        self.declared = Declared(tool.parameters or {})
        self.reading = SchemaReader(self.parameters, tool.name)

    def json(self, lark: Lark) -> str:
        """The name of a rule that matches the arguments as a JSON object."""
        reading = SchemaReader(self.parameters)
        return lark.once(
            id(self), lambda: Values(lark, ArgumentsJson(lark), reading).of(self.parameters)
        )

    @property
    def arguments(self) -> ObjectValue:
        """Those that its schema declares. Raises Unwritable where they are no object."""
        found = self.reading.alternatives(self.parameters)
        objects = [each for each in found if isinstance(each, ObjectValue)]
        if not objects:
            raise Unwritable("arguments that are no object")
        return objects[0] if len(objects) == 1 else _merged(objects)


class ArgumentsJson(Json):
    """JSON in which a custom tool's input is by its client's grammar."""

    def text(self, found: StringValue) -> str:
        if found.grammar is not None:
            return quoted(self.lark, found.grammar)
        return super().text(found)


def quoted(lark: Lark, grammar: ReadGrammar, mark: str = '"') -> str:
    """An expression: a string between such marks, whose text `grammar` matches."""
    end = literal(mark)
    return lark.once(
        ("quoted", mark, id(grammar)),
        lambda: lark.rule(f"{end} {spelled(lark, grammar, Quoted(mark))} {end}"),
    )


def _ruled(free: ToolInput, budget: CompileBudget) -> tuple[ReadGrammar | None, tuple[str, ...]]:
    """The grammar of a custom tool's input; None where any text is taken, or where it can't be
    written inside a call, which is said. Raises InvalidRequest where it is no grammar.
    """
    if free.shape is None:
        return None, ()
    budget.check(free.shape.field)
    text = lark_of(free.shape)
    proven(({"lark_grammar": text},), free.shape.field)
    budget.check(free.shape.field)
    try:
        read = read_lark(text)
        spelled(Lark({}), read, Quoted())
        spelled(lark := Lark({}), read, Bare(lark, ["</parameter>"]))
    except (UnreadableGrammar, GrammarTooLarge) as error:
        return None, (f"{free.shape.field} ({error})",)
    return read, ()


def _of_input(grammar: ReadGrammar | None) -> Schema:
    text: Schema = {"type": "string"} | ({} if grammar is None else {GRAMMAR: grammar})
    return {"properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _carried(tool: Tool, budget: CompileBudget) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """What of a tool's schema the grammar carries, and the places of what it doesn't."""
    if not tool.parameters:
        return None, ()
    field = f"tools.{tool.name}.parameters"
    text = msgspec.json.encode(tool.parameters)
    shape = JsonSchema(schema=text, strict=bool(tool.strict), field=field)
    try:
        found = carried_schema(shape, budget)
    except InvalidRequest:
        if tool.strict:
            raise
        return None, (field,)
    return found.schema, tuple(
        f"{field}{each.place.removeprefix('$')}.{each.keyword}" for each in found.relaxed
    )


class CallLark(Lark):
    """A grammar with calls of `tools`: one at most, unless they may be `parallel`."""

    def __init__(
        self, control: Mapping[str, int], tools: Sequence[WritableTool], *, parallel: bool
    ) -> None:
        super().__init__(control)
        self.tools = tools
        self.parallel = parallel

    def repeated(self, one: str, separator: str) -> str:
        """An expression: one call, or several."""
        return f"{one} {self.more(one, separator)}"

    def more(self, one: str, separator: str) -> str:
        """An expression: further calls, each behind the separator."""
        return f"({separator} {one})*" if self.parallel else ""

    @property
    def plain_tools(self) -> Sequence[WritableTool]:
        """The tools. Raises Unwritable for a name that can't stand outside quotes."""
        for tool in self.tools:
            if not NAME.fullmatch(tool.name):
                raise Unwritable(f"the tool's name {tool.name[:60]!r} can't be written in a call")
        return self.tools


def opened_calls(
    lark: CallLark,
    syntax: Opened,
    write: Callable[[CallLark, Opened, WritableTool], str],
) -> Mapping[str, CallSection]:
    """What follows each opener: calls, as `write` has one of a tool after what opens it; the opener
    may be the first's.
    """
    space = lark.gap
    one = lark.rule(one_of(write(lark, syntax, tool) for tool in lark.plain_tools))
    before = f"{lark.any_of(syntax.before_call)} {space}" if syntax.before_call else ""
    first = f"{before} {lark.any_of(syntax.call_opens)}"
    calls, closer = lark.repeated(one, f"{space} {first}"), lark.then(syntax.closers)
    begun = CallSection(calls, closer, done=True)
    section = CallSection(f"{space} {first} {calls}", closer)
    return {each: begun if each in syntax.call_opens else section for each in syntax.openers}


Write: TypeAlias = Callable[[Field, Sequence[str]], str]


def parameters(
    lark: Lark, tool: WritableTool, write: Write, opens: Sequence[str], closes: Sequence[str]
) -> str:
    """An expression: a call's parameters in any order, up to its end. `write` has what follows a
    parameter's opener, and then nothing yet, one of `opens`, or one of `closes`.
    """

    def ways(field: Field) -> tuple[str, str]:
        """With each of the two behind it: only a bounded text is one lexeme with them."""
        found = tool.reading.alternatives(field.schema)
        texts = (each for each in found if isinstance(each, StringValue) and each.grammar is None)
        if not all(text.free for text in texts):
            return write(field, opens), write(field, closes)
        one = lark.rule(write(field, ()))
        return f"{one} {begin}", f"{one} {end}"

    fields = tool.arguments.fields
    begin, end = lark.then(opens), lark.then(closes)
    if len(fields) > MOST_UNORDERED:
        each = [(f"{begin} {write(field, ())}", field.required) for field in fields]
        return f"{in_any_order(lark, each)} {end}"
    if not fields:
        return end
    each_way = [(*ways(field), field.required) for field in fields]
    some = f"{begin} {in_any_order_to_end(lark, each_way)}"
    return some if any(field.required for field in fields) else one_of((some, end))


def _merged(objects: Sequence[ObjectValue]) -> ObjectValue:
    """Arguments of several shapes as one: what one of them lacks is not required."""
    everywhere = [{field.key for field in each.fields if field.required} for each in objects]
    fields = {field.key: field for each in reversed(objects) for field in each.fields}
    optional = tuple(
        type(field)(field.key, field.schema, all(field.key in keys for keys in everywhere))
        for field in fields.values()
    )
    others = next((each.others for each in objects if each.others is not None), None)
    return ObjectValue({}, optional, others)
