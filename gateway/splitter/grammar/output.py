"""The grammar of a whole output: reasoning, then text, a shape or calls. The entry point."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from gateway.constraints.grammars import CompileBudget
from gateway.request import NamedTool, Tool, ToolChoice
from gateway.splitter.grammar.lark import GrammarTooLarge, Lark
from gateway.splitter.grammar.places import AnswerGrammar, Output, Thinking
from gateway.splitter.grammar.sections import Unwritable, WritableTool
from gateway.splitter.payloads import choice
from gateway.splitter.syntax import Format

Entry: TypeAlias = Mapping[str, Any]  # of llguidance's `grammars`


class OutputGrammar(msgspec.Struct, frozen=True):
    """`text`: llguidance's JSON, for the output from its first token on. `relaxed`: what of the
    tools' schemas it doesn't carry.
    """

    text: str
    relaxed: tuple[str, ...] = ()


class WantedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the answer.

    `tools`: those that may be called, which may be fewer than the prompt lists (`allowed_tools`).
    `tool_choice`: "none", "auto" (text, in which a call is constrained from its opener on),
    "required", or a tool. `parallel=False`: one call at most, and the output ends with it. `shape`:
    entries of llguidance's `grammars`, the first of which the answer must be; with tools and "auto"
    it is that or calls.
    """

    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    parallel: bool = True
    shape: Sequence[Entry] = ()


def output_grammar(
    format: Format,
    wanted: WantedOutput,
    *,
    control: Mapping[str, int],
    thinking: Thinking,
    prompt_tail: str = "",
) -> OutputGrammar | None:
    """What a model of this format may write; None where that is anything.

    `control`: the vocabulary's control tokens, text to id. A marker that is one, or holds one, is
    written with it; text doesn't spell it. `thinking`: the prompt opened reasoning ("opened"), or
    the model may open it ("possible") or not ("off"); it is free in any case. `prompt_tail`: how
    the prompt ends.

    Raises Unwritable, which says what can't be written and where: a shape and a demanded call, a
    demanded call without tools or of an unknown one, a name or a schema that the format's syntax
    can't spell, schemas of too many parts. Raises InvalidRequest where a `strict` tool's schema is
    none, or can't be enforced.
    """
    tools, shape = _offered(format, wanted), wanted.shape
    demanded = wanted.tool_choice not in ("auto", "none")
    if demanded and shape:
        raise Unwritable("the answer can't be a call and have a shape too")
    if not tools and not shape:
        return None
    lark = Lark(control)
    budget = CompileBudget()
    chosen = [WritableTool(tool, budget) for tool in tools]
    try:
        answer = _answer(lark, format, chosen, wanted, free=not demanded and not shape)
        start = Output(lark, format, answer, thinking).written(thinking, prompt_tail)
    except GrammarTooLarge as error:
        raise Unwritable(f"the tools' schemas: {error}") from None
    entries = [{"name": "output", "lark_grammar": lark.written(start)}, *shape]
    relaxed = dict.fromkeys(
        note for tool in chosen for note in (*tool.relaxed, *tool.reading.relaxed)
    )
    return OutputGrammar(msgspec.json.encode({"grammars": entries}).decode(), tuple(relaxed))


def _offered(format: Format, wanted: WantedOutput) -> Sequence[Tool]:
    """The tools that may be called."""
    choice, tools = wanted.tool_choice, wanted.tools
    callable_ = bool(format.syntaxes or format.headers)
    if choice == "none":
        return ()
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.name == choice.name]
        if not tools:
            raise Unwritable(f"unknown tool {choice.name[:60]!r}")
    if choice != "auto" and not tools:
        raise Unwritable("a call is required, but there are no tools")
    if choice != "auto" and not callable_:
        raise Unwritable(f"the format {format.id!r} has no calls")
    return tools if callable_ else ()


def _answer(
    lark: Lark, format: Format, tools: Sequence[WritableTool], wanted: WantedOutput, *, free: bool
) -> AnswerGrammar:
    used, parallel = format.syntaxes if tools else (), wanted.parallel
    unmarked = (choice.unmarked(lark, syntax, tools, parallel=parallel) for syntax in used)
    return AnswerGrammar(
        tools=tools,
        parallel=parallel,
        free=free,
        shape=wanted.shape[0]["name"] if wanted.shape else "",
        sections={
            opener: section
            for syntax in used
            for opener, section in choice.openings(lark, syntax, tools, parallel=parallel).items()
        },
        unmarked=[found for found in unmarked if found is not None],
    )
