"""A client's Lark grammar as parts that can be written again in another alphabet: rules, terminals,
and each regular expression down to its characters. Knows no tool and no model.

A grammar of a text constrains that text alone. Where a model writes the text with escapes (inside a
JSON string), or up to a marker, every string and regular expression of the grammar has to be
written as it looks there. `gateway.splitter.payloads.spelled` does that with what is read here.

Not read, and said by `UnreadableGrammar`: attributes of rules (lazy, stop, …), special tokens,
other grammars (`@name`), templates, `&` and `~`, and what Rust's regular expressions have beyond
sets, groups, alternatives and repetition.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from operator import or_
from typing import TypeAlias

import msgspec
from llguidance import LLMatcher

from backends.contract.grammar_limits import parser_limits
from gateway.constraints.grammars import BYTES, byte_tokenizer, grammar_text, lark_grammar
from gateway.terms.errors import InvalidRequest


class UnreadableGrammar(Exception):
    """What of a grammar can't be written in another alphabet; `args[0]` says what."""


class Atom(msgspec.Struct, frozen=True):
    """One character. `set`: a class in brackets; `flags`: those that count for it, such as `i`."""

    set: str
    flags: str = ""

    @property
    def pattern(self) -> str:
        """The regular expression of it."""
        return f"(?{self.flags}:{self.set})" if self.flags else self.set

    def without(self, others: str) -> str:
        """The regular expression of it without `others`, the inside of a class."""
        left = f"[{self.set}--[{others}]]" if others else self.set
        return f"(?{self.flags}:{left})" if self.flags else left

    @property
    def bytes(self) -> int:
        """Those that it may begin with, a bit for each."""
        return first_bytes(self.pattern)


# Its characters, and signs as llguidance's Lark has them: (, ), |, and repetitions in braces.
Regex: TypeAlias = tuple[Atom | str, ...]
NOTHING = '""'

DEEPEST = 64  # groups inside groups
MOST_ATOMS = 4_096  # characters and classes of one grammar
MOST_SETS = 512  # of them, different ones: each is compiled
MOST_PLACES = 512  # of a regular expression that is looked at for what may follow what
_COUNT = re.compile(r"([*+?])|\{(\d{1,5})(,(\d{0,5}))?\}")
_SIGNS = {"*": "{0,}", "+": "{1,}", "?": "{0,1}"}
# Of a class in brackets, where one that comes first is a character.
_CLASS_PART = re.compile(r"(?s)\\.|\[\^?\]?|\]|[^\\\[\]]+")
_FLAGS = re.compile(r"\?(?:P?<\w+>|([imsu]*):)")
_ESCAPE = re.compile(
    r"\\(?:x\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}"
    r"|U[0-9a-fA-F]{8}|[pP]\{[^}]{1,64}\}|[pP][A-Za-z]|[dDsSwWnrtfv\\0]|[^A-Za-z0-9])"
)


@lru_cache(maxsize=4096)
def first_bytes(pattern: str) -> int:
    """The bytes that what `pattern` matches may begin with, a bit for each. Its compiler is the one
    that generates by it, so both always mean the same characters.
    """
    text = grammar_text(({"lark_grammar": f"start: /{pattern}/"},))
    matcher = LLMatcher(byte_tokenizer(), text, log_level=0, limits=parser_limits())
    found = matcher.compute_bitmask()
    if matcher.is_error():
        return 0
    return int.from_bytes(found, "little") & BYTES


