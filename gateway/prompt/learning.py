"""Formats learned from a template: it writes answers whose words are known, and what stands around
the words is the format. A finding counts as far as it reads back what the template wrote.

One conversation holds all calls, so that two dozen answers take a handful of renderings. What is
found is an entry of the splitter's table like any other. What the table's syntaxes have no words
for (headers of messages) isn't found.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from backends.contract.beginnings import common_length
from gateway.prompt.analysis import ASK, THOUGHT, Trial, message_of
from gateway.prompt.conversation import TemplateTraits, ends_open
from gateway.splitter import Format, Recognised, Splitter, starts_in_reasoning
from gateway.splitter.payloads.syntax import (
    BareDictCalls,
    ElementCalls,
    JsonCalls,
    KeyValueCalls,
    NamedJsonCalls,
    PythonicCalls,
    ReasoningMarkers,
    Syntax,
    Typing,
    texts_of,
)
from gateway.terms.events import Content, Reasoning, called
from gateway.terms.request import Message, Tool, ToolCall

_FIRST, _SECOND = "sentinelfunction", "sentinelother"
_KEY, _LATER_KEY = "sentinelka", "sentinelkb"
_ITEM = {"type": "object", "properties": {"deep": {"type": "string"}}}
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        _KEY: {"type": "string"},
        _LATER_KEY: {"type": "string"},
        "sentinelcount": {"type": "integer"},
        "sentinelshare": {"type": "number"},
        "sentinelopen": {"type": "boolean"},
        "sentinelnone": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "sentinellist": {"type": "array", "items": {"type": "string"}},
        "sentinelthing": {
            "type": "object",
            "properties": {"inner": {"type": "array", "items": _ITEM}},
        },
    },
}
TOOLS = tuple(
    Tool(name=name, description="sentineldescription", parameters=_SCHEMA)
    for name in (_FIRST, _SECOND)
)
_LAST = "sentinelvb"
_TWO = {_KEY: "sentinelva", _LATER_KEY: _LAST}
_COUNTED = {"sentinelcount": 4711}
Calls: TypeAlias = tuple[tuple[str, Mapping[str, Any]], ...]
# What the answers call. The first three are what is learned from.
_CALLS: tuple[Calls, ...] = (
    ((_FIRST, _TWO),),
    ((_FIRST, _TWO), (_SECOND, _TWO)),
    ((_FIRST, _COUNTED),),
    ((_FIRST, {}),),
    ((_SECOND, {"sentinelshare": 0.5}),),
    ((_FIRST, {"sentinelopen": True}),),
    ((_FIRST, {"sentinelopen": False, "sentinelcount": -3}),),
    ((_FIRST, {"sentinelnone": None}),),
    ((_SECOND, {"sentinellist": []}),),
    ((_FIRST, {"sentinellist": ["one", "two words"]}),),
    ((_FIRST, {"sentinelthing": {"inner": [{"deep": "er"}, {}]}}),),
    ((_FIRST, {_KEY: 'say "hi" \\ and\nleave\tnow'}),),
    ((_FIRST, {_KEY: "<b>thrée</b> & {four} [5]"}),),
    ((_FIRST, {_KEY: "it's"}),),
    ((_SECOND, {_KEY: "12", _LATER_KEY: ""}),),
    ((_SECOND, {_KEY: "  kept  ", "sentinelcount": 0}),),
    ((_FIRST, {}), (_SECOND, {"sentinelopen": True}), (_FIRST, _COUNTED)),
)
_SPOKEN, _ANSWER, _RESULT = "sentinelspoken words.", "sentinelanswer", "sentinelresult"

_PIECE = re.compile(r"<[^<>]*>?|\[/?[A-Z][A-Z_ ]*\]|[^<\[]+|\[")  # a marker, or text between two
_MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z][A-Z_ ]*\]|◁[^◁▷]*▷")
_BEGUN = re.compile(r"<[^<>]*\Z")
_SPECIAL = re.compile(r"<[|｜]|[|｜]>|\[[A-Z_]+\]")
_NUMBERED = re.compile(rf"functions\.({_FIRST}|{_SECOND}):\d+")
_SIGN = re.compile(r"[<>\[\]{}|｜◁▷]")
_MOST_UNREAD = 16  # markers that answers are searched for
_LONGEST, _LONGEST_TAG = 4096, 256  # characters of an answer, and of what is one marker
_END = re.compile(r"\s*(<[|｜][^<>]*>)?\s*")  # of a turn


class Said(msgspec.Struct, frozen=True):
    """The words of an answer."""

    reasoning: str
    text: str
    calls: Calls = ()


class Turn(msgspec.Struct, frozen=True):
    """An answer as the template writes it: between `head` and `behind` stands what was said."""

    head: str
    body: str
    said: Said
    behind: str = ""


# What the template writes.


_ASKING = (message_of("user", f"{ASK}00"),)


def _exchange(number: int, calls: Calls, text: str) -> Iterator[Message]:
    yield message_of("user", f"{ASK}{number:02}")
    made = tuple(
        ToolCall(f"call_{number:02}{at}456789abcdef01234567", name, json.dumps(given))
        for at, (name, given) in enumerate(calls)
    )
    yield message_of("assistant", text, tool_calls=made)
    for call in made:
        yield message_of("tool", f"{_RESULT}{number:02}", tool_call_id=call.id, name=call.name)
    yield message_of("assistant", _ANSWER)


def turns_of(trial: Trial, traits: TemplateTraits) -> tuple[Turn, ...]:
    """Answers as the template writes them: with calls, then without."""
    switches = traits.thinking_switches
    on = {switch.variable: switch.on for switch in switches if switch.on is not None}
    native = traits.tools == traits.calls == "native"
    write = partial(trial.text, traits=traits, variables=on)
    asked = write(_ASKING).rpartition(f"{ASK}00")[2]
    calling = _calling(write, traits, asked) if native else ()
    return (*calling, *_speaking(write, traits, asked))


def _calling(write: Callable[..., str], traits: TemplateTraits, asked: str) -> Iterator[Turn]:
    answers = [Said("", "", calls) for calls in _CALLS if traits.parallel_calls or len(calls) == 1]
    answers += [Said("", _SPOKEN, _CALLS[0])] if traits.calls_with_text else []
    messages = [
        message
        for number, said in enumerate(answers)
        for message in _exchange(number, said.calls, said.text)
    ]
    messages.append(message_of("user", f"{ASK}{len(answers):02}"))
    whole = write(messages, tools=TOOLS)
    end = _end(whole, lambda: write(messages[:2], tools=TOOLS, prompt=False))
    for number, said in enumerate(answers):
        behind = whole.partition(f"{ASK}{number:02}")[2]
        body, there, _ = behind.partition(f"{_RESULT}{number:02}")
        words = (said.text, *(key for _, given in said.calls for key in given))
        if there and len(body) < _LONGEST and all(word in body for word in words):
            yield _turn(asked, body, end, said)


def _end(whole: str, alone: Callable[[], str]) -> str:
    """The text behind the calls of an answer ends any answer, or begins the result. `alone`: the
    first answer without a result behind it.
    """
    tail = whole.partition(f"{_RESULT}00")[0].rpartition(_LAST)[2][:_LONGEST]
    behind = whole.partition(f"{ASK}01")[0].rpartition(_ANSWER)[2][:_LONGEST_TAG]
    starts = (_BEGUN.sub("", behind[:size]) for size in range(len(behind), 2, -1))
    marks: list[str] = _MARKER.findall(behind)
    for end in chain(starts, marks):
        if end.strip() and end.strip() in tail:
            return end
    common = _BEGUN.sub("", tail[: common_length(tail, (text := alone()).rpartition(_LAST)[2])])
    pieces: list[str] = _PIECE.findall(tail[len(common) :]) if text else []
    return pieces[0].partition("sentinel")[0] if pieces else ""


def _turn(asked: str, body: str, end: str, said: Said) -> Turn:
    head = _BEGUN.sub("", body[: common_length(asked, body)])
    rest = body[len(head) :]
    return Turn(head, rest.rpartition(end)[0] or rest if end.strip() else rest, said)


def _speaking(write: Callable[..., str], traits: TemplateTraits, asked: str) -> Iterator[Turn]:
    for thought in ("", THOUGHT) if traits.reasoning_field else ("",):
        answer = message_of("assistant", _ANSWER, reasoning=thought or None)
        text = write((*_ASKING, answer), prompt=False)
        body, there, behind = text.rpartition(f"{ASK}00")[2].partition(_ANSWER)
        turn = _turn(asked, body + _ANSWER, "", Said(thought, _ANSWER))
        told = there and thought in body and len(body) < _LONGEST
        if told and (thought or not ends_open(turn.head)):
            yield replace(turn, behind=behind)


# The proof.


def reads_back(format: Format, turn: Turn) -> bool:
    """The splitter makes of the text what was said."""
    splitter = Splitter(
        format,
        in_reasoning=starts_in_reasoning(format, turn.head),
        tools=TOOLS if turn.said.calls else (),
        prompt_tail=turn.head,
    )
    events = (*splitter.feed(turn.body), *splitter.finish("stop"))
    said = turn.said
    text, thought = (
        "".join(event.text for event in events if isinstance(event, kind)).strip()
        for kind in (Content, Reasoning)
    )
    return (
        [(name, _ordered(given)) for name, given in said.calls]
        == [(name, _spelled(arguments)) for name, arguments in called(events)]
        and thought == said.reasoning
        and text.startswith(said.text)
        and _END.fullmatch(text[len(said.text) :]) is not None
    )


def _spelled(arguments: str) -> str:
    try:
        return _ordered(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):  # it broke off
        return arguments


def _ordered(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True)  # in which 1 isn't true


def proven(trial: Trial, traits: TemplateTraits, guess: Recognised) -> Recognised:
    """`guess` where it reads back what the template writes, else what is learned and reads more of
    it. Calls are learned where all are read. Raises LimitExceeded.
    """
    turns = turns_of(trial, traits)
    known = sum(reads_back(guess.format, turn) for turn in turns)
    if known == len(turns):
        return guess
    best, most = guess.format, known
    for entry in _learned(turns, guess.format):
        read = [turn for turn in turns if reads_back(entry, turn)]
        proved = all(turn in read for turn in turns if turn.said.calls)
        if len(read) > most and (proved or entry.syntaxes == guess.format.syntaxes):
            best, most = entry, len(read)
    part = f"{most} of the {len(turns)} answers that it writes are read back"
    why = guess.why if best is guess.format else "learned from the chat template"
    calling = [turn for turn in turns if turn.said.calls]
    lost = [turn for turn in calling if not reads_back(best, turn)]
    unread = _some(*chain.from_iterable(_unread(best, turn) for turn in lost))[:_MOST_UNREAD]
    return Recognised(best, f"{why}; {part}", not lost or len(lost) < len(calling), unread)


def _unread(format: Format, turn: Turn) -> Iterator[str]:
    """Markers around the words that the format doesn't have."""
    words, known = repr(turn.said), [*texts_of(format)]
    for mark in _MARKER.findall(turn.body):
        if mark not in words and not any(mark in text for text in known):
            yield mark


