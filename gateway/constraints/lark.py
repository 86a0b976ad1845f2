"""A Lark grammar of llguidance while it is being written: texts, markers, terminals, rules.

llguidance's dialect is described in its docs/syntax.md. What counts here: the lexer takes the
longest lexeme and never goes back; a lexeme that can't grow any more ends at once; a control token
is matched by `<[id]>` alone and ends any lexeme before it. Of all that only two forms make masks
slow in free text, lazy lexemes and complements (`~`), so text is written without them.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

ASCII_SPACE = r"\t-\r\x1c-\x20"  # the inside of a character class
GAP = r"[ \t\r\n]{1,16}"  # what models put between the parts of a call
SPACE = r"[\s\x1c-\x1f]"  # what Python's str.isspace and \s hold, in Rust's words
# Of llguidance's JSON. A line break stands at a place once, so a model can't write white space for
# ever. Characters are escaped as any writer does; where a pattern says what a string holds, control
# characters alone.
GUIDANCE = {
    "whitespace_pattern": r"\n[ \t]{0,20}", "item_separator": ", ?", "key_separator": ": ?",
    "json_allow_general_unicode_escapes": True,
}  # fmt: skip
_REGEX_SIGNS = re.compile(r"[\\^$*+?{}|()\[\].&~#/\"<>-]")


class GrammarTooLarge(Exception):
    """A grammar of more rules than `Lark.MOST`; `args[0]` says what of."""


class Lark:
    """The rules of one grammar. `control`: the vocabulary's control tokens, text to id."""

    MOST = 20_000  # rules and terminals: a client's schemas are as large as it likes

    def __init__(self, control: Mapping[str, int]) -> None:
        self.control = control
        self._token = re.compile(
            "|".join(map(re.escape, sorted(filter(None, control), key=len, reverse=True)))
            or r"(?!)"
        )
        self._made: dict[object, str] = {}
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def pieces(self, text: str) -> list[str | int]:
        """`text` cut at its control tokens: stretches of text, and ids."""
        found: list[str | int] = []
        at = 0
        for token in self._token.finditer(text):
            found += [text[at : token.start()]] if token.start() > at else []
            found.append(self.control[token.group()])
            at = token.end()
        return found + ([text[at:]] if at < len(text) else [])

    def text(self, text: str) -> str:
        """An expression that matches `text`, its control tokens as such."""
        parts = (
            f"<[{piece}]>" if isinstance(piece, int) else literal(piece)
            for piece in self.pieces(text)
        )
        return " ".join(parts) or '""'

    def any_of(self, texts: Iterable[str]) -> str:
        """An expression that matches one of `texts`."""
        return one_of(self.text(text) for text in texts)

    def rule(self, body: str) -> str:
        """The name of a rule; the same for the same body."""
        return self._named(body, "r")

    def terminal(self, body: str) -> str:
        """The name of a terminal: one lexeme. The same for the same body."""
        return self._named(body, "T")

    def regex(self, pattern: str) -> str:
        """The name of a terminal that matches a regular expression (Rust's syntax)."""
        return self.terminal(f"/{pattern}/")

    def json(self, schema: Mapping[str, Any]) -> str:
        """The name of a rule that matches JSON of a schema, as llguidance has it."""
        whole = msgspec.json.encode({**schema, "x-guidance": GUIDANCE}).decode()
        return self.rule(f"%json {whole}")

    @property
    def gap(self) -> str:
        """An expression: optional white space."""
        return f"{self.regex(GAP)}?"

    def then(self, texts: Sequence[str]) -> str:
        """An expression: one of some texts, optional white space before it; nothing where there
        are none.
        """
        return f"{self.gap} {self.any_of(texts)}" if texts else ""

    @property
    def nothing(self) -> str:
        """The name of a terminal that matches no text at all."""
        return self.terminal("/a/ & /b/")

    def once(self, key: object, make: Callable[[], str]) -> str:
        """What `make` gives; made once for each key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def reserve(self) -> str:
        """The name of a rule whose body comes later, by `define`: it may refer to itself."""
        return self._new("r")

    def define(self, name: str, body: str, kind: str = "") -> None:
        """Gives a reserved rule its body. `kind`: "::_" of a rule with a parameter (llguidance's
        docs/parametric.md), "[lazy]" of one that ends as soon as it can.
        """
        del self._bodies[name]
        self._bodies[f"{name}{kind}"] = body

    def _named(self, body: str, kind: str) -> str:
        key = f"{kind}: {body}"
        if key not in self._names:
            self._names[key] = name = self._new(kind)
            self._bodies[name] = body
        return self._names[key]

    def _new(self, kind: str) -> str:
        if len(self._bodies) >= self.MOST:
            raise GrammarTooLarge(f"more than {self.MOST} rules")
        name = f"{kind}{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def written(self, start: str) -> str:
        """The grammar whose beginning is the expression `start`."""
        rules = (f"{name}: {body}" for name, body in self._bodies.items())
        return "\n".join((f"start: {start}", *rules))


def literal(text: str) -> str:
    """`text` as a string of the grammar, without control tokens. Escapes are JSON's."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def pattern_of(text: str) -> str:
    """`text` as a regular expression (Rust's syntax) that can stand between slashes."""
    return "".join(map(_pattern_sign, text))


def _pattern_sign(character: str) -> str:
    if character.isprintable() and not _REGEX_SIGNS.match(character) and character != " ":
        return character
    return f"\\U{ord(character):08x}"  # which Python reads, too


def one_of(expressions: Iterable[str]) -> str:
    """An expression that matches one of some; each once."""
    options = list(dict.fromkeys(expressions))
    return options[0] if len(options) == 1 else f"({' | '.join(options)})"


def sequence(expressions: Sequence[str]) -> str:
    """An expression that matches some, one after the other."""
    return " ".join(part for part in expressions if part) or '""'


def token_set(ids: Iterable[int]) -> str:
    """An expression that matches one of some control tokens."""
    return f"<[{','.join(map(str, sorted(ids)))}]>"
