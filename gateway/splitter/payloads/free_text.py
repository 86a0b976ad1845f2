"""Text that may be anything but some markers, as lexemes whose masks are cheap.

Text without a character that begins a marker is one lexeme: nearly every token fits in whole, which
llguidance sees at once. What begins a marker and comes to nothing is another: the longest proper
prefix that there is. After it the lexer begins anew where the marker went wrong, so a marker that
could begin inside another's beginning is cut before that place: what comes before is as much of it
as free text can't hold.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise

import msgspec

from gateway.constraints.lark import (
    ASCII_SPACE,
    GAP,
    Lark,
    literal,
    one_of,
    pattern_of,
    token_set,
)


class EndMarkers(msgspec.Struct, frozen=True):
    """Markers that end a text, as the grammar writes them: `spelled[text]` is the expression.

    `cut`: one of them is searched for by its beginning, which text can't hold either. `starts`: the
    characters that begin a textual one. `beginnings`: what of one may stand in the text without
    coming to it; `unlike`: regular expressions of more such.
    """

    spelled: dict[str, str]
    cut: bool
    starts: str
    beginnings: tuple[str, ...]
    unlike: tuple[str, ...]

    def of(self, texts: Collection[str]) -> str:
        """An expression that matches one of `texts`."""
        return one_of(self.spelled[text] for text in texts)

    @property
    def not_begun(self) -> str:
        """A regular expression that matches a character which begins none."""
        return f"[^{self.avoided}]" if self.starts else r"(?s:.)"

    @property
    def avoided(self) -> str:
        """The inside of a character class: what begins a marker, and what shares its first byte."""
        return "".join(map(_alike, self.starts))


def markers(lark: Lark, texts: Sequence[str]) -> EndMarkers:
    """The markers `texts`, each with the control tokens it holds."""
    pieces = {text: lark.pieces(text) for text in dict.fromkeys(texts)}
    heads = {text: found[0] for text, found in pieces.items() if isinstance(found[0], str)}
    nodes = {head[:end] for head in heads.values() for end in range(1, len(head) + 1)}
    triggers = {text: head[: _safe(head, nodes)] for text, head in heads.items()}
    forced = {
        trigger
        for text, trigger in triggers.items()
        if len(pieces[text]) == 1 or trigger != heads[text]
    }
    # What of the triggers can stand in text. A trigger before a control token can, too.
    every = {trigger[:end] for trigger in triggers.values() for end in range(1, len(trigger) + 1)}
    parts = tuple(sorted(part for part in every if not part.startswith(tuple(forced))))
    return EndMarkers(
        {text: _spelled(lark, text, triggers.get(text, ""), forced) for text in pieces},
        any(triggers[text] != head for text, head in heads.items()),
        "".join(sorted({trigger[0] for trigger in triggers.values()})),
        parts,
        _unlike(parts, nodes),
    )


def _unlike(beginnings: Sequence[str], nodes: set[str]) -> tuple[str, ...]:
    """Regular expressions: a beginning, possibly nothing, and a character that is no more of it.

    The lexer reads bytes: of a character outside ASCII it has read the first when it sees that it
    is another than it should be, and can't go back to before it.
    """
    starts = {node for node in nodes if len(node) == 1}
    found = []
    for begun in ("", *beginnings):
        following = {node[-1] for node in nodes if node[:-1] == begun and len(node) > len(begun)}
        for character in sorted(each for each in following if not each.isascii()):
            known = "".join(map(pattern_of, sorted(following | starts)))
            found.append(f"{pattern_of(begun)}[{_alike(character)}--[{known}]]")
    return tuple(dict.fromkeys(found))


def _alike(character: str) -> str:
    """The inside of a character class: those whose UTF-8 begins with the same byte."""
    if character.isascii():
        return pattern_of(character)
    lead, size = character.encode()[0], len(character.encode())
    bits = 6 * (size - 1)
    low = max((lead & (0x7F >> size)) << bits, {2: 0x80, 3: 0x800, 4: 0x10000}[size])
    high = min((low | ((1 << bits) - 1)), 0xD7FF if lead == 0xED else 0x10FFFF)
    return rf"\x{{{low:x}}}-\x{{{high:x}}}"


def _safe(head: str, nodes: set[str]) -> int:
    """How much of a marker can be searched for: before any marker could begin inside it.

    `nodes`: the beginnings of all markers. A lexer that has read `head[:end]` and then a character
    that goes on with another marker, begun inside it, would have to backtrack; so it must not come
    there.
    """
    following: dict[str, set[str]] = {}
    for node in nodes:
        following.setdefault(node[:-1], set()).add(node[-1])
    for end in range(1, len(head)):
        own = following.get(head[:end], set())
        if len(set(head[:end])) == 1:
            continue  # more of one sign in a row than a marker begins with is text: `>>>>name`
        for begin in range(1, end):
            inner = head[begin:end]
            if inner in nodes and following.get(inner, set()) - own:
                return max(1, begin)
    return len(head)


def _spelled(lark: Lark, text: str, trigger: str, forced: Collection[str]) -> str:
    """The marker as an expression, cut where the lexer has to choose among markers."""
    ends = sorted({len(other) for other in forced if trigger.startswith(other)} | {len(trigger)})
    parts = [literal(text[at:end]) for at, end in pairwise((0, *ends)) if end > at]
    return " ".join((*parts, *([lark.text(text[len(trigger) :])] if trigger != text else [])))


def text(lark: Lark, found: EndMarkers, others: Collection[int] = ()) -> str:
    """An expression: text, possibly empty, without any of the markers.

    `others`: control tokens that are no marker and may stand in it.
    """
    return f"{_piece(lark, found, others)}*"


def first_text(
    lark: Lark,
    first: EndMarkers,
    found: EndMarkers,
    *,
    first_others: Collection[int] = (),
    others: Collection[int] = (),
    unlike: str = "",
) -> str:
    """An expression: text that begins an answer, not with white space or a marker of `first`.

    Further on it holds none of `found`. It may begin with the control tokens `first_others`, and
    hold `others`. `unlike`: a regular expression of what it can't begin with.
    """
    regex = rf"/[^{ASCII_SPACE}{first.avoided}{found.avoided}]{found.not_begun}*/"
    words = lark.terminal(rf"{regex} & ~/\s*({unlike})(?s:.*)/" if unlike else regex)
    tokens = [token_set(others)] if others else []
    piece = _piece(lark, found, others)
    # After words no more words: where they end because they can't go on, nothing may.
    after = [*_broken(lark, found), *tokens]
    goes_on = f"({one_of(after)} {piece}*)?" if after else ""
    first_tokens = [token_set(first_others)] if first_others else []
    begins = (f"{option} {piece}*" for option in (*_broken(lark, first), *first_tokens))
    return lark.rule(one_of((f"{words} {goes_on}", *begins)))


def _piece(lark: Lark, found: EndMarkers, others: Collection[int]) -> str:
    tokens = [token_set(others)] if others else []
    words = lark.regex(f"{found.not_begun}+")
    return lark.rule(one_of((words, *_broken(lark, found), *tokens)))


def _broken(lark: Lark, found: EndMarkers) -> list[str]:
    """What begins as a marker and is none."""
    parts = [*map(literal, found.beginnings), *(f"/{each}/" for each in found.unlike)]
    return [lark.terminal(" | ".join(parts))] if parts else []


def until(lark: Lark, closers: Sequence[str], followers: Sequence[str] = ()) -> str:
    """An expression: text, possibly empty, and the first of `closers` that comes, or with
    `followers` the first that one of them follows: others are text.

    Where a closer can begin inside its own beginning it is one lexeme, whose masks cost more, and
    always the first.
    """
    return lark.once(("until", *closers, *followers), lambda: _until(lark, closers, followers))


def _until(lark: Lark, closers: Sequence[str], followers: Sequence[str]) -> str:
    found = markers(lark, closers)
    close = found.of(closers)
    if found.cut and all(len(lark.pieces(closer)) == 1 for closer in closers):
        ends = "|".join(map(pattern_of, closers))
        return lark.terminal(f"/(?s:.*)({ends})/ & ~/(?s:.*)({ends})(?s:.+)/")
    if not followers:
        return f"{text(lark, found)} {close}"
    goes_on = first_text(lark, markers(lark, (*closers, *followers)), found)
    none = lark.rule(f"{close} {lark.regex(GAP)}*")
    return f"{text(lark, found)} {lark.rule(f'({none}+ {goes_on})*')} {none}* {close}"
