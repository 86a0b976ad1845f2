"""Where a text is cut before llama.cpp splits it into words.

For most byte-pair vocabularies llama.cpp does that with `std::regex`, which recurses for every
character that a pattern goes on to match (unicode.cpp, unicode_regex_split): with a thread's usual
stack, 24,000 to 100,000 letters without a break end the process, whatever they are. So a run of one
kind of characters is cut when it is longer than `LONGEST`. No other text is touched, and a cut
changes no token but those beside it. Knows characters, no vocabulary.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

# Characters; of 3, so that digits stay in the groups of three they are split into from the left. It
# leaves room for patterns that match two runs one after the other, and for stacks of 2 MB.
LONGEST = 3_072

# Kinds of characters, as bits. One match of the patterns goes on over characters of one kind.
# Combining marks go with letters in some vocabularies and with signs in others, and so does what
# this Python's Unicode doesn't know yet. In some, everything that isn't Latin goes together.
LETTER, NUMBER, SIGN, SPACE, FAR, SPACED, UNSEPARATED, INK = (1 << bit for bit in range(8))
USUAL = (LETTER, NUMBER, SIGN, SPACE, FAR)
# Vocabularies (`tokenizer.ggml.pre`) in which a match goes on over more: letters with spaces
# between them, all but spaces and some signs, all but spaces.
WIDER: Mapping[str, int] = {
    "exaone-moe": SPACED,
    "poro-chat": UNSEPARATED,
    "bloom": UNSEPARATED,
    "gpt3-finnish": UNSEPARATED,
    "viking": UNSEPARATED,
    "whitespace": INK,
}
# Those whose patterns llama.cpp has written out in C++ (unicode_regex_split_custom), or that match
# a few characters at a time.
UNLIMITED = frozenset(
    {
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        *("jina-v5-nano", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5", "kimi-k2", "laguna"),
        *("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "mellum"),
        *("a.x-4.0", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt"),
        *("olmo", "jais", "trillion", "granite-docling", "starcoder", "refact", "command-r"),
        *("smollm", "codeshell", "exaone", "minerva-7b", "mellum2", "qwen2", "deepseek-r1-qwen"),
        *("kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "qwen35", "grok-2"),
        *("gemma4", "granite-embed-multi-311m", "sarvam-moe"),
    }
)

# At every digit this one looks ahead to the last, so that a run costs its square.
COSTLY: Mapping[str, tuple[int, int]] = {"superbpe": (NUMBER, 96)}

_KINDS = {
    "L": LETTER | SPACED | UNSEPARATED | INK,
    "M": LETTER | SIGN | SPACED | UNSEPARATED | INK,
    "N": NUMBER | UNSEPARATED | INK,
    "P": SIGN | UNSEPARATED | INK,
    "S": SIGN | UNSEPARATED | INK,
    "Z": SPACE,
    "C": LETTER | SIGN | SPACED | UNSEPARATED | INK,
}
_SPACES = " \t\n\v\f\r"
_SEPARATORS = "(|.,!?…。，、।۔،)"
_ASSIGNED = 0x33480  # behind it there is nothing but unassigned and private characters
_FAR_FROM = 0x0800


def cuts(text: str, pre: str) -> list[int]:
    """Where to cut `text`, ascending, for a vocabulary with the pre-tokenizer `pre`. Linear."""
    kind, longest = COSTLY.get(pre, (0, LONGEST))
    if len(text) <= longest or pre in UNLIMITED:
        return []
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _table()[codes]
    wider = (WIDER[pre],) if pre in WIDER else ()
    places = {place for one in (*USUAL, *wider) for place in _cuts(kinds & np.uint8(one), LONGEST)}
    return sorted(places.union(_cuts(kinds & np.uint8(kind), longest)))


def _cuts(inside: npt.NDArray[np.uint8], longest: int) -> Iterator[int]:
    """Places in the runs of what isn't 0."""
    breaks = np.concatenate(([-1], np.flatnonzero(inside == 0), [len(inside)]))
    for index in np.flatnonzero(np.diff(breaks) > longest + 1):
        start, end = int(breaks[index]) + 1, int(breaks[index + 1])
        yield from range(start + longest, end, longest)


@cache
def _table() -> npt.NDArray[np.uint8]:
    """The kinds of every character, by its code."""
    table = np.full(0x110000, _KINDS["C"] | FAR, np.uint8)
    table[:_ASSIGNED] = [_kinds_of(chr(code)) for code in range(_ASSIGNED)]
    table[list(map(ord, _SEPARATORS))] &= ~np.uint8(UNSEPARATED)
    table[ord(" ")] |= SPACED
    return table


def _kinds_of(character: str) -> int:
    if character in _SPACES:
        return SPACE
    far = FAR if ord(character) >= _FAR_FROM else 0
    if character.isspace():  # for llama.cpp it may be a sign
        return SPACE | _KINDS["S"] | far
    return _KINDS[unicodedata.category(character)[0]] | far
