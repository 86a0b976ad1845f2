"""The grammar of a whole output, from a family's entry in the format table: reasoning, then text, a
shape or calls. How each syntax of calls is written stands beside how it is read, in
`gateway.splitter.payloads`.

The phases are those of `gateway.splitter.splitter`, with each marker and what it does, written as
rules that grow to the right: a rule is a place in the output and matches everything up to there.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from gateway.constraints.grammars import CompileBudget, Entry
from gateway.constraints.lark import ASCII_SPACE, GrammarTooLarge, Lark, one_of, sequence
from gateway.constraints.values import Unwritable
from gateway.splitter import payloads
from gateway.splitter.payloads import free_text
from gateway.splitter.payloads.free_text import EndMarkers
from gateway.splitter.payloads.syntax import Format, Headers, ReasoningMarkers, texts_of
from gateway.splitter.payloads.writing import CallLark, WritableTool
from gateway.terms.request import NamedTool, Tool, ToolChoice

Thinking: TypeAlias = Literal["opened", "possible", "off"]


class _Place:
    """A place in the output: all the ways to come there. Its name is a rule's."""

    def __init__(self, lark: Lark) -> None:
        self._lark = lark
        self._ways: list[str] = []
        self.name = lark.reserve()

    def reached(self, *parts: str) -> None:
        """One more way: the rule of another place and what comes after it."""
        self._ways.append(sequence(parts))

    def close(self) -> None:
        """No more ways come. A place without any is in no output."""
        ways = dict.fromkeys(self._ways) or [self._lark.nothing]
        self._lark.define(self.name, " | ".join(ways))


_BEGIN = '""'
_SHELLS = 3  # markers around an answer that may follow one another


