"""The grammar of an output: what it allows is read back as calls that satisfy their tools' schemas,
and what models write is allowed.
"""

import contextlib
import json
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.constraints.values import Unwritable
from gateway.splitter import FORMATS, Splitter
from gateway.splitter.grammar import Thinking, WantedOutput, output_grammar
from gateway.splitter.payloads.syntax import Format
from gateway.terms.errors import InvalidRequest
from gateway.terms.events import ArgumentsGrown, Content, Event, Finished, Reasoning, ToolOpened
from gateway.terms.request import NamedTool, Tool, ToolChoice
from tests.gateway.splitter.corpus import Case, load
from tests.gateway.splitter.grammars import (
    closers_of,
    control_of,
    grammar_of,
    refused,
    vocabulary,
    walked,
)
from tests.gateway.splitter.renderers import RENDERERS

CALLING = sorted({entry.id for entry in FORMATS.values() if entry.syntaxes or entry.headers})

# ------------------------------------------------------------------------------------------ tools

_scalars = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "enum": ["m", "ft", "a b"]},
        {"type": "string", "minLength": 2, "maxLength": 6},
        {"type": "string", "pattern": "^[A-Z]{2,5}[0-9]*$"},
        {"type": "integer"},
        {"type": "integer", "minimum": 3, "maximum": 20},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"enum": ["x", 1, None, True]},
        {"const": "k"},
    ]
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(["a", "bc", "d_e"]), inner, max_size=3)
    return properties.flatmap(
        lambda found: st.sets(st.sampled_from(sorted(found)) if found else st.nothing()).map(
            lambda required: {
                "type": "object",
                "properties": found,
                "required": sorted(required),
                "additionalProperties": False,
            }
        )
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return inner.map(lambda items: {"type": "array", "items": items, "maxItems": 3})


_values = st.recursive(_scalars, lambda inner: _objects(inner) | _arrays(inner), max_leaves=4)
_tools = st.dictionaries(
    st.sampled_from(["get", "get_weather", "plan-b", "alpha"]), _objects(_values), min_size=1
).map(lambda found: [Tool(name=name, parameters=schema) for name, schema in found.items()])

# ------------------------------------------------------------------------------------------ walks


def _split(entry: Format, text: str, tools: Sequence[Tool], cuts: random.Random) -> list[Event]:
    opened = text.startswith("\0")
    text = text.removeprefix("\0")
    splitter = Splitter(entry, in_reasoning=opened, tools=tools)
    events, at = [], 0
    while at < len(text):
        size = cuts.choice((1, 2, 3, 7, 50))
        events += splitter.feed(text[at : at + size])
        at += size
    return [*events, *splitter.finish("stop")]


def _calls(events: Sequence[Event]) -> list[tuple[str, str]]:
    names = [event.name for event in events if isinstance(event, ToolOpened)]
    texts = [""] * len(names)
    for event in events:
        if isinstance(event, ArgumentsGrown):
            texts[event.index] += event.fragment
    return list(zip(names, texts, strict=True))


def _text(events: Sequence[Event], kind: type[Content | Reasoning]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


_TOO_LARGE = re.compile(r"[eE][+-]?[0-9]{3}|[0-9]{300}")  # numbers that no double holds


def _check_walk(id: str, data: st.DataObject) -> None:
    """A text of the grammar is split into what was asked for."""
    entry = FORMATS[id]
    tools = data.draw(_tools)
    demanded: ToolChoice = data.draw(
        st.sampled_from(["auto", "auto", "required", NamedTool(tools[0].name)])
    )
    parallel = data.draw(st.booleans())
    thinkings: list[Thinking] = ["possible", "off", "opened"]
    thinking = data.draw(st.sampled_from(thinkings[: 3 if entry.reasoning else 2]))
    known = vocabulary(control_of(entry) if data.draw(st.booleans()) else ())
    choices = random.Random(data.draw(st.integers(0, 10**6)))
    grammar = grammar_of(
        entry, control=known.control, tools=tools, tool_choice=demanded, parallel=parallel,
        thinking=thinking,
    )  # fmt: skip
    assert grammar
    steps = choices.choice((0, 10, 40, 120))
    text = walked(known, grammar, choices, steps=steps, closers=closers_of(entry))
    if text is None or _TOO_LARGE.search(text):
        return
    events = _split(entry, "\0" * (thinking == "opened") + text, tools, choices)
    _check_calls(_calls(events), tools, text)
    assert isinstance(events[-1], Finished)
    assert events[-1].warning is None, text
    if not parallel:
        assert len(_calls(events)) <= 1, text
    if demanded != "auto":
        assert _calls(events), text
        assert not _text(events, Content), text
    if isinstance(demanded, NamedTool):
        assert {name for name, _ in _calls(events)} == {demanded.name}, text


def _check_calls(calls: Sequence[tuple[str, str]], tools: Sequence[Tool], text: str) -> None:
    schemas = {tool.name: tool.parameters for tool in tools}
    for name, arguments in calls:
        assert name in schemas, text
        try:
            jsonschema.validate(json.loads(arguments), schemas[name] or {})
        except jsonschema.ValidationError as error:
            pytest.fail(f"{error.message}: {arguments}\n{text!r}")


_UNTIMED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("id", CALLING)
@settings(_UNTIMED, max_examples=2)
@given(data=st.data())
def test_what_it_allows_is_read_back(id: str, data: st.DataObject) -> None:
    _check_walk(id, data)


@pytest.mark.slow
@pytest.mark.parametrize("id", CALLING)
@settings(_UNTIMED, max_examples=60)
@given(data=st.data())
def test_what_it_allows_is_read_back_always(id: str, data: st.DataObject) -> None:
    _check_walk(id, data)


# ---------------------------------------------------------------------------------------- converse

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "part": {"type": "number"},
        "flag": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "thing": {"type": "object", "properties": {"inner": {"type": "integer"}}},
    },
    "required": ["city"],
}
TOOLS = [Tool(name="store", parameters=SCHEMA), Tool(name="look-up", parameters=SCHEMA)]
WRITTEN: list[list[tuple[str, dict[str, Any]]]] = [
    [("store", {"city": "Bergen"})],
    [("store", {"city": "São Paulo\n<b>", "days": 3, "part": -1.5, "flag": True})],
    [
        ("look-up", {"city": "", "tags": ["a", "b c"], "thing": {"inner": 1}}),
        ("store", {"city": "x"}),
    ],
]


