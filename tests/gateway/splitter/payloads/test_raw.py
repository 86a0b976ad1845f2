"""Bounded texts of tag families: what ends them may stand in them, and each character counts."""

import json
from itertools import permutations

import pytest

from gateway.splitter import FORMATS, Splitter
from gateway.terms.events import ArgumentsGrown
from gateway.terms.request import Tool
from tests.backends.pairs import quick
from tests.gateway.splitter.grammars import grammar_of, vocabulary
from tests.gateway.splitter.renderers import MARKERS, RENDERERS

BYTES = vocabulary(())
MOST = 1_900
BOUNDS = ({"maxLength": MOST}, {"maxLength": MOST, "minLength": 1}, {"pattern": f"^.{{0,{MOST}}}$"})


def _tool(bound: dict[str, int | str]) -> Tool:
    properties = {"line": {"type": "integer"}, "text": {"type": "string", **bound}}
    return Tool(
        name="m", parameters={"type": "object", "properties": properties, "required": ["text"]}
    )


def _taken(family: str, tool: Tool, text: str) -> bool:
    """A call with this text, last and before another argument; what is taken is read back."""
    grammar = grammar_of(
        FORMATS[family], control={}, tools=[tool], tool_choice="required", parallel=False,
        thinking="off",
    )  # fmt: skip
    taken = []
    for arguments in ({"text": text}, {"text": text, "line": 3}):
        written = RENDERERS[family]([("m", arguments)])
        tokens, matcher = BYTES.encoded(written), BYTES.matcher(grammar)
        taken.append(matcher.try_consume_tokens(tokens) == len(tokens))
        splitter = Splitter(FORMATS[family], in_reasoning=False, tools=[tool])
        events = [*splitter.feed(written), *splitter.finish("stop")]
        read = "".join(event.fragment for event in events if isinstance(event, ArgumentsGrown))
        assert json.loads(read) == arguments
    assert len(set(taken)) == 1, taken
    return taken[0]


@pytest.mark.parametrize("bound", quick(BOUNDS, BOUNDS[1]), ids=["most", "least", "pattern"])
@pytest.mark.parametrize("family", MARKERS)
def test_a_bounded_text_holds_what_ends_texts_and_no_character_too_many(
    family: str, bound: dict[str, int | str]
) -> None:
    tool, marker = _tool(bound), MARKERS[family]
    rest = MOST - len(marker)
    for text in (
        f'a = "{marker}"',
        marker * 2,
        f"<b>{marker}</b> {marker} <p",
        "short",
        "é" * MOST,
    ):
        assert _taken(family, tool, text), text
    for full in (marker + "x" * rest, "x" * rest + marker, "x" * (rest // 2) + marker):
        assert _taken(family, tool, full)
    for long in (marker + "x" * (rest + 1), "x" * (rest + 1) + marker, "é" * (MOST + 1)):
        assert not _taken(family, tool, long)


@pytest.mark.parametrize("family", MARKERS)
def test_a_call_ends_where_all_that_is_required_has_come(family: str) -> None:
    names = [f"p{number}" for number in range(5)]
    properties = {name: {"type": "string", "maxLength": 9} for name in names}
    needed = names[1:4]
    schema = {"type": "object", "properties": properties, "required": needed}
    grammar = grammar_of(
        FORMATS[family], control={}, tools=[Tool(name="m", parameters=schema)],
        tool_choice="required", parallel=False, thinking="off",
    )  # fmt: skip
    for count in range(6):
        for given in permutations(names, count):
            written = BYTES.encoded(RENDERERS[family]([("m", dict.fromkeys(given, "x"))]))
            taken = BYTES.matcher(grammar).try_consume_tokens(written)
            assert (taken == len(written)) is (set(needed) <= set(given)), given
