r"""A client's grammar of a text, written as the text looks inside a call: with JSON's escapes, or
bare up to a marker.

Each character is written in one way alone (`\n`, `\"`, `\u001b`), so that the grammar of what is
written is the client's grammar, character for character. A lexer that takes the longest lexeme and
never goes back couldn't tell a line's end from an escape inside the line, since both begin with a
backslash. So escapes are lexemes of their own: a text between two of them is one, and every regular
expression that holds such characters is taken apart into rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from gateway.constraints.lark import Lark, literal, one_of, pattern_of
from gateway.constraints.lark_reading import (
    NOTHING,
    Atom,
    Name,
    ReadGrammar,
    Regex,
    Text,
    Token,
    UnreadableGrammar,
    atoms,
    is_deterministic,
)

DEEPEST = 64  # terminals made of terminals
_RUNS: Mapping[object, str] = {"{0,}": "*", "{1,}": "+"}


_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_SHORT_IN_JSON = {"\b": r"\b", "\f": r"\f"}


class Quoted:
    """Inside a string of JSON, or of Python between single quotes. `special`: the ASCII characters
    that aren't written as themselves, or that count for what comes after them.
    """

    def __init__(self, mark: str = '"') -> None:
        self.special = f"{mark}\\" + "".join(map(chr, range(0x20)))
        self._written = {each: f"\\{each}" for each in (mark, "\\")} | _SHORT
        if mark == '"':  # readers of the other know no more escapes
            self._written |= _SHORT_IN_JSON
            self._written |= {
                each: f"\\u{ord(each):04x}" for each in self.special if each not in self._written
            }

    def one(self, lark: Lark, characters: str) -> str:
        """An expression: one of these special characters, as it is written."""
        found = [literal(self._written[each]) for each in characters if each in self._written]
        return lark.terminal(one_of(found)) if found else lark.nothing

    def run(self, lark: Lark, atom: Atom, characters: str, words: Sequence[str], sign: str) -> str:
        """An expression: a text of such characters. `characters`: the special ones among them;
        `words`: expressions of some of the others; `sign`: of how many, + or *.
        """
        escaped = [self.one(lark, characters)] if characters else []
        return f"{one_of([*words, *escaped])}{sign}"


class Bare:
    """As it is, up to one of `closers`. A line's end is special because one may be markup.

    What begins as a closer and comes to nothing is text: so much of it with a character that is no
    more of it, or so much where something else begins.
    """

    def __init__(self, lark: Lark, closers: Sequence[str]) -> None:
        self._closers = [closer for closer in closers if lark.pieces(closer) == [closer]]
        assert all(closer[0].isascii() for closer in self._closers), "as those of all families"
        self.special = "".join(sorted({"\n", *(closer[0] for closer in self._closers)}))

    def one(self, lark: Lark, characters: str) -> str:
        return lark.terminal(one_of(map(literal, characters)))

    def run(self, lark: Lark, atom: Atom, characters: str, words: Sequence[str], sign: str) -> str:
        begun = self._beginnings(atom) if characters else []
        starts = {each[0] for each in begun}
        plain = [self.one(lark, each) for each in characters if each not in starts]
        if not begun:
            return f"{one_of([*words, *plain])}{sign}"
        parts = lark.terminal(one_of(map(literal, begun)))
        failed = lark.terminal(one_of(f"/{self._failed(atom, each)}/" for each in begun))
        each = one_of([*words, f"{parts}* {one_of([failed, *plain])}"])
        whole = f"({each}{sign} {parts}*"
        return f"{whole} | {parts}+)" if sign == "+" else f"{whole})"

    def _beginnings(self, atom: Atom) -> list[str]:
        """What of closers can be text of such characters."""
        taken = atom.bytes
        begun = {
            closer[:end]
            for closer in self._closers
            for end in range(1, len(closer))
            if all(taken >> sign.encode()[0] & 1 for sign in closer[:end])
        }
        return sorted(begun)

    def _failed(self, atom: Atom, begun: str) -> str:
        """A regular expression: a closer's beginning, and a character that is none of it."""
        goes_on = {
            closer[len(begun)]
            for closer in self._closers
            if closer.startswith(begun) and len(closer) > len(begun)
        }
        others = pattern_of("".join(sorted({*self.special, *goes_on})))
        return f"{pattern_of(begun)}{atom.without(others)}"


Spelling: TypeAlias = Quoted | Bare


def spelled(lark: Lark, grammar: ReadGrammar, spelling: Spelling) -> str:
    """An expression: what `grammar` matches, so written. Raises UnreadableGrammar."""
    return _Writer(lark, grammar, spelling).start()