# What stands around the words.


def _stripped(body: str, marks: Sequence[str]) -> str:
    bare = body.lstrip()
    while mark := next((mark for mark in marks if bare.startswith(mark)), ""):
        bare = bare[len(mark) :].lstrip()
    return bare


def _marks(markers: ReasoningMarkers | None) -> tuple[str, ...]:
    return (*markers.opens, *markers.closes) if markers else ()


def _frame(turns: Sequence[Turn], known: ReasoningMarkers | None) -> Format:
    """An entry without calls: what stands around thoughts, else as it is `known`, and answers."""
    thinking = next((turn for turn in turns if turn.said.reasoning), None)
    markers = known if thinking is None else _around_thought(thinking) or known
    marks = _marks(markers)
    answers = [turn for turn in turns if turn.said.text == _ANSWER and not turn.said.calls]
    before = [turn.body.rpartition(THOUGHT)[2].partition(_ANSWER)[0] for turn in answers]
    shells = tuple(filter(_SIGN.search, _some(*(_stripped(text, marks) for text in before))))
    ends = [found[0] for turn in answers if shells and (found := _MARKER.search(turn.behind))]
    frame = Format(id="learned", reasoning=markers)
    return replace(frame, shell_opens=shells, shell_closes=_some(*ends))


def _around_thought(turn: Turn) -> ReasoningMarkers | None:
    before, _, behind = turn.body.partition(THOUGHT)
    opened, closed = before.strip(), behind.partition(_ANSWER)[0].strip()
    closes = found[0] if (found := _MARKER.match(closed)) else closed
    last = _MARKER.findall(turn.head)
    if not opened and last and _alike(last[-1], closes):
        opened = last[-1]
    if not opened or not closes:
        return None
    return ReasoningMarkers((opened,), (closes,), anywhere=bool(_SPECIAL.search(opened)))


