"""A client's grammar inside a call, in every family: what it allows there is read back as a text of
the grammar, and a text of the grammar is allowed.
"""

import json
import random
from collections.abc import Sequence

import pytest

from backends.contract.conversation import Grammar, Regex, ToolInput
from gateway.constraints.compiling import fault_unconstrained
from gateway.splitter import FORMATS, Splitter
from gateway.splitter.grammar import WantedOutput, output_grammar
from gateway.terms.errors import InvalidRequest
from gateway.terms.events import ArgumentsGrown
from gateway.terms.request import NamedTool, Tool
from tests.every import for_every
from tests.gateway.splitter.grammars import (
    closers_of,
    control_of,
    grammar_of,
    refused,
    vocabulary,
    walked,
)
from tests.gateway.splitter.renderers import RENDERERS
from tests.patches import GRAMMAR, PATCH

CALLING = sorted({entry.id for entry in FORMATS.values() if entry.syntaxes or entry.headers})
PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
# Its calls begin with a header, which the prompt may have begun.
BEGUN = {"harmony"}


def tool(shape: Grammar | Regex | None) -> Tool:
    return Tool(name="write", parameters=PARAMETERS, input=ToolInput(shape))


def grammar(family: str, shape: Grammar | Regex, control: Sequence[str] = ()) -> str:
    return grammar_of(
        FORMATS[family],
        control=vocabulary(tuple(control)).control,
        thinking="off",
        tools=[tool(shape)],
        tool_choice=NamedTool("write"),
        parallel=False,
    )


def read_back(family: str, written: str) -> str:
    splitter = Splitter(FORMATS[family], in_reasoning=False, tools=[tool(None)])
    events = [*splitter.feed(written), *splitter.finish("stop")]
    grown = "".join(event.fragment for event in events if isinstance(event, ArgumentsGrown))
    return str(json.loads(grown)["input"])


@pytest.mark.slow
@for_every("family", CALLING)
def test_what_is_written_is_of_the_grammar(family: str) -> None:
    entry, shape, choices = FORMATS[family], Grammar(text=GRAMMAR), random.Random(family)
    ends = (*closers_of(entry), *["*** End Patch", "\\n", "\n"] * 12)
    for control in ((), control_of(entry)):
        known = vocabulary(control)
        for _ in range(2):
            written = walked(
                known, grammar(family, shape, control), choices, steps=60, closers=ends
            )
            assert written is not None
            assert fault_unconstrained(shape, read_back(family, written)) is None, written


@pytest.mark.slow
@for_every("family", sorted(set(RENDERERS) & set(CALLING) - BEGUN))
def test_a_text_of_the_grammar_may_be_written(family: str) -> None:
    """As each family's own template writes calls."""
    entry, shape = FORMATS[family], Grammar(text=GRAMMAR)
    written = RENDERERS[family]([("write", {"input": PATCH})])
    for control in ((), control_of(entry)):
        known = vocabulary(control)
        assert refused(known, grammar(family, shape, control), written) is None


def written_in_hermes(text: str) -> str:
    call = json.dumps({"name": "write", "arguments": {"input": text}}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (Regex(pattern=r"\d+\n[a-z]*"), "12\nab", "12 ab"),
        (Regex(pattern=r".*end"), 'a "quoted" end', "end of"),
        (Regex(pattern=r'(\d{3}){2}["\n]++[a-z]{2}{2}'), '123456"\n"abcd', '123456"\n"abc'),
        (Regex(pattern=r'(\d{3}){2}["\n]++[a-z]{2}{2}'), '123456"abcd', '12345"abcd'),
        (Grammar(text='start: "a" "b"\n%ignore /[ \\t\\n]+/'), " a \n\t b", "a, b"),
        (Grammar(text='start: v\nv: "[" (v ("," v)*)? "]" | S\n%import common.ESCAPED_STRING -> S'),
         '[["a\\"b"],[]]', '["a]'),
        (Grammar(text='start: "x".."z" "SELECT"i "\\n"'), "ySelect\n", "aSELECT\n"),
        (Grammar(text='start: ["a" "\\n"]+ ["b"]~2 "c"'), "a\na\nbc", "ac"),
        (Grammar(text='root ::= "a\\n" [^"]+ "\\""'), 'a\nb"', 'a\n""'),
        (Grammar(text='start: W*\nW: Q /[^"\\\\]/ Q\nQ: "\\""'), '"a""b"', '"ab"'),
    ],
)  # fmt: skip
def test_grammars_of_every_kind(shape: Grammar | Regex, good: str, bad: str) -> None:
    known, text = vocabulary(()), grammar("hermes_json", shape)
    assert refused(known, text, written_in_hermes(good)) is None
    assert refused(known, text, written_in_hermes(bad)) is not None


def test_a_grammar_that_can_not_be_written_there_is_said() -> None:
    shape = Grammar(text="start[lazy]: /a+/", field="tools[0].format.definition")  # fmt: skip
    wanted = WantedOutput(tools=[tool(shape)])
    found = output_grammar(FORMATS["hermes_json"], wanted, control={}, thinking="off")
    assert found is not None
    assert found.relaxed[0].startswith("tools[0].format.definition")


def test_what_is_no_grammar_is_refused_by_its_name() -> None:
    wanted = WantedOutput(tools=[tool(Grammar(text="start: (", field="tools[0].format"))])
    with pytest.raises(InvalidRequest, match=r"tools\[0\]\.format"):
        output_grammar(FORMATS["hermes_json"], wanted, control={}, thinking="off")
