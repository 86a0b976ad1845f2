"""A rendered prompt as tokens, in which only the template's control tokens are ones.

Both tokenizers at hand (llama.cpp's and Hugging Face's) first cut a text at its control tokens and
then tokenize what is between, each stretch for itself. So a stretch in which a client spells a
control token can be tokenized by itself too, with control tokens switched off, and everything else
stays as it was. How such a stretch is tokenized behind a control token (SentencePiece puts a space
before the first word of some texts) is found by trying the tokenizer.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter

from backends.contract.protocol import SpecialTokens, Tokenizing
from gateway.prompt import Spans

_Stretch = tuple[int, int]  # start, end

# Put in front of a text to find how it is tokenized in the middle of another: a line end joins
# nothing in most vocabularies.
_LEADS = ("", "\n", "\x1f")
_PROBES = ("Hello a", "a", "<b> c", "1 2")


class Spellings:
    """Finds the spellings of control tokens in texts, the longest first. Made once per model: there
    may be thousands of them.
    """

    def __init__(self, special: SpecialTokens, markers: str = "") -> None:
        """`markers`: a text that holds the markers of the model's format, its template's source.
        They count as control tokens, though the vocabulary may call them ordinary (`<think>`).
        """
        self._markers = markers
        named = (special.bos, special.eos, special.pad, special.unk, "<unk>")
        self._known = frozenset(
            text for text in (*special.control, *named) if len(text) > 1 and not text.isspace()
        )
        self._lengths: dict[str, tuple[int, ...]] = {}
        for text in self._known:
            begun = self._lengths.get(text[:2], ())
            self._lengths[text[:2]] = tuple(sorted({*begun, len(text)}, reverse=True))
        beginnings = "|".join(map(re.escape, sorted(self._lengths)))
        self._begins = re.compile(beginnings) if beginnings else None

    def within(self, text: str, start: int = 0, end: int | None = None) -> Iterator[_Stretch]:
        """Where they stand in `text[start:end]`, none over another."""
        end = len(text) if end is None else end
        while self._begins and (found := self._begins.search(text, start, end)):
            at = found.start()
            lengths = self._lengths[found[0]]
            fits = (size for size in lengths if text[at : min(at + size, end)] in self._known)
            size = next((size for size in fits if at + size <= end), 0)
            if size:
                yield at, at + size
            start = at + (size or 1)

    def marks(self, spelling: str) -> bool:
        """Whether it is a marker of the format."""
        return not (spelling[0].isalnum() or spelling[-1].isalnum()) and spelling in self._markers


class PromptTokenizer:
    """For one container; `spellings` are those of its control tokens."""

    def __init__(self, container: Tokenizing, spellings: Spellings) -> None:
        self._container = container
        self._spellings = spellings
        # Caches of methods would hold this object, and the model's vocabulary outlive its unload.
        self._kind = cache(partial(_kind, container, spellings))
        self._lead = cache(partial(_lead, container))
        self._strips = cache(partial(_strips, container))

    def tokens(self, text: str, clients: Spans, check: Callable[[], None]) -> tuple[int, ...]:
        """The tokens of `text`, of which a client wrote what is in `clients`. `check` is called
        between the pieces.
        """
        found = self.spelled(text, clients)
        if not found:
            return self._container.tokenize(text, special=True)
        result: list[int] = []
        at = 0  # where the text begins that isn't tokenized yet
        for before, gap, behind in _gaps(self._real(text, clients), len(text)):
            if not _any_touches(found, gap):
                continue
            check()
            if at < gap[0]:
                result += self._container.tokenize(text[at : gap[0]], special=True)
            at = gap[1]
            result += self._plain(text[before : gap[0]], text[gap[0] : at], text[at:behind])
        if at < len(text):
            result += self._container.tokenize(text[at:], special=True)
        return tuple(result)

    def spelled(self, text: str, clients: Spans) -> Sequence[_Stretch]:
        """The control tokens that would come of the client's characters, in order."""
        if not clients:
            return ()
        return [
            (start, end)
            for start, end in _touching(self._spellings.within(text), clients)
            if self._kind(text[start:end]) != "ordinary"
        ]

    def _real(self, text: str, clients: Spans) -> Sequence[_Stretch]:
        """The control tokens that the template wrote, in order."""
        real: list[_Stretch] = []
        at = 0
        for start, end in (*clients, (len(text), len(text))):
            real += self._spellings.within(text, at, start)
            at = end
        return [(start, end) for start, end in real if self._kind(text[start:end]) != "ordinary"]

    def _plain(self, before: str, text: str, behind: str) -> list[int]:
        """The tokens of `text`, between two of the template's control tokens; "" at its ends."""
        if before and self._strips(before)[1]:
            text = text.lstrip()
        if behind and self._strips(behind)[0]:
            text = text.rstrip()
        tokens: list[int] = []
        lead = self._lead(before)
        for piece in self._broken(text):
            tokens += _tokenized(self._container, lead, piece)
            lead = self._lead(None)
        return tokens

    def _broken(self, text: str) -> Iterator[str]:
        """`text`, cut inside of what the tokenizer takes for one token even in plain text."""
        at = 0
        for start, end in self._spellings.within(text):
            if self._kind(text[start:end]) == "written":
                yield text[at : start + 1]
                at = start + 1
        yield text[at:]