class _RegexReader:
    """Reads one regular expression in Rust's syntax."""

    def __init__(self, text: str, flags: str) -> None:
        self._text = text
        self._flags = flags
        self._at = 0
        self._found: list[Atom | str] = []
        # Of each group that is open: the flags around it, and where it begins.
        self._around: list[tuple[str, int]] = []
        self._repeatable: int | None = None  # where that begins which a count would repeat
        self._again = 0  # repetitions of repetitions

    def whole(self) -> Regex:
        while self._at < len(self._text):
            self._one(self._text[self._at])
        self._end_option()
        if self._around:
            raise UnreadableGrammar("a group that is not closed")
        return tuple(self._found)

    def _one(self, sign: str) -> None:
        if counted := _COUNT.match(self._text, self._at):
            self._repeat(counted)
        elif sign == "(":
            self._open()
        elif sign == "|":
            self._end_option()
            self._add("|", 1)
        elif sign == ")" and self._around:
            self._end_option()
            self._flags, begin = self._around.pop()
            self._add(")", 1, begin)
        elif sign in ")^$":
            raise UnreadableGrammar(f"{sign!r} in the regular expression /{self._text[:60]}/")
        else:
            self._character(sign)

    def _add(self, token: Atom | str, size: int, repeatable: int | None = None) -> None:
        self._found.append(token)
        self._at += size
        self._repeatable = repeatable

    def _end_option(self) -> None:
        if self._found[-1:] in ([], ["("], ["|"]):
            self._found.append(NOTHING)

    def _repeat(self, counted: re.Match[str]) -> None:
        """A second sign repeats what the first one does, all of it. As "?" it says that less is
        preferred, which is for searching.
        """
        sign, least, comma, most = counted.groups()
        begin, before = self._repeatable, self._found[-1] if self._found else ""
        again = isinstance(before, str) and before.startswith("{")
        if begin is None or (again and sign == "?"):
            raise UnreadableGrammar(f"{counted[0]!r} in the regular expression /{self._text[:60]}/")
        if again:
            self._enclose(begin)
        last = most if comma else least
        bounds = _SIGNS[sign] if sign else f"{{{int(least)},{last and int(last)}}}"
        self._add(bounds, len(counted[0]), begin)

    def _enclose(self, begin: int) -> None:
        self._again += 1
        if self._again >= DEEPEST:
            raise UnreadableGrammar("repetitions of repetitions")
        self._found[begin:] = ["(", *self._found[begin:], ")"]

    def _open(self) -> None:
        self._around.append((self._flags, len(self._found)))
        if len(self._around) >= DEEPEST:
            raise UnreadableGrammar("groups nested too deep")
        self._add("(", 1)
        if self._text.startswith("?", self._at):
            if (flags := _FLAGS.match(self._text, self._at)) is None:
                raise UnreadableGrammar("a group that looks around, or turns a flag off")
            self._flags += flags[1] or ""
            self._at = flags.end()

    def _character(self, sign: str) -> None:
        size = 1
        if sign == "[":
            size = self._class_size()
            among = self._text[self._at : self._at + size]
        elif sign == "\\":
            if (escape := _ESCAPE.match(self._text, self._at)) is None:
                raise UnreadableGrammar(f"the escape {self._text[self._at : self._at + 2]!r}")
            size = len(escape[0])
            among = r"[\x{0}]" if escape[0] == r"\0" else f"[{escape[0]}]"
        elif sign == ".":
            among = r"[\x{0}-\x{10FFFF}]" if "s" in self._flags else r"[^\n]"
        else:
            among = f"[\\x{{{ord(sign):x}}}]"
        self._add(Atom(among, "i" if "i" in self._flags else ""), size, len(self._found))

    def _class_size(self) -> int:
        """Of a class in brackets, which may hold others."""
        depth = 0
        for part in _CLASS_PART.finditer(self._text, self._at):
            depth += (part[0][0] == "[") - (part[0] == "]")
            if not depth:
                return part.end() - self._at
        raise UnreadableGrammar("a class that is not closed")


def read_regex(text: str, flags: str = "") -> Regex:
    """Raises UnreadableGrammar."""
    if set(flags) - set("imsu"):
        raise UnreadableGrammar(f"the flags {flags!r} of a regular expression")
    return _RegexReader(text, flags).whole()


def atoms(regex: Regex) -> list[Atom]:
    """All of its characters."""
    return [each for each in regex if isinstance(each, Atom)]


def is_deterministic(regex: Regex) -> bool:
    """The next character alone always says where in the expression it stands: then it may be cut
    into lexemes, each as long as can be, and matches the same. By its positions (Glushkov's
    automaton): those that may follow one another begin with different bytes.
    """
    places = atoms(regex)
    if len(places) > MOST_PLACES:
        return False
    follow = [set[int]() for _ in places]
    first, _, _ = _glushkov([*reversed(regex)], iter(range(len(places))), follow)
    bytes_of = [place.bytes for place in places]
    together = {frozenset(among) for among in (first, *follow)}
    return all(_disjoint([bytes_of[place] for place in among]) for among in together)


def _glushkov(
    rest: list[Atom | str], numbers: Iterator[int], follow: list[set[int]]
) -> tuple[set[int], set[int], bool]:
    """First and last places of what is written in `rest`, up to a ")" that opens nowhere in it, and
    whether nothing at all is matched. Its next token is the last, and what is read is taken out.
    """
    firsts, lasts, none = set[int](), set[int](), False  # of the alternatives before this one
    first, last, empty = set[int](), set[int](), True
    while rest and (each := rest.pop()) != ")":
        if each == "|":
            firsts, lasts, none = firsts | first, lasts | last, none or empty
            first, last, empty = set(), set(), True
            continue
        begins, ends, nothing = set[int](), set[int](), each == NOTHING
        if each == "(":
            begins, ends, nothing = _glushkov(rest, numbers, follow)
        elif isinstance(each, Atom):
            begins = ends = {next(numbers)}
        if rest and isinstance(bounds := rest[-1], str) and bounds[0] == "{":
            rest.pop()
            nothing = nothing or bounds.startswith("{0,")
            _lead(ends, begins if not bounds.endswith(",1}") else set(), follow)
        _lead(last, begins, follow)
        first = first | begins if empty else first
        last = ends | last if nothing else ends
        empty = empty and nothing
    return firsts | first, lasts | last, none or empty