class Output:
    """Writes the places of one output and what leads from one to another.

    `shape`: the name of the grammar that the answer may be of, or "". `free`: it may be any text,
    in which calls are constrained. Otherwise it is a call, or the shape, with no more around it
    than the format's markers.
    """

    def __init__(
        self, lark: CallLark, format: Format, shape: str, thinking: Thinking, *, free: bool
    ) -> None:
        syntaxes = format.syntaxes if lark.tools else ()
        sections = (payloads.openings(lark, syntax) for syntax in syntaxes)
        self._sections = {opener: one for each in sections for opener, one in each.items()}
        unmarked = (payloads.unmarked(lark, syntax) for syntax in syntaxes)
        self._unmarked = [each for each in unmarked if each is not None]
        self._lark = lark
        self._format = format
        self._shape, self._free = shape, free
        self._may_think = thinking != "off"
        self._gap = lark.gap
        self._white = f"{lark.regex(f'[{ASCII_SPACE}]+')}?"
        marked = format.reasoning if format.headers is None else None
        self._reasoning = marked or ReasoningMarkers((), ())
        self._shells = (*format.shell_opens, *format.shell_closes)
        self._others = _others(lark, format) if free else ()
        # What opens and closes reasoning or an answer counts at its edge; elsewhere it is text.
        tags = () if self._reasoning.anywhere else (*self._reasoning.opens, *self._reasoning.closes)
        tags += () if format.special_tokens else self._shells
        self._tags = [control for tag in tags if (control := lark.control.get(tag)) is not None]
        # Where the answer begins, anew after a marker; where its text ends; in calls, after whole
        # ones, which others may follow or not; after their section; where reasoning begins; after
        # the shape; between two messages.
        self._answer, self._text, self._called, self._finished, self._closed = (
            _Place(lark) for _ in range(5)
        )
        self._thought, self._shaped, self._turn = (_Place(lark) for _ in range(3))
        self._calls = (self._called, self._finished, self._closed)
        self._blank: list[str] = []  # rules: no more than white space where an answer begins
        self._opened = {opener: _Place(lark) for opener in self._sections}
        reasons = self._reasoning.anywhere and self._may_think
        # What counts in the middle of text, and where it leads.
        self._leading: list[tuple[Sequence[str], _Place]] = [
            (self._reasoning.opens if reasons else (), self._thought),
            (self._shells if format.special_tokens else (), self._answer),
            (format.headers.body_ends if format.headers is not None else (), self._turn),
            *(([opener], place) for opener, place in self._opened.items()),
        ]
        self._in_text = [text for texts, _ in self._leading for text in texts]

    def written(self, thinking: Thinking, prompt_tail: str) -> str:
        """The expression of the whole output."""
        self._begin(thinking, prompt_tail)
        thoughts = self._think()
        if self._free:
            self._speak()
        else:
            self._obey()
        self._call()
        if self._format.headers is not None:
            turn = f"{self._turn.name} {self._lark.text(self._format.headers.turn)}"
            self._header(self._format.headers, turn)
        places = (self._answer, self._text, *self._calls, self._thought)
        for place in (*places, self._shaped, self._turn, *self._opened.values()):
            place.close()
        return one_of(self._ends(thoughts))

    def _ends(self, thoughts: str) -> list[str]:
        """Where the output may end."""
        ends = []
        if self._lark.tools:
            called = one_of(place.name for place in self._calls)
            ends.append(f"{called} {self._closing()} {self._gap}")
        if self._shape:  # white space behind it would be the client's
            ends.append(f"{self._shaped.name} {self._closing()}")
        if self._free:
            ends += [*self._blank, self._text.name, thoughts]
            ends += [self._turn.name] if self._format.headers is not None else []
        return ends

    def _closing(self) -> str:
        """Markers that may come at the very end."""
        headers = self._format.headers
        texts = (*self._format.shell_closes, *(headers.body_ends if headers is not None else ()))
        return f"({self._gap} {self._lark.any_of(texts)}){{0,{_SHELLS}}}" if texts else ""

    def _begin(self, thinking: Thinking, prompt_tail: str) -> None:
        headers, implied = self._format.headers, self._format.implied_opener
        opens = self._reasoning.opens if self._may_think else ()
        if thinking == "opened":
            self._thought.reached(_BEGIN)
        elif headers is not None and not prompt_tail.endswith(headers.ends):
            self._header(headers, self._gap)
            if self._free:
                self._answer.reached(_BEGIN)
        elif implied and (prompt_tail.endswith(implied) or not prompt_tail):
            self._begin_implied(implied)
        elif self._free and opens:
            # The very beginning, where a textual marker may open reasoning.
            first = self._fresh(_BEGIN, (*self._fresh_markers(), *opens))
            self._thought.reached(self._white, first.of(opens))
        else:
            self._answer.reached(_BEGIN)
            self._thought.reached(self._gap, self._lark.any_of(opens)) if opens else None

    def _begin_implied(self, implied: str) -> None:
        """The prompt ends with the opener of a call or of an answer."""
        shells = [shell.removeprefix(implied) for shell in self._format.shell_opens]
        self._answer.reached(self._lark.any_of(shells))
        for opener, place in self._opened.items():
            if opener.startswith(implied):
                place.reached(self._lark.text(opener.removeprefix(implied)))

    def _think(self) -> str:
        """Reasoning: any text up to what ends it. Gives the name of a rule: up to there."""
        headers, special = self._format.headers, self._format.special_tokens
        ends = [*self._reasoning.closes, *(self._shells if special else ())]
        turns = [*headers.body_ends] if headers is not None else []
        found = free_text.markers(self._lark, (*ends, *self._opened, *turns))
        closes = {self._lark.control.get(close) for close in self._reasoning.closes}
        tags = [tag for tag in self._tags if tag not in closes]  # also what the prompt had opened
        text = free_text.text(self._lark, found, (*self._others, *tags))
        thoughts = self._lark.rule(f"{self._thought.name} {text}")
        if ends:
            self._answer.reached(thoughts, found.of(ends), "" if self._free else self._gap)
        if turns:
            self._turn.reached(thoughts, found.of(turns))
        for opener, place in self._opened.items():
            place.reached(thoughts, found.of([opener]))
        return thoughts

    def _fresh_markers(self) -> list[str]:
        """What counts where an answer begins."""
        return [*self._reasoning.closes, *self._format.shell_opens, *self._in_text]

    def _speak(self) -> None:
        """Free text, and the markers in it."""
        self._fresh(self._answer.name, self._fresh_markers())
        found = free_text.markers(self._lark, self._in_text)
        self._follow(self._text.name, found)

    def _fresh(self, source: str, texts: Sequence[str]) -> EndMarkers:
        """What may come where an answer begins; `source` is the rule up to there."""
        lark, unmarked = self._lark, self._unmarked
        before = lark.rule(f"{source} {self._white}")
        self._blank.append(before)
        first = free_text.markers(lark, texts)
        found = free_text.markers(lark, self._in_text)
        unlike = "|".join(f"({each.unlike})" for each in unmarked)
        text = free_text.first_text(
            lark, first, found, first_others=self._others, others=(*self._others, *self._tags),
            unlike=unlike,
        )  # fmt: skip
        self._text.reached(before, text)
        for each in unmarked:
            self._called.reached(before, each.calls)
        begins = (*self._reasoning.closes, *self._format.shell_opens)
        if begins:
            self._answer.reached(before, first.of(begins))
        self._follow(before, first)
        return first

    def _follow(self, source: str, found: EndMarkers) -> None:
        """The markers that count in text, wherever they stand."""
        for texts, place in self._leading:
            if texts:
                place.reached(source, found.of(texts))

    def _obey(self) -> None:
        """Calls or the shape, after no more than markers."""
        lark, begun = self._lark, self._answer.name
        around = self._shells
        shells = f"({lark.any_of(around)} {self._gap}){{1,{_SHELLS}}}" if around else ""
        marked = [f"{begun} {self._gap} {shells}"] if around else []
        before = lark.rule(one_of([f"{begun} {self._gap}", *marked]))
        if self._reasoning.anywhere and self._may_think:
            self._thought.reached(before, lark.any_of(self._reasoning.opens))
        for opener, place in self._opened.items():
            place.reached(before, lark.text(opener))
        for each in self._unmarked:
            self._called.reached(before, each.calls)
        if self._shape:  # white space before it counts where no marker takes it away
            self._shaped.reached(lark.rule(one_of([begun, *marked])), f"@{self._shape}")

    def _call(self) -> None:
        """The calls after each opener, and what may follow them."""
        for opener, section in self._sections.items():
            calls = self._lark.rule(f"{self._opened[opener].name} {section.calls}")
            (self._called if section.again else self._finished).reached(calls)
            if section.done:
                self._closed.reached(calls)
            if section.closer:
                self._closed.reached(calls, section.closer)
        if self._lark.parallel:
            self._call_again()

    def _call_again(self) -> None:
        """After calls others, or text where it is free."""
        lark = self._lark
        if self._free:
            self._answer.reached(self._closed.name)
        ended = lark.rule(f"({self._called.name} | {self._closed.name}) {self._gap}")
        for opener, place in self._opened.items():
            place.reached(ended, lark.text(opener))
        if self._shells and self._free:
            whole = one_of(place.name for place in self._calls)
            self._answer.reached(whole, self._gap, lark.any_of(self._shells))
        if self._format.headers is not None:
            self._turn.reached(ended, lark.any_of(self._format.headers.body_ends))

    def _header(self, headers: Headers, source: str) -> None:
        """A header and what it begins; `source` is the rule up to there."""
        lark = self._lark
        if self._may_think:
            self._thought.reached(source, lark.any_of(headers.thoughts))
        if self._free or self._shape or self._format.syntaxes:
            self._answer.reached(source, lark.any_of(headers.answers))
        if headers.calls and self._lark.tools:
            heads = {
                tool: lark.any_of(head.replace("{name}", tool.name) for head in headers.calls)
                for tool in lark.plain_tools
            }
            if self._format.syntaxes:
                self._answer.reached(source, one_of(heads.values()))
            else:
                calls = (f"{head} {tool.json(lark)}" for tool, head in heads.items())
                self._called.reached(source, lark.rule(one_of(calls)))