def _alike(opener: str, closer: str) -> bool:
    """They have a word in common."""
    first, second = (set(re.findall("[a-z]+", text.lower())) for text in (opener, closer))
    return bool(first & second)


def _learned(turns: Sequence[Turn], guess: Format) -> Iterator[Format]:
    """Entries that may read back what the template writes."""
    frame = _frame(turns, guess.reasoning)
    marks, known = _marks(frame.reasoning), replace(guess, reasoning=frame.reasoning)
    calling = [replace(it, body=_stripped(it.body, marks)) for it in turns if it.said.calls]
    entries = [
        replace(frame, syntaxes=(syntax,))
        for syntax in _syntaxes(calling)
        if all(map(_SIGN.search, syntax.openers)) or getattr(syntax, "needs_array", False)
    ]
    if opens := frame.shell_opens:
        shelled = replace(known, shell_opens=opens, shell_closes=frame.shell_closes)
        entries.insert(0, shelled)
    yield known
    for entry in entries:
        tokens = entry.special_tokens or any(map(_SPECIAL.search, texts_of(entry)))
        yield replace(entry, special_tokens=tokens)


class _Around(msgspec.Struct, frozen=True):
    """Texts before a section of calls, before and behind each, and behind the section."""

    section: str
    opens: str
    closes: str
    end: str