def _auto(entry: Format, control: Sequence[str], thinking: Thinking = "possible") -> str:
    known = vocabulary(tuple(control))
    grammar = grammar_of(entry, control=known.control, tools=TOOLS, thinking=thinking)
    assert grammar
    return grammar


@pytest.mark.parametrize("control", [True, False], ids=["control tokens", "plain text"])
@pytest.mark.parametrize("id", sorted(RENDERERS))
def test_what_templates_write_is_allowed(id: str, control: bool) -> None:
    entry = FORMATS[id]
    texts = control_of(entry) if control else ()
    for calls in WRITTEN:
        text = RENDERERS[id](calls).removeprefix("<|start|>assistant")
        assert refused(vocabulary(tuple(texts)), _auto(entry, texts), text) is None


# As GitHub's MCP server lists them, by the alphabet, and models write them otherwise.
ISSUE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "body": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}},
        "owner": {"type": "string"},
        "repo": {"type": "string"},
        "title": {"type": "string"},
    },
    "required": ["owner", "repo", "title"],
}


def _wide(members: int) -> Any:
    listed = {f"a{number:03}": {"type": "integer"} for number in range(members)}
    return {**ISSUE, "properties": {**listed, **ISSUE["properties"]}}


@pytest.mark.parametrize("id", sorted(RENDERERS))
def test_arguments_come_in_any_order(id: str) -> None:
    entry, known = FORMATS[id], vocabulary(())

    def refuses(schema: Any, arguments: dict[str, Any]) -> str | None:
        grammar = grammar_of(entry, tools=[Tool(name="f", parameters=schema)])
        text = RENDERERS[id]([("f", arguments)]).removeprefix("<|start|>assistant")
        return refused(known, grammar, text)

    needed = {"owner": "o", "repo": "r", "title": "t"}
    assert refuses(ISSUE, {**needed, "body": "b", "labels": ["l"]}) is None
    assert (
        refuses(ISSUE, {"labels": [], "title": "t", "repo": "r", "body": "b", "owner": "o"}) is None
    )
    assert refuses(ISSUE, {"owner": "o", "body": "b", "repo": "r"}) is not None
    wide = _wide(100)  # more than are counted: what is required first
    assert refuses(wide, {**needed, "a099": 1, "body": "b", "a003": 2}) is None
    assert refuses(wide, {"a099": 1}) is not None