def _lead(sources: set[int], to: set[int], follow: list[set[int]]) -> None:
    for source in sources:
        follow[source] |= to


def _disjoint(masks: Sequence[int]) -> bool:
    return sum(masks) == reduce(or_, masks, 0)


class Text(msgspec.Struct, frozen=True):
    """A string; `any_case`: its letters in either case."""

    text: str
    any_case: bool = False


class Name(msgspec.Struct, frozen=True):
    """A rule or a terminal."""

    name: str


Token: TypeAlias = str | Text | Regex | Name  # a str: an operator, as llguidance writes it


class ReadGrammar(msgspec.Struct, frozen=True):
    """Bodies by name: of rules (small letters) and terminals (capitals). `ignored`: what may stand
    between any two terminals.
    """

    definitions: Mapping[str, tuple[Token, ...]]
    ignored: tuple[tuple[Token, ...], ...]


_TOKENS = re.compile(
    r"""(?P<head>^[ \t\r\f]*(?:%[a-z]+|[?!]*[A-Za-z_][A-Za-z0-9_-]*[ \t\r\f]*:))
    | (?P<space>\n | [ \t\r\f]+ | //[^\n]* | \#[^\n]*)
    | (?P<range>"(?:[^"\\\n]|\\.)*"[ \t]*\.\.[ \t]*"(?:[^"\\\n]|\\.)*")
    | (?P<string>"(?:[^"\\\n]|\\.)*"i?) | (?P<regex>/(?:[^/\\\n]|\\.)+/[a-z]*)
    | (?P<name>[A-Za-z_][A-Za-z0-9_-]*) | (?P<arrow>->[ \t]*[A-Za-z_][A-Za-z0-9_-]*)
    | (?P<count>\{[ ]*+\d*+[ ]*+(?:,[ ]*+\d*+[ ]*+)?\} | ~[ ]*\d+(?:\.\.\d+)?)
    | (?P<sign>[|()\[\]+*?,]) | (?P<other>["/][^\n]*|%[a-z]+|.)
    """,
    re.VERBOSE | re.MULTILINE,
)