class _Writer:
    """Writes one grammar in one spelling."""

    def __init__(self, lark: Lark, grammar: ReadGrammar, spelling: Spelling) -> None:
        self._lark = lark
        self._grammar = grammar
        self._spelling = spelling
        self._special = sum(1 << ord(each) for each in spelling.special)
        self._inside = pattern_of(spelling.special)
        self._names: dict[str, str] = {}
        self._plain: dict[str, bool] = {}
        self._waiting: list[str] = []
        self._skip = ""

    def start(self) -> str:
        ignored = self._grammar.ignored
        if ignored:
            each = one_of(self._expression(body, skipping=False) for body in ignored)
            self._skip = self._lark.rule(f"({each})*")
        whole = f"{self._skip} {self._named('start')}"
        while self._waiting:
            name = self._waiting.pop()
            is_rule = not _is_terminal(name)
            body = self._expression(self._grammar.definitions[name], skipping=is_rule)
            self._lark.define(self._names[name], body)
        return whole

    def _named(self, name: str) -> str:
        """What a rule or terminal of the client is called here."""
        if name not in self._grammar.definitions:
            raise UnreadableGrammar(f"{name[:60]}, which has no rule")
        if name not in self._names:
            if _is_terminal(name) and self._is_plain(name, 0):
                body = self._expression(self._grammar.definitions[name], skipping=False)
                self._names[name] = self._lark.terminal(body)
            else:
                self._names[name] = self._lark.reserve()
                self._waiting.append(name)
        return self._names[name]

    def _is_plain(self, name: str, depth: int) -> bool:
        """A terminal that holds no special character stays one lexeme."""
        if depth > DEEPEST:
            raise UnreadableGrammar("terminals in terminals nested too deep")
        if name not in self._plain:
            body = self._grammar.definitions.get(name, ())
            self._plain[name] = all(self._is_plain_token(each, depth + 1) for each in body)
        return self._plain[name]

    def _is_plain_token(self, token: Token, depth: int) -> bool:
        match token:
            case Name(name):
                return _is_terminal(name) and self._is_plain(name, depth)
            case Text(text):
                return not set(text) & set(self._spelling.special)
            case str():
                return True
            case regex:
                return self._is_plain_regex(regex)

    def _is_plain_regex(self, regex: Regex) -> bool:
        return not any(each.bytes & self._special for each in atoms(regex))

    def _expression(self, body: Sequence[Token], *, skipping: bool) -> str:
        """`skipping`: after each terminal what is ignored may stand."""
        return " ".join(self._written(body, skipping=skipping)) or '""'

    def _written(self, body: Sequence[Token], *, skipping: bool) -> Iterator[str]:
        for token in body:
            match token:
                case str():
                    yield token
                case Name(name) if not _is_terminal(name):
                    yield self._named(name)
                case _:
                    written = self._terminal(token)
                    skips = skipping and self._skip
                    yield f"({written} {self._skip})" if skips else f"({written})"

    def _terminal(self, token: Name | Text | Regex) -> str:
        match token:
            case Name(name):
                return self._named(name)
            case Text(text, any_case):
                return self._text(text, "i" if any_case else "")
            case regex if self._is_plain_regex(regex):
                return self._lark.regex(_printed(regex))
            case regex:
                return self._apart(regex)

    def _text(self, text: str, case: str) -> str:
        special = self._spelling.special
        parts = (
            self._spelling.one(self._lark, word) if word[0] in special else literal(word) + case
            for word in _words(text, special)
        )
        return " ".join(parts) or '""'

    def _apart(self, regex: Regex) -> str:
        """As rules. A text of many characters is one lexeme where each character says where in the
        expression it stands, else each is one.
        """
        plus = "+" if is_deterministic(regex) else ""
        written: list[str] = []
        for before, token, behind in zip((None, *regex), regex, (*regex[1:], None), strict=False):
            match token:
                case Atom() if behind in _RUNS:
                    words, sign = self._word(token, plus), _RUNS[behind]
                    written.append(
                        self._spelling.run(self._lark, token, self._among(token), words, sign)
                    )
                case Atom():
                    among = self._among(token)
                    specials = [self._spelling.one(self._lark, among)] if among else []
                    written.append(one_of([*self._word(token), *specials]))
                case sign if not (isinstance(before, Atom) and sign in _RUNS):
                    written.append(sign)
        return f"({' '.join(written)})"

    def _word(self, atom: Atom, sign: str = "") -> list[str]:
        """What of it is written as itself."""
        rest = atom.bytes & ~self._special
        return [self._lark.regex(atom.without(self._inside) + sign)] if rest else []

    def _among(self, atom: Atom) -> str:
        return "".join(each for each in self._spelling.special if atom.bytes >> ord(each) & 1)


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _words(text: str, special: str) -> Iterator[str]:
    """Its special characters one by one, and what is between them."""
    for key, group in groupby(enumerate(text), lambda each: each[1] in special and each[0] + 1):
        word = "".join(character for _, character in group)
        assert not key or len(word) == 1, "each has its own place"
        yield word


def _printed(regex: Regex) -> str:
    """As a regular expression again."""
    return "".join(
        each.pattern if isinstance(each, Atom) else {"(": "(?:", NOTHING: ""}.get(each, each)
        for each in regex
    )
