"""Text on its way out as reasoning or content events, without the white space that adjoins markers.

White space at the edge of a stretch of text waits: a marker that follows takes it along, more text
brings it out. Two stretches of the same kind with markers between them are parted by one newline.
"""

from gateway.events import Content, Event, Reasoning


class Stretch:
    """The stretch of text being written, and what was written of either kind before."""

    __slots__ = ("_events", "_fresh", "_margin", "_shell", "_written", "begun", "kind")

    def __init__(self, events: list[Event], kind: type[Reasoning | Content]) -> None:
        self._events = events
        self._margin: list[str] = []
        self._fresh = False  # a marker was the last that came
        self._shell = False  # the margin holds a closing shell
        self._written: set[type[Reasoning | Content]] = set()
        self.kind = kind
        self.begun = False

    @property
    def clear(self) -> bool:
        """Text has begun and nothing waits: what comes next can go out as it is."""
        return self.begun and not self._margin

    def has_written(self, kind: type[Reasoning | Content]) -> bool:
        """Text of this kind was delivered."""
        return kind in self._written

    def write(self, text: str) -> None:
        """Delivers text, except white space at its end and after a marker."""
        if self._fresh:
            text = text.lstrip()
            if not text:
                return
            self._begin()
        body = text.rstrip()
        if body:
            self._events.append(self.kind("".join((*self._margin, body))))
            self._written.add(self.kind)
            self._margin.clear()
            self._shell = False
            self.begun = True
        if len(body) < len(text):
            self._margin.append(text[len(body) :])

    def _begin(self) -> None:
        """The first text after a marker."""
        self._fresh = False
        if self.kind in self._written:
            self._margin.append("\n")

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