def _tokenized(container: Tokenizing, lead: str, text: str) -> Sequence[int]:
    if not text:
        return ()
    tokens = container.tokenize(lead + text, special=False)
    return tokens[len(container.tokenize(lead, special=False)) :] if lead else tokens


def _kind(container: Tokenizing, spellings: Spellings, spelling: str) -> str:
    """control: a token only where control tokens are on. written: a token always, and the format
    has it. ordinary: any other.
    """
    marked = container.tokenize(spelling, special=True)
    if marked != container.tokenize(spelling, special=False):
        return "control"
    return "written" if spellings.marks(spelling) else "ordinary"


def _lead(container: Tokenizing, before: str | None) -> str:
    """What to put in front of a plain text so that it is tokenized as behind the control token
    `before`; "": as at a text's beginning; None: as inside of a text.
    """
    if before == "":
        return ""
    return next((lead for lead in _LEADS if _leads(container, lead, before)), "")


def _leads(container: Tokenizing, lead: str, before: str | None) -> bool:
    for probe in _PROBES:
        tokens = _tokenized(container, lead, probe)
        if before is None:
            if container.detokenize(tokens) != probe:
                return False
            continue
        marker = container.tokenize(before, special=True)
        if container.tokenize(before + probe, special=True) != (*marker, *tokens):
            return False
    return True


def _strips(container: Tokenizing, token: str) -> tuple[bool, bool]:
    """Whether the control token takes the white space before it, and behind it, along."""
    bare, left, right = (
        container.tokenize(text, special=True)
        for text in (f"a{token}a", f"a {token}a", f"a{token} a")
    )
    spaced = container.tokenize("a a", special=False) != container.tokenize("aa", special=False)
    return spaced and left == bare, spaced and right == bare


def _gaps(real: Sequence[_Stretch], length: int) -> Iterator[tuple[int, _Stretch, int]]:
    """What lies between the control tokens `real` of a text: where the one before begins, the
    stretch, where the one behind ends.
    """
    before = at = 0
    for start, end in real:
        yield before, (at, start), end
        before, at = start, end
    yield before, (at, length), length


def _any_touches(found: Sequence[_Stretch], gap: _Stretch) -> bool:
    """Whether one of `found` (in order) shares a character with `gap`."""
    first = bisect_right(found, gap[0], key=itemgetter(1))  # the first that ends behind its start
    return first < len(found) and found[first][0] < gap[1]


def _touching(places: Iterator[_Stretch], spans: Spans) -> Iterator[_Stretch]:
    """Those of `places` that share a character with `spans`; both in order."""
    index = 0
    for start, end in places:
        while index < len(spans) and spans[index][1] <= start:
            index += 1
        if index < len(spans) and spans[index][0] < end:
            yield start, end