# What of one family was lost: the output, and what is read of it.
ONCE_LOST: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (
        "muse",
        (
            " to=self<|message|>Hm.<|eom|><|start|>assistant to=get<|message|>"
            '<atem:function_calls>\n<atem:invoke name="get">\n'
            '<atem:parameter name="a-b">c</atem:parameter>\n'
            "</atem:invoke>\n</atem:function_calls><|eom|>"
        ),
        "",
        [("get", '{"a-b":"c"}')],
    ),
    (
        "lfm2_pythonic",
        '<|tool_call_start|>[get(a-b="c", d.e="f")]<|tool_call_end|>',
        "",
        [("get", '{"a-b":"c","d.e":"f"}')],
    ),
    ("llama3_json", "get(x) is a function.", "get(x) is a function.", []),
    ("pythonic", "get(x) is a function.", "get(x) is a function.", []),
    ("pythonic", "[get] is its name.", "[get] is its name.", []),
]
GET = Tool(
    name="get",
    parameters={
        "type": "object",
        "properties": {"a-b": {"type": "string"}, "d.e": {"type": "string"}},
    },
)


@pytest.mark.parametrize(("id", "text", "content", "calls"), ONCE_LOST)
def test_what_one_family_lost_is_allowed_and_read(
    id: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    entry = FORMATS[id]
    known = vocabulary(control_of(entry))
    grammar = grammar_of(entry, control=known.control, tools=[GET])
    events = _split(entry, text, [GET], random.Random(id))

    assert refused(known, grammar, text) is None
    assert (_text(events, Content), _calls(events)) == (content, calls)


def test_a_garbled_header_is_no_text() -> None:
    text = "<|channel|>commentary??<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    events = _split(FORMATS["harmony"], text, [GET], random.Random(0))

    assert (_text(events, Content), _calls(events)) == ("Yes.", [])


NUMBERS = [
    ({"type": "number"}, ("1e-4", "3E-05", "-2.5e+10", "1.0")),
    ({"type": "number", "minimum": 0}, ("1e-4", "1e0", "7.25e3")),
    ({"type": "number", "minimum": 1e-6, "maximum": 0.1}, ("1e-6", "9.9e-2")),
    ({"type": "number", "exclusiveMaximum": 0}, ("-1e-4", "-1e9")),
]
BEYOND = [
    ({"type": "number", "minimum": 0}, ("-1e-4",)),
    ({"type": "number", "minimum": 1e-6, "maximum": 0.1}, ("9e-7", "2e-1", "1e1")),
    ({"type": "number", "exclusiveMinimum": 0.01}, ("1e-2", "9e-3")),
    ({"type": "integer"}, ("1e-4", "1.5")),
]


@pytest.mark.parametrize("id", ["hermes_json", "qwen3_coder_xml", "gemma4", "olmo3_pythonic"])
def test_numbers_are_those_of_json(id: str) -> None:
    def refuses(schema: Any, number: str) -> str | None:
        tool = Tool(name="f", parameters={"properties": {"n": schema}, "required": ["n"]})
        text = RENDERERS[id]([("f", {"n": 123456})]).replace("123456", number)
        return refused(vocabulary(()), grammar_of(FORMATS[id], tools=[tool]), text)

    assert [text for schema, texts in NUMBERS for text in texts if refuses(schema, text)] == []
    assert [text for schema, texts in BEYOND for text in texts if not refuses(schema, text)] == []


FREE_TEXTS = [
    "",
    "Hello there! 👋🏽 naïve café — 東京",
    "```python\nif a < b and c > d:\n    print(f'{a!r}', [1, 2], {'k': None})\n```\n",
    "| a | b |\n|---|---|\n| 1 | <br> |\n\n# Head\n\n* item [link](http://x.y)\n",
    '{"answer": 42, "list": [1, 2]}',
    '{"name": "Alice", "arguments_for": []}',
    "[1, 2] is a list; [see](x)",
    "<html><body></body></html> <tool <func </",
    "functools.reduce and Action: go\n>>> print(1)\n1",
    "\n\n  spaces\t\n",
    "ends with <",
    "to be or not to=be",
    "\n— a dash after a newline, ｜ a bar, ＜ ◀ ▶ 。",
    "<，◁ < — </—",
]


@pytest.mark.parametrize("id", CALLING)
def test_free_text_stays_free(id: str) -> None:
    entry = FORMATS[id]
    before = "all\n" if entry.implied_opener else ""
    for texts in (control_of(entry), ()):
        known, grammar = vocabulary(tuple(texts)), _auto(entry, texts)
        assert [text for text in FREE_TEXTS if refused(known, grammar, before + text)] == []


# ---------------------------------------------------------------------------------------- demands


def _grammar(id: str, tool_choice: ToolChoice, *, parallel: bool = True, **wishes: Any) -> str:
    grammar = grammar_of(
        FORMATS[id], control={}, tools=TOOLS, tool_choice=tool_choice, parallel=parallel, **wishes
    )
    assert grammar
    return grammar


@pytest.mark.parametrize("id", sorted(RENDERERS))
def test_a_demanded_call_comes_before_the_end(id: str) -> None:
    known, entry = vocabulary(()), FORMATS[id]
    grammar = _grammar(id, "required")
    assert refused(known, grammar, "") is not None
    assert refused(known, grammar, "Hello.") is not None
    if entry.reasoning is not None and entry.headers is None:
        thought = f"{entry.reasoning.open}Why not.{entry.reasoning.close}"
        assert refused(known, grammar, thought) is not None
    assert (
        refused(known, grammar, RENDERERS[id](WRITTEN[0]).removeprefix("<|start|>assistant"))
        is None
    )


@pytest.mark.parametrize("id", sorted(RENDERERS))
def test_a_named_tool_is_the_one_called(id: str) -> None:
    known = vocabulary(())
    text = RENDERERS[id](WRITTEN[0]).removeprefix("<|start|>assistant")
    assert refused(known, _grammar(id, NamedTool("store")), text) is None
    assert refused(known, _grammar(id, NamedTool("look-up")), text) is not None


@pytest.mark.parametrize("id", sorted(RENDERERS))
def test_one_call_where_several_are_not_wanted(id: str) -> None:
    known = vocabulary(())
    text = RENDERERS[id](WRITTEN[2]).removeprefix("<|start|>assistant")
    for tool_choice in ("auto", "required"):
        assert refused(known, _grammar(id, tool_choice, parallel=False), text) is not None


SHAPE = [{"name": "answer", "lark_grammar": 'start: "yes" | "no"'}]


@pytest.mark.parametrize("id", sorted(FORMATS))
def test_a_shape_binds_the_answer_and_not_the_thinking(id: str) -> None:
    entry, known = FORMATS[id], vocabulary(())
    grammar = grammar_of(entry, control={}, thinking="possible", shape=SHAPE)
    assert grammar
    head = entry.headers.answers[0] if entry.headers else ""
    head = "all\n" if entry.implied_opener else head
    assert refused(known, grammar, f"{head}yes") is None
    assert refused(known, grammar, f"{head}yes, sir") is not None
    assert refused(known, grammar, "") is not None
    if entry.reasoning is not None and entry.headers is None:
        thought = f"{entry.reasoning.open}Well, sir.{entry.reasoning.close}"
        assert refused(known, grammar, f"{thought}\n\nno") is None
        opened = grammar_of(entry, control={}, thinking="opened", shape=SHAPE)
        assert opened
        assert refused(known, opened, f"Well, sir.{entry.reasoning.close}yes") is None
        assert refused(known, opened, "yes") is not None


def test_a_shape_and_tools_leave_the_model_the_choice() -> None:
    known = vocabulary(())
    grammar = _grammar("hermes_json", "auto", shape=SHAPE)
    assert refused(known, grammar, "yes") is None
    assert refused(known, grammar, RENDERERS["hermes_json"](WRITTEN[2])) is None
    assert refused(known, grammar, "Hello") is not None


def test_nothing_is_constrained_where_nothing_is_asked() -> None:
    entry = FORMATS["hermes_json"]
    assert not grammar_of(entry, control={})
    assert not grammar_of(entry, control={}, tools=TOOLS, tool_choice="none")
    assert not grammar_of(FORMATS["plain"], control={}, tools=TOOLS)


@pytest.mark.parametrize(
    ("id", "wishes", "said"),
    [
        ("hermes_json", {"tool_choice": "required"}, "no tools"),
        ("hermes_json", {"tools": TOOLS, "tool_choice": NamedTool("x")}, "unknown tool 'x'"),
        ("plain", {"tools": TOOLS, "tool_choice": "required"}, "has no calls"),
        ("hermes_json", {"tools": TOOLS, "tool_choice": "required", "shape": SHAPE}, "a shape too"),
        ("qwen3_coder_xml", {"tools": [Tool(name="a b")]}, "'a b'"),
        (
            "glm45",
            {"tools": [Tool(name="f", parameters={"properties": {"<": {}}})]},
            "parameter '<'",
        ),
    ],
)
def test_what_cannot_be_written_is_said(id: str, wishes: Any, said: str) -> None:
    with pytest.raises(Unwritable, match=said):
        grammar_of(FORMATS[id], control={}, **wishes)


def _well_formed(case: Case) -> bool:
    """What a family's templates write, with the arguments in the order of their declaration."""
    properties = {
        tool.name: [*(tool.parameters or {}).get("properties", ())] for tool in case.offered()
    }
    return bool({"happy", "parallel", "content_before"} & set(case.tags)) and all(
        call.name in properties
        and [key for key in properties[call.name] if key in call.arguments] == [*call.arguments]
        for call in case.expect.tool_calls
    )


def test_the_corpus_is_allowed() -> None:
    refusals, count = {}, 0
    for case in filter(_well_formed, load("cases.jsonl")):
        entry = FORMATS[case.format]
        for texts in (control_of(entry), ()):
            known = vocabulary(texts)
            grammar = grammar_of(
                entry, control=known.control, tools=case.offered(),
                thinking="opened" if case.start_in_reasoning else "possible",
                prompt_tail=case.prompt_tail or "",
            )  # fmt: skip
            count += bool(grammar)
            if grammar and (fault := refused(known, grammar, case.raw)):
                refusals[case.id] = fault
    assert count > 100
    assert refusals == {}


HARD = {
    "type": "object",
    "properties": {"size": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
    "required": ["size"],
}


@pytest.mark.parametrize("id", ["hermes_json", "qwen3_coder_xml", "pythonic", "mistral_v11"])
def test_what_a_schema_asks_beyond_a_grammar_is_named(id: str) -> None:
    entry, wanted = FORMATS[id], WantedOutput(tools=[Tool(name="f", parameters=HARD)])
    found = output_grammar(entry, wanted, control={}, thinking="off")
    assert found is not None
    assert any("uniqueItems" in note for note in found.relaxed)
    assert not vocabulary(()).matcher(found.text).is_error()


def test_a_strict_tool_that_cannot_be_enforced_is_refused() -> None:
    wanted = WantedOutput(tools=[Tool(name="f", parameters=HARD, strict=True)])
    with pytest.raises(InvalidRequest, match=r"tools\.f\.parameters.*uniqueItems"):
        output_grammar(FORMATS["hermes_json"], wanted, control={}, thinking="off")


def _nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


SOON = 30.0  # seconds of the processor. Each takes one at most; what grows exponentially, for ever.
HOSTILE: dict[str, Any] = {
    "circle": {"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}]}}},
    "circles": {"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}] * 20}}},
    "itself": {"allOf": [{"$ref": "#"}]},
    "deep": {"properties": {"a": _nested(60)}},
    "wide": {"properties": {f"p{number}": {"type": "string"} for number in range(2000)}},
    "many": {"properties": {"a": {"enum": [f"value {number}" for number in range(5000)]}}},
    "no schemas": {"properties": {"a": 5, "b": [], "c": None}, "required": [1, {}]},
    "pattern": {"properties": {"a": {"type": "string", "pattern": "\\" * 900 + "$"}}},
    "large": {"properties": {"a": {"type": "array", "items": {}, "minItems": 10**9}}},
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "id", ["hermes_json", "qwen3_coder_xml", "minimax_m3", "gemma4", "pythonic"]
)
def test_a_hostile_schema_is_written_or_refused_soon(id: str, schema: Any) -> None:
    wanted = WantedOutput(tools=[Tool(name="f", parameters=schema)])
    began = time.process_time()
    with contextlib.suppress(Unwritable, InvalidRequest):
        output_grammar(FORMATS[id], wanted, control={}, thinking="off")
    assert time.process_time() - began < SOON
