"""Parses server-sent events from bytes. Pure."""

from backends.places.upstream.faults import too_large

MARKED = b"\xef\xbb\xbfdata:"  # a byte order mark may stand at the beginning of a stream


class ErrorData(bytes):
    """The data of an event that is named "error"."""

    __slots__ = ()


class EventReader:
    """Server-sent events from bytes, in pieces of any size: the data of each, within limits. Linear
    in what it is fed.

    As https://html.spec.whatwg.org/multipage/server-sent-events.html has it, but for a lone
    carriage return, which no server of models ends a line with. Ids, comments and names but "error"
    are passed over.
    """

    def __init__(self, *, max_line: int, max_total: int) -> None:
        """`max_line`: bytes of one line, `max_total`: of the whole stream."""
        self._max_line = max_line
        self._left = max_total  # bytes that may still come
        self._max_total = max_total
        self._rest: list[bytes] = []  # of a line whose end has not come
        self._held = 0
        self._data: list[bytes] = []  # of an event whose end has not come
        self._is_error = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` ends. Raises Unhealthy past a limit."""
        self._left -= len(data)
        if self._left < 0:
            raise too_large(f"a stream of more than {self._max_total} bytes")
        *lines, rest = data.split(b"\n")
        if lines and self._rest:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest.clear()
            self._held = 0
        if rest:
            self._rest.append(rest)
            self._held += len(rest)
        if max(self._held, *map(len, lines), 0) > self._max_line:
            raise too_large(f"a line of more than {self._max_line} bytes")
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[bytes]:
        found = []
        for line in lines:
            if line in (b"", b"\r"):
                if self._data:
                    data = b"\n".join(self._data)
                    found.append(ErrorData(data) if self._is_error else data)
                    self._data.clear()
                self._is_error = False
            elif line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif line.startswith(MARKED):
                self._data.append(line[len(MARKED) :].strip())
            elif line.startswith(b"event:"):
                self._is_error = line[6:].strip() == b"error"
        return found

    def rest(self) -> list[bytes]:
        """The event that the end of the stream cut off from its empty line, if it is whole."""
        return self.feed(b"\n\n")