# As Lark documents its library `common`.
_COMMON: Mapping[str, str] = {
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "CR": r"\r",
    "C_COMMENT": r"\/\*([^*]|\*+[^*\/])*\*+\/",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "DIGIT": "[0-9]",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"',
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "LCASE_LETTER": "[a-z]",
    "LETTER": "[A-Za-z]",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "NUMBER": r"[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SH_COMMENT": r"\x23[^\n]*",
    "SIGNED_FLOAT": r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "SIGNED_INT": "[+-]?[0-9]+",
    "SIGNED_NUMBER": (
        r"[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"
    ),
    "SQL_COMMENT": r"--[^\n]*",
    "UCASE_LETTER": "[A-Z]",
    "WORD": "[A-Za-z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}


def read_lark(text: str) -> ReadGrammar:
    """A grammar that is known to be one. Raises UnreadableGrammar."""
    return _GrammarReader(text).whole()


class _GrammarReader:
    """Reads one grammar, a line after the other."""

    def __init__(self, text: str) -> None:
        found = [(str(each.lastgroup), each.group()) for each in _TOKENS.finditer(text)]
        self._tokens = [each for each in found if each[0] != "space"]
        self._definitions: dict[str, tuple[Token, ...]] = {}
        self._ignored: list[tuple[Token, ...]] = []
        self._atoms = 0
        self._sets: set[Atom] = set()

    def whole(self) -> ReadGrammar:
        for head, body in self._statements():
            match head:
                case "%import":
                    self._import(body)
                case "%ignore":
                    self._ignored.append(tuple(self._body(body)))
                case name:
                    self._definitions[name] = tuple(self._body(body))
        if "start" not in self._definitions:
            raise UnreadableGrammar("a grammar without the rule start")
        return ReadGrammar(self._definitions, tuple(self._ignored))

    def _statements(self) -> Sequence[tuple[str, list[tuple[str, str]]]]:
        """What each statement begins with, and the rest of it."""
        found: list[tuple[str, list[tuple[str, str]]]] = []
        for kind, value in self._tokens:
            if kind == "head":  # what counts in the tree, "?" and "!", says nothing here
                found.append((value.strip("?!: \t\r\f"), []))
            elif found:
                found[-1][1].append((kind, value))
            else:
                raise UnreadableGrammar(f"{value!r:.60} before the first rule")
        return found

    def _import(self, body: Sequence[tuple[str, str]]) -> None:
        names = [value for kind, value in body if kind == "name"]
        if names[:1] != ["common"]:
            raise UnreadableGrammar("an import of something other than common")
        renamed = [value.removeprefix("->").strip() for kind, value in body if kind == "arrow"]
        if renamed and len(names) != 2:
            raise UnreadableGrammar("an import under several names")
        for name in names[1:]:
            if name not in _COMMON:
                raise UnreadableGrammar(f"common.{name[:60]}")
            self._definitions[renamed[0] if renamed else name] = (read_regex(_COMMON[name]),)

    def _body(self, tokens: Sequence[tuple[str, str]]) -> Iterator[Token]:
        for kind, value in tokens:
            if kind != "arrow":  # a name in the tree
                yield from self._token(kind, value)

    def _token(self, kind: str, value: str) -> Iterator[Token]:
        match kind:
            case "string":
                yield _text(value)
            case "regex":
                pattern, _, flags = value[1:].rpartition("/")
                regex = read_regex(pattern, flags)
                found = atoms(regex)
                self._atoms += len(found)
                self._sets.update(found)
                if self._atoms > MOST_ATOMS or len(self._sets) > MOST_SETS:
                    raise UnreadableGrammar("too many characters and classes")
                yield regex
            case "range":
                yield _range(*map(_text, _STRING.findall(value)))
            case "name":
                yield Name(value)
            case "count":
                digits = value.replace(" ", "")
                yield digits if digits[0] == "{" else f"{{{digits[1:].replace('..', ',')}}}"
            case "sign" if value != ",":
                signs = {"[": "((", "]": ")?)"}.get(value, value)
                yield from (_SIGNS.get(sign, sign) for sign in signs)
            case _:
                raise UnreadableGrammar(f"{value!r:.60}")


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def _range(low: Text, high: Text) -> Regex:
    if len(low.text) != 1 or len(high.text) != 1:
        raise UnreadableGrammar("a range of something other than characters")
    return (Atom(rf"[\x{{{ord(low.text):x}}}-\x{{{ord(high.text):x}}}]"),)


_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)")


def _text(token: str) -> Text:
    """A string of the grammar, its escapes applied."""
    body = token.removesuffix("i")
    try:
        text = json.loads(_ESCAPED.sub(lambda one: rf"\u00{one[1]}" if one[1] else one[0], body))
    except ValueError:
        raise UnreadableGrammar(f"the string {token[:60]}") from None
    return Text(text, any_case=token.endswith("i"))


def ending_lark(text: str, field: str) -> str:
    """A client's grammar, as `lark_grammar`. Raises InvalidRequest also where a text may get to a
    rule that has no end, as far as the grammar can be read here.
    """
    lark = lark_grammar(text, field)
    rule = None
    with suppress(UnreadableGrammar, RecursionError):
        rule = endless(read_lark(lark))
    if rule is not None:
        raise InvalidRequest.at(field, f"no text of the rule {rule!r:.60} has an end.")
    return lark


def endless(grammar: ReadGrammar) -> str | None:
    """A rule that a text may come to, and never to the end of: `a: "x" a`. None: there is none."""
    bodies = grammar.definitions
    unknown = {*bodies}
    while ends := {each for each in unknown if _may_end([*reversed(bodies[each])], unknown)}:
        unknown -= ends
    reached, stack = {"start"}, ["start"]
    while stack:
        names = {each.name for each in bodies[stack.pop()] if isinstance(each, Name)}
        stack += names & bodies.keys() - reached
        reached |= names & bodies.keys()
    return min(reached & unknown, default=None)


def _may_end(rest: list[Token], unknown: Collection[str]) -> bool:
    """Whether a text may end that has begun with what is written in `rest`, up to a ")" that opens
    nowhere in it; its next token is the last, and what is read is taken out. Rules that aren't
    `unknown` do.
    """
    found, whole = False, True  # an alternative before this one; what of this one is read
    while rest and (each := rest.pop()) != ")":
        if each == "|":
            found, whole = found or whole, True
            continue
        if each == "(":
            one = _may_end(rest, unknown)
        else:
            one = not isinstance(each, Name) or each.name not in unknown
        while rest and isinstance(bounds := rest[-1], str) and bounds.startswith("{"):
            rest.pop()
            one = one or bounds[1] in "0,"
        whole = whole and one
    return found or whole