def _some(*texts: str) -> tuple[str, ...]:
    return tuple(text.strip() for text in dict.fromkeys(texts) if text.strip())


def _around(lead: str, between: str | None, tail: str) -> _Around:
    """From the text before a first call, before a second and behind the last."""
    if between is None or between.strip() in {"", ",", ";"}:
        return _Around(lead.strip(), "", "", tail.strip())
    first, second, last = (_PIECE.findall(text) for text in (lead, between, tail))
    opening = common_length(first[::-1], second[::-1])
    size = len(second) - opening
    closing = common_length(second[:size], last)
    parts = (first[: len(first) - opening], second[size:], last[:closing], last[closing:])
    return _Around(*("".join(part).strip() for part in parts))


def _syntaxes(turns: Sequence[Turn]) -> Iterator[Syntax]:
    """Ways to read the calls: the likeliest first."""
    bodies = [
        next((turn.body for turn in turns if turn.said == Said("", "", calls)), "")
        for calls in _CALLS[:3]
    ]
    numbered = any(map(_NUMBERED.search, bodies))
    bodies = [_NUMBERED.sub(r"\1", body) for body in bodies]
    one, two, counted = bodies
    if not one or not counted:
        return
    found = [_in_json(body, calls) for body, calls in zip(bodies, _CALLS, strict=False)]
    if not found[0]:
        yield from _with_markup(one, two)
    elif found[0][0].name > found[0][0].begin:
        yield _objects(one, two, found)
    elif len(found[2]) == 1:
        yield from (replace(it, numbered=numbered) for it in _named(one, two, counted, found))


# Arguments as JSON.


class _InJson(msgspec.Struct, frozen=True):
    """Where a call stands: its name, and the outermost JSON object that holds its arguments."""

    name: int
    begin: int
    end: int
    value: Any


def _in_json(body: str, calls: Calls) -> list[_InJson]:
    found: list[_InJson] = []
    decoder, at = json.JSONDecoder(), -1
    while len(found) < len(calls) and (at := body.find("{", at + 1)) >= 0:
        name, given = calls[len(found)]
        try:
            value, end = decoder.raw_decode(body, at)
            holds = _holds(value, given)
        except (ValueError, RecursionError):
            continue
        if holds:
            found.append(_InJson(body.rfind(name, 0, end), at, end, value))
            at = end - 1
    return found


def _holds(value: Any, given: Mapping[str, Any]) -> bool:
    match value:
        case str() if value.startswith("{"):
            return _spelled(value) == _ordered(given)
        case dict():
            return value == given or any(_holds(inner, given) for inner in value.values())
        case _:
            return False


