"""A set of marker texts: where the next one is, and which tail of a text may still become one.

Knows nothing of what a marker means.
"""

import re
from functools import lru_cache


class Markers:
    """Finds the first of several texts; of those that start at the same place, the longest.

    `first` finds a character that begins one of them: text without any needs no closer look.
    """

    __slots__ = ("_longest", "_pattern", "_prefixes", "first", "texts")

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = tuple(sorted(set(texts), key=len, reverse=True))
        self._longest = len(self.texts[0]) if self.texts else 0
        self._prefixes = frozenset(text[:end] for text in self.texts for end in range(1, len(text)))
        nothing = r"(?!)"
        self._pattern = re.compile("|".join(map(re.escape, self.texts)) or nothing)
        first = "".join(sorted({text[0] for text in self.texts}))
        self.first = re.compile(f"[{re.escape(first)}]" if first else nothing)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        """The first marker at or after `start`."""
        return self._pattern.search(text, start)

    def held_from(self, text: str, start: int) -> int:
        """Where the longest tail begins that is a proper prefix of a marker; the end if none is."""
        begin = max(start, len(text) - self._longest + 1)
        for found in self.first.finditer(text, begin):
            if text[found.start() :] in self._prefixes:
                return found.start()
        return len(text)


@lru_cache(maxsize=512)
def markers_of(*texts: str) -> Markers:
    """The set of these texts; made once, because making it is slower than using it.

    The texts are those of the format table, never the model's: what it writes would stay here.
    """
    return Markers(texts)
