"""The phase splitter: a model's output in, events out. Sans-IO; knows no engine and no request.

The tables of a format (`phase_tables`) say what every marker does in each phase; `Splitter` walks
them. Text waits only while it may still become a marker of its phase, or is white space that a
marker would take along.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from typing import TypeAlias

import msgspec

from gateway.constraints.checking import WORK, fault_of
from gateway.constraints.grammars import Check
from gateway.constraints.reading import read as read_schema
from gateway.splitter import payloads
from gateway.splitter.payloads import named_json
from gateway.splitter.payloads.calls import Calls
from gateway.splitter.payloads.reading import (
    LONGEST,
    Malformed,
    Parsing,
    Reader,
    markers_of,
)
from gateway.splitter.payloads.syntax import Format, Headers, JsonCalls, Syntax
from gateway.terms.errors import InvalidRequest
from gateway.terms.events import Content, Event, Finished, FinishReason, Reasoning, called
from gateway.terms.request import Tool


class Phase(Enum):
    """What the text at hand is."""

    CONTENT = auto()
    REASONING = auto()


class PhaseChange(Enum):
    """What a marker does, other than begin a call."""

    OPEN_REASONING = auto()
    CLOSE_REASONING = auto()
    OPEN_SHELL = auto()  # the answer proper begins
    CLOSE_SHELL = auto()  # and ends


Action: TypeAlias = PhaseChange | Syntax | Headers


@lru_cache(maxsize=256)
def phase_tables(format: Format, *, parse_tools: bool) -> Mapping[Phase, Mapping[str, Action]]:
    """The machine for a format: what each marker does in each phase. Of two entries for a text the
    later one counts.
    """
    opens, closes = _reasoning(format)
    ends = format.headers.body_ends if format.headers is not None else ()
    shells = _steps(format.shell_opens, PhaseChange.OPEN_SHELL)
    shells |= _steps((*format.shell_closes, *ends), PhaseChange.CLOSE_SHELL)
    syntaxes = format.syntaxes if parse_tools else ()
    calls: dict[str, Action] = {opener: syntax for syntax in syntaxes for opener in syntax.openers}
    inside = shells if format.special_tokens else {}
    return {
        Phase.CONTENT: {**closes, **opens, **shells, **calls},
        # A call in reasoning that was never closed is a call.
        Phase.REASONING: {**inside, **calls, **opens, **closes},
    }


def reasoning_ends(format: Format, *, parse_tools: bool) -> tuple[str, ...]:
    """All that ends reasoning, however the family writes it, calls included."""
    actions = phase_tables(format, parse_tools=parse_tools)[Phase.REASONING]
    return tuple(text for text, it in actions.items() if it is not PhaseChange.OPEN_REASONING)


def _reasoning(format: Format) -> tuple[dict[str, Action], dict[str, Action]]:
    """What opens reasoning and what closes it. With headers it is they that open."""
    if (headers := format.headers) is not None:
        opens: dict[str, Action] = dict.fromkeys(headers.openers, headers)
        return opens, _steps(headers.body_ends, PhaseChange.CLOSE_REASONING)
    if format.reasoning is None:
        return {}, {}
    return (
        _steps(format.reasoning.opens, PhaseChange.OPEN_REASONING),
        _steps(format.reasoning.closes, PhaseChange.CLOSE_REASONING),
    )


def _steps(texts: tuple[str, ...], step: PhaseChange) -> dict[str, Action]:
    return dict.fromkeys(texts, step)


_WORDS = re.compile(r"[^<\n]*")
_BARE = JsonCalls(fences=("```json", "```"), at_start=True)
# Units of work that a check may take here, about a tenth of a second. No time: a pause of the
# garbage collector, which counts, made text of a call.
_SOON = WORK // 10


def read(reader: Reader, headers: Headers, opener: str) -> Parsing[str]:
    """The whole header of a message; "" if output or message ended in it. Raises Malformed if it is
    none.

    A header says what its message's body is. Harmony's (gpt-oss) is `<|start|>assistant
    to=functions.N<|channel|>commentary <|constrain|>json<|message|>`, each part optional, in
    several orders (OpenAI Harmony Response Format); Muse's is alike.
    A header of more than `LONGEST` parts is none.
    """
    if opener in headers.ends:
        return opener
    parts = [opener]
    for _ in range(LONGEST):
        parts.append((yield from reader.run(_WORDS)))
        if not (yield from reader.peek()) or (yield from reader.accept(headers.body_ends)):
            return ""
        parts.append((yield from reader.expect(*headers.ends, *headers.inner)))
        if parts[-1] in headers.ends:
            return "".join(parts)
    raise reader.fault(f"a header of more than {LONGEST} parts")


def destination(headers: Headers, head: str, calls: Calls) -> Phase | str | None:
    """What the body of a message is: text, or the arguments of a function with this name. None: it
    is for a builtin tool of the model's maker, which are not available here.
    """
    if found := re.search(headers.recipient, head):
        return found[1]
    if found := re.search(headers.foreign, head):
        return found[1] if calls.knows(found[1]) else None
    found = re.search(headers.channel, head)
    reasons = found is not None and found[1] in headers.reasoning
    return Phase.REASONING if reasons else Phase.CONTENT


# Text on its way out as reasoning or content events, without the white space that adjoins markers.
#
# White space at the edge of a stretch of text waits: a marker that follows takes it along, more
# text brings it out. Two stretches of the same kind with markers between them are parted by one
# newline.


class Stretch:
    """The stretch of text being written, and what was written of either kind before."""

    def __init__(self, events: list[Event], kind: type[Reasoning | Content]) -> None:
        self._events = events
        self._margin: list[str] = []  # white space that waits
        self._fresh = False  # a marker was the last that came
        self._shell = False  # the margin holds a closing shell
        self.written: set[type[Reasoning | Content]] = set()  # of these text was delivered
        self.kind = kind
        self.begun = False

    @property
    def waiting(self) -> int:
        """Bytes of text that wait."""
        return sum(len(text.encode()) for text in self._margin)

    def write(self, text: str) -> None:
        """Delivers text, except white space at its end and after a marker."""
        if self._fresh:
            text = text.lstrip()
            if not text:
                return
            self._fresh = False
            if self.kind in self.written:
                self._margin.append("\n")
        body = text.rstrip()
        if body:
            self._events.append(self.kind("".join((*self._margin, body))))
            self.written.add(self.kind)
            self._margin.clear()
            self._shell = False
            self.begun = True
        if len(body) < len(text):
            self._margin.append(text[len(body) :])

    def write_shell(self, text: str) -> None:
        """Holds a closing shell: it is one only if no more text follows."""
        self._fresh = False
        self._margin.append(text)
        self._shell = True

    def turn(self, kind: type[Reasoning | Content]) -> None:
        """A marker ends this stretch; the next one is of `kind`."""
        self._margin.clear()
        self._shell = self.begun = False
        self._fresh = True
        self.kind = kind

    def end(self) -> None:
        """The output is over: white space at its end belongs to the text before it."""
        if self.begun and self._margin and not self._shell:
            self._events.append(self.kind("".join(self._margin)))
        self._margin.clear()


class Splitter:
    """Splits one answer. Any way of cutting the same text gives the same events, joined.

    `in_reasoning`: the prompt opened reasoning. `parse_tools=False`: calls stay in the content as
    text, as they do without `tools`. `split_reasoning=False`: reasoning and its tags stay in the
    content. `prompt_tail`: how the rendered prompt ends. `first_call_number`: how many calls the
    conversation holds already, for families whose ids count them.
    """

    def __init__(
        self,
        format: Format,
        *,
        in_reasoning: bool,
        tools: Sequence[Tool] = (),
        parse_tools: bool = True,
        split_reasoning: bool = True,
        prompt_tail: str = "",
        first_call_number: int = 0,
    ) -> None:
        self._format = format
        self._tools = tools
        self._first_call_number = first_call_number
        self._parse_tools = parse_tools and bool(tools)
        self._tables = phase_tables(format, parse_tools=self._parse_tools)
        self._phase = Phase.REASONING if in_reasoning else Phase.CONTENT
        self._kinds: dict[Phase, type[Reasoning | Content]] = {
            Phase.CONTENT: Content,
            Phase.REASONING: Reasoning if split_reasoning else Content,
        }
        implied = format.implied_opener
        self._implied_opener = implied if prompt_tail.endswith(implied) or not prompt_tail else ""
        self._inline = not split_reasoning
        self._events: list[Event] = []
        self._reader = Reader()
        self._calls = Calls(self._reader, self._events, tools, format.ids, first_call_number)
        self._stretch = Stretch(self._events, self._kinds[self._phase])
        self._reasoned = False  # reasoning was opened, by the prompt or by the model, and closed
        self.damaged = False  # a call broke off
        self._warning: str | None = None
        self._parsing = self._run()

    @property
    def in_reasoning(self) -> bool:
        """The output so far ends inside reasoning, also where that is delivered as content."""
        return self._phase is Phase.REASONING

    @property
    def unsaid(self) -> int:
        """Bytes of the output so far that are in no event, and may still be text."""
        return self._stretch.waiting + self._reader.waiting

    def feed(self, text: str) -> list[Event]:
        """The events of some more output."""
        self._reader.append(text)
        next(self._parsing)
        self._calls.flush()
        return self._take()

    def finish(self, reason: FinishReason) -> list[Event]:
        """The events that end the answer; the last is Finished."""
        self._reader.end()
        next(self._parsing, None)
        self._stretch.end()
        warnings = [text for text in (self._warning, self._calls.remark) if text]
        self._events.append(Finished(self._reason(reason), "; ".join(warnings) or None))
        return self._take()

    def _take(self) -> list[Event]:
        events = self._events.copy()
        self._events.clear()
        return events

    def _reason(self, reason: FinishReason) -> FinishReason:
        """A call that was cut or broken is not to be executed: then the engine's reason stands."""
        delivered = self._calls.count > 0 and not self.damaged
        match reason:
            case "stop" if delivered:
                return "tool_calls"
            case "tool_calls" if not delivered:
                return "stop"
            case _:
                return reason

    def _run(self) -> Parsing[None]:
        """Reads the whole output: text, marker, text, marker, ..."""
        yield from self._opening()
        while True:
            yield from self._unmarked_call()
            actions = self._tables[self._phase]
            marker = yield from self._reader.until(markers_of(*actions), self._stretch.write)
            if not marker:
                return
            match actions[marker]:
                case PhaseChange() as step:
                    self._take_step(step, marker)
                case Headers() as headers:
                    yield from self._message(headers, marker)
                case syntax:
                    yield from self._call(syntax, marker, spelled=marker)

    def _opening(self) -> Parsing[None]:
        """What only the beginning of the output can be: the rest of what the prompt began."""
        if (headers := self._format.headers) is not None:
            yield from self._reader.space()
            if (yield from self._reader.looking_at(headers.starts)):
                yield from self._message(headers, "")
        if implied := self._implied_opener:
            shells = tuple(shell.removeprefix(implied) for shell in self._format.shell_opens)
            if not (yield from self._reader.accept(shells)) and self._parse_tools:
                for syntax in self._format.syntaxes:
                    yield from self._call(syntax, implied, spelled="")

    def _take_step(self, step: PhaseChange, marker: str) -> None:
        if not self._applies(step):
            self._stretch.write(marker)
            return
        match step:
            case PhaseChange.OPEN_REASONING:
                self._turn(Phase.REASONING, marker)
            case PhaseChange.CLOSE_REASONING:
                self._reasoned = True
                self._turn(Phase.CONTENT, marker)
            case PhaseChange.CLOSE_SHELL if not self._format.special_tokens:
                self._stretch.write_shell(marker)
            case _:
                self._turn(Phase.CONTENT)

    def _applies(self, step: PhaseChange) -> bool:
        """A marker in a place where it can't be one is text, unless it is a special token."""
        untouched = not self._stretch.begun
        reasoning = self._format.reasoning
        match step:
            case PhaseChange.OPEN_REASONING:
                assert reasoning is not None
                if self._phase is Phase.REASONING:
                    return untouched  # the model repeats what the prompt had opened
                first = untouched and not self._reasoned and Content not in self._stretch.written
                return first or reasoning.anywhere
            case PhaseChange.CLOSE_REASONING:
                return self._phase is Phase.REASONING or untouched  # the model repeats it
            case PhaseChange.OPEN_SHELL:
                return untouched or self._format.special_tokens
            case _:
                return True

    def _turn(self, phase: Phase, marker: str = "") -> None:
        """Goes on to another phase; with reasoning left in the content its tags stay too."""
        if self._inline and marker:
            self._stretch.write(marker)
        else:
            self._stretch.turn(self._kinds[phase])
        self._phase = phase

    def _unmarked_call(self) -> Parsing[None]:
        """Families without a marker: the answer itself may be a call."""
        if self._phase is Phase.REASONING or self._stretch.begun or not self._parse_tools:
            return
        if (yield from self._begins(("```",))):
            yield from self._bare_calls()
        for syntax in self._format.syntaxes:
            if syntax.at_start and not self._stretch.begun:
                yield from self._call(syntax, "", spelled="")
        if (yield from self._begins(("{", "[{", "[ ", "[\n"))):
            yield from self._bare_calls()

    def _begins(self, texts: tuple[str, ...]) -> Parsing[bool]:
        """The answer begins with one of `texts`, behind white space, which a marker takes along."""
        if self._calls.count or self._stretch.begun:
            return False
        self._stretch.write((yield from self._reader.space()))
        return bool((yield from self._reader.looking_at(texts)))

    def _bare_calls(self) -> Parsing[None]:
        """An answer that is nothing but calls as JSON, as small models write them whatever their
        template says. It waits for its end: with anything else in it, it is text.
        """
        held: list[Event] = []
        calls = Calls(Reader(), held, self._tools, self._format.ids, self._first_call_number)
        self._reader.keep()
        try:
            while (yield from self._reader.peek()):
                yield from payloads.parse(self._reader, calls, _BARE, "")
                yield from self._reader.space()
            fit = all(_fits(self._tools, *call) for call in called(held))
        except Malformed:
            fit = False
        if fit:
            self._turn(Phase.CONTENT)
            self._events += held
            self._calls.count = calls.count
        else:
            self._stretch.write(self._reader.kept())
        self._reader.forget()

    def _message(self, headers: Headers, opener: str) -> Parsing[None]:
        """Reads a header, and does with the body what it says."""
        self._reader.keep(opener)
        try:
            head = yield from read(self._reader, headers, opener)
            cut = "" if head else self._reader.kept()
        except Malformed as fault:
            self._give_up(fault, opener, self._reader.kept())
            return
        finally:
            self._reader.forget()
        if not head:
            self._warning = f"a header that begins no message: {cut[:200]!r}"
            return
        match destination(headers, head, self._calls):
            case Phase() as phase:
                self._turn(phase, head if phase is Phase.REASONING else "")
            case str(name) if self._parse_tools:
                self._reader.keep(head)
                ends = headers.body_ends
                arguments = named_json.arguments(self._reader, self._calls, name, "", ends)
                yield from self._calls_of(arguments, opener)
            case str():
                self._turn(Phase.CONTENT)
                self._stretch.write(head)
            case _:
                self._warning = f"a message that goes nowhere: {head[:200]!r}"
                body_end = markers_of(*headers.body_ends)
                yield from self._reader.until(body_end, lambda _text: None)

    def _call(self, syntax: Syntax, opener: str, *, spelled: str) -> Parsing[None]:
        """Reads calls after an opener; `spelled` is what of it stands in the output."""
        self._reader.keep(spelled)
        parsing = payloads.parse(self._reader, self._calls, syntax, opener)
        yield from self._calls_of(parsing, spelled)

    def _calls_of(self, parsing: Parsing[None], opener: str) -> Parsing[None]:
        """Reads calls. What turns out to be none is given back as text of the phase."""
        before = self._calls.count
        refused: Malformed | None = None
        try:
            yield from parsing
        except Malformed as fault:
            refused = fault
        left = self._reader.kept()
        if self._calls.is_open and refused is not None:  # part of a call is delivered
            self._warning = f"a tool call broke off: {refused}"
            self.damaged = True
            self._calls.leave()
            opener = ""
        if self._calls.count > before:
            self._turn(Phase.CONTENT)
        if refused is not None:
            self._give_up(refused, opener, left)
        self._reader.forget()

    def _give_up(self, fault: Malformed, opener: str, left: str) -> None:
        """What was read is no call, or `left` of one that broke off: it is text."""
        if opener:
            self._warning = f"no tool call after {opener!r}: {fault}"
        self._stretch.write(left)