def _objects(one: str, two: str, found: Sequence[Sequence[_InJson]]) -> Syntax:
    call, pair = found[0][0], found[1]
    lead, tail = one[: call.begin].replace("```json", ""), one[call.end :].replace("```", "")
    between = two[pair[0].end : pair[1].begin] if len(pair) == 2 else None
    bare = lead.rstrip().removesuffix("[")
    around = _around(bare, between, tail.lstrip().removeprefix("]"))
    function = call.value.get("function")
    inner = function if isinstance(function, dict) else call.value
    opener = around.opens or around.section
    return JsonCalls(
        openers=_some(opener),
        closers=_some(around.closes or around.end),
        fences=("```json", "```") if "```" in one else (),
        name_keys=tuple(key for key, value in inner.items() if value == _FIRST),
        argument_keys=tuple(key for key, value in inner.items() if _holds(value, _TWO)),
        id_keys=tuple(key for key in call.value if key.endswith("id")),
        named_by_key=_FIRST in call.value,
        # A word of the answer may be the opener, too.
        needs_array=bare != lead.rstrip() and _SIGN.search(opener) is None,
        at_start=not opener,
    )


def _named(
    one: str, two: str, counted: str, found: Sequence[Sequence[_InJson]]
) -> Iterator[Syntax]:
    """A name, then the arguments. What differs in another call is an id."""
    (call,), pair, (other,) = found
    lead, id_end = _without_id(one[: call.name], counted[: other.name])
    behind, before_other = call.name + len(_FIRST), other.name + len(_FIRST)
    first, second = _without_id(one[behind : call.begin], counted[before_other : other.begin])
    between = two[pair[0].end : pair[1].name] if len(pair) == 2 else None
    if between is not None and id_end:
        between = between.partition("call_")[0]
    fences = ("```json", "```") if "```" in first else ()
    tail = one[call.end :].replace("```", "")
    around = _around(lead, between and between.replace("```", ""), tail)
    if opens := around.opens or around.section:
        yield NamedJsonCalls(
            openers=_some(around.section, opens),
            closers=_some(around.end),
            call_opens=(opens,),
            call_closes=_some(around.closes),
            name_ends=_some((second or first).replace("```json", "")),
            id_end=id_end.strip(),
            id_opens=_some(first) if second else (),
            fences=fences,
        )


def _without_id(text: str, other: str) -> tuple[str, str]:
    """The text up to a piece that differs in `other`, and from behind it."""
    pieces, others = _PIECE.findall(text), _PIECE.findall(other)
    for at, (piece, beside) in enumerate(zip(pieces, others, strict=False)):
        if piece != beside:
            return "".join(pieces[:at]), "".join(pieces[at + 1 :])
    return text, ""


# Keys and values in markup.


class _Gaps(msgspec.Struct, frozen=True):
    """Texts around a call's name, its keys and its values; `between` that and another's name:
    "" where no two are written at once.
    """

    lead: str
    after_name: str
    after_key: str
    after_value: str
    tail: str
    between: str = ""


def _gaps(body: str, *words: str) -> _Gaps | None:
    """None where the words don't follow one another."""
    rest = body
    gaps: list[str] = []
    for word in words:
        before, there, rest = rest.partition(word)
        if not there:
            return None
        gaps.append(before)
    lead, after_name, after_key, after_value = (*gaps, "")[:4]
    return _Gaps(lead, after_name, after_key, after_value, rest)


def _with_markup(one: str, two: str) -> Iterator[Syntax]:
    words = (_FIRST, *chain.from_iterable(_TWO.items()))
    if (gaps := _gaps(one, *words)) is None:
        return
    if pair := _gaps(two, *words):
        gaps = replace(gaps, between=pair.tail.partition(_SECOND)[0].removesuffix("call:"))
    begun, joint = gaps.after_name.strip(), gaps.after_key.strip()
    if begun == "(" and joint.rstrip("'\"") == "=":
        yield _pythonic(gaps)
    elif begun == "{" and joint[:1] == ":" and joint[1:] and gaps.lead.endswith("call:"):
        around = _closed(replace(gaps, lead=gaps.lead.removesuffix("call:")), "}")
        closers = _some(around.closes or around.end)
        opener = around.opens or around.section
        yield BareDictCalls(openers=_some(opener), closers=closers, quote=joint[1:])
    elif len(_MARKER.findall(joint)) > 1:
        yield from _key_values(gaps)
    else:
        yield from _elements(gaps)