def _others(lark: Lark, format: Format) -> Sequence[int]:
    """The control tokens that are no part of the format."""
    own = {piece for text in texts_of(format) for piece in lark.pieces(text)}
    return [token for token in lark.control.values() if token not in own]


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
    budget = CompileBudget()
    chosen = [WritableTool(tool, budget) for tool in tools]
    lark = CallLark(control, chosen, parallel=wanted.parallel)
    name, free = shape[0]["name"] if shape else "", not demanded and not shape
    try:
        output = Output(lark, format, name, thinking, free=free)
        start = output.written(thinking, prompt_tail)
    except GrammarTooLarge as error:
        raise Unwritable(f"the tools' schemas: {error}") from None
    entries = [{"name": "output", "lark_grammar": lark.written(start)}, *shape]
    relaxed = dict.fromkeys(
        note for tool in chosen for note in (*tool.relaxed, *tool.reading.relaxed)
    )
    return OutputGrammar(msgspec.json.encode({"grammars": entries}).decode(), tuple(relaxed))


def _offered(format: Format, wanted: WantedOutput) -> Sequence[Tool]:
    """The tools that may be called."""
    wish, tools = wanted.tool_choice, wanted.tools
    callable_ = bool(format.syntaxes or format.headers)
    if wish == "none":
        return ()
    if isinstance(wish, NamedTool):
        tools = [tool for tool in tools if tool.name == wish.name]
        if not tools:
            raise Unwritable(f"unknown tool {wish.name[:60]!r}")
    if wish != "auto" and not tools:
        raise Unwritable("a call is required, but there are no tools")
    if wish != "auto" and not callable_:
        raise Unwritable(f"the format {format.id!r} has no calls")
    return tools if callable_ else ()