def _fits(tools: Sequence[Tool], name: str, arguments: str) -> bool:
    """The arguments are such as the tool's schema allows; one that is no schema allows any."""
    schema = next((tool.parameters for tool in tools if tool.name == name), None)
    try:
        check = Check(read_schema(msgspec.json.encode(schema or {}), name).check)
    except InvalidRequest:
        return True
    return fault_of(check, arguments, _SOON) is None


# Which phase an answer begins in.


# What stands between two turns: a marker before it belongs to an earlier one.
_TURN = re.compile(
    r"<\|[^<>|\s]*\|?>|<[｜_][^<>]*>|\[/?INST\]|\]~b\]|<(?:start|end)_of_turn>|<sep>|<seed:bos>|"
    r"</?(?:role|user|assistant)>|\n#{2,} |"
    r"(?:^|\n)[^\S\n]*+(?:Assistant|assistant|ASSISTANT|<SPECIAL_11>)\b"
)


def starts_in_reasoning(format: Format, prompt_tail: str) -> bool:
    """The rendered prompt opened reasoning in the turn to be written, and did not close it."""
    if format.reasoning is None:
        return False
    opened, begin = max((prompt_tail.rfind(text), len(text)) for text in format.reasoning.opens)
    if opened < 0:
        return False
    after = prompt_tail[opened + begin :]
    return not any(close in after for close in format.reasoning.closes) and not _TURN.search(after)