def _pythonic(gaps: _Gaps) -> Syntax:
    tail = gaps.tail.lstrip("'\"").lstrip().removeprefix(")").lstrip().removeprefix("]")
    opener = gaps.lead.rstrip().removesuffix("[").strip()
    return PythonicCalls(openers=_some(opener), closers=_some(tail), at_start=not opener)


def _closed(gaps: _Gaps, closes: str) -> _Around:
    """Texts around calls, behind what `closes` their last value."""
    tail = gaps.tail.partition(closes)[2]
    if gaps.between:
        return _around(gaps.lead, gaps.between.partition(closes)[2], tail)
    opens = (_PIECE.findall(gaps.lead) or [""])[-1]
    call_closes = (_PIECE.findall(tail.strip()) or [""])[0]
    end = tail.strip().removeprefix(call_closes).strip()
    return _Around(gaps.lead.removesuffix(opens).strip(), opens, call_closes, end)


def _key_values(gaps: _Gaps) -> Iterator[Syntax]:
    *ends, key_opens = _PIECE.findall(gaps.after_name) or [""]
    *closes, value_opens = _MARKER.findall(gaps.after_key)
    value_closes = gaps.after_value.rpartition(key_opens)[0].strip() if key_opens else ""
    around = _closed(gaps, value_closes) if value_closes else None
    if around is not None and around.opens and around.closes:
        yield KeyValueCalls(
            openers=_some(around.section, around.opens),
            closers=_some(around.end),
            call_opens=(around.opens,),
            call_closes=(around.closes,),
            name_ends=_some("".join(ends)),
            key_opens=(key_opens,),
            key_closes=("".join(closes),),
            value_opens=(value_opens,),
            value_closes=(value_closes,),
        )


_ATTRIBUTES = r"""["']?((?:\s+[\w-]+=["'][^"']*["'])*)\s*(.*)"""
_HEAD = re.compile(r"""(.+?)\s+([\w-]+)=["']""", re.DOTALL)
_FRAMES = ((False, False), (True, False), (False, True))  # whether newlines or CDATA are markup
_TYPINGS: tuple[Typing, ...] = ("string", "type", "schema")  # the last reads what others write


def _elements(gaps: _Gaps) -> Iterator[Syntax]:
    """Elements that are named in their opening tags."""
    opens = (_PIECE.findall(gaps.after_name) or [""])[-1]
    named = re.fullmatch(_ATTRIBUTES, gaps.after_name.removesuffix(opens), re.DOTALL)
    behind = re.fullmatch(_ATTRIBUTES, gaps.after_key, re.DOTALL)
    closes = gaps.after_value.rpartition(opens)[0].strip() if opens else ""
    if behind is None or named is None or not named[2].strip() or not closes:
        return
    end, around = named[2].strip(), _closed(gaps, closes)
    if not around.opens or not around.closes or not behind[2].startswith(end):
        return
    *section, call_opens = _PIECE.findall(around.opens)
    call_closes, *ends = _PIECE.findall(around.closes)
    (call, call_name), (parameter, key_name) = _head(call_opens), _head(opens)
    for typing, (trims, cdata) in product(_TYPINGS, _FRAMES):
        yield ElementCalls(
            openers=_some(around.section, "".join(section)) or (call,),
            closers=_some(around.end, "".join(ends)),
            call_opens=(call,),
            head_ends=(end,),
            call_closes=(call_closes,),
            parameter_opens=(parameter,),
            parameter_closes=(closes,),
            name_attributes=tuple(dict.fromkeys((call_name, key_name))),
            typing=typing,
            trims_newline=trims,
            cdata=cdata,
        )


def _head(opens: str) -> tuple[str, str]:
    """A tag up to the attribute that names the element, and that; or all of it."""
    found = _HEAD.fullmatch(opens) if len(opens) < _LONGEST_TAG else None
    return (found[1], found[2]) if found else (opens, "name")
