"""Recorded bytes of streamed answers to figures. Pure: knows no sockets and no clock.

It reads by pattern and not by parsing, so that it takes what any server sends: OpenAI-style SSE
with any spacing of the JSON and any chunking. All times are seconds of one clock, the recording
process' `time.perf_counter`.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

# A field with text in it. Quotes inside of JSON strings are escaped, so text can't look like this.
WITH_TEXT = re.compile(rb'"(?:content|reasoning_content|text)": ?"(?!")')
TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
REACHED_LIMIT = re.compile(rb'"finish_reason": ?"length"')
DONE = b"data: [DONE]"
STATUS_OK = b" 200 "


class Arrival(NamedTuple):
    """What one read of the socket gave, and when."""

    at: float
    data: bytes


class Answer(msgspec.Struct, frozen=True):
    """One request: when it was sent, and all that came for it, head included."""

    sent: float
    arrivals: Sequence[Arrival]


class Reading(msgspec.Struct, frozen=True):
    """What an answer says. `texts`: when each frame with text arrived."""

    sent: float
    accepted: bool  # status 200
    ended: bool  # `[DONE]` came
    tokens: int
    texts: tuple[float, ...]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Times are seconds; a percentile of nothing is None."""

    tokens_per_second: float
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    gap_p50: float | None = None
    gap_p99: float | None = None
    answers: int = 0  # begun in the window
    completed: int = 0  # all that came whole, whenever they began
    errors: int = 0  # refused
    cut_off: int = 0  # accepted, and ended before the tokens that were asked for
    driver_load: float = (
        0.0  # CPU seconds per second of the driver itself: near 1.0 it is the bottleneck
    )


def read(answer: Answer, asked: int) -> Reading:
    """Frames are sought in the joined bytes, so that one torn over two reads counts once.

    The tokens are those of the server's usage. Some servers send none in a stream: there an answer
    that ended for its length has the `asked` tokens, and any other a token per frame.
    """
    data = b"".join(arrival.data for arrival in answer.arrivals)
    ends = list(accumulate(len(arrival.data) for arrival in answer.arrivals))
    found = [bisect_left(ends, match.end()) for match in WITH_TEXT.finditer(data)]
    usage = TOKENS.findall(data)
    counted = asked if REACHED_LIMIT.search(data) else len(found)
    return Reading(
        sent=answer.sent,
        accepted=STATUS_OK in data.split(b"\r\n", 1)[0],
        ended=DONE in data,
        tokens=int(usage[-1]) if usage else counted,
        texts=tuple(answer.arrivals[index].at for index in found),
    )


def figures(answers: Sequence[Answer], start: float, end: float, asked: int) -> Figures:
    """What happened from `start` to `end`, all streams running; `asked`: tokens wanted per answer.

    Waits are those of answers sent in the window. Gaps lie between arrivals: frames that came
    together count as one, so sending several tokens at once makes gaps longer and not shorter.
    """
    readings = [read(answer, asked) for answer in answers]
    begun = [reading for reading in readings if start <= reading.sent < end]
    waits = [reading.texts[0] - reading.sent for reading in begun if reading.texts]
    gaps = [gap for reading in readings for gap in _gaps(reading, start, end)]
    tokens = sum(_tokens_between(reading, start, end) for reading in readings)
    return Figures(
        tokens_per_second=tokens / (end - start),
        ttft_p50=percentile(waits, 50),
        ttft_p99=percentile(waits, 99),
        gap_p50=percentile(gaps, 50),
        gap_p99=percentile(gaps, 99),
        answers=len(begun),
        completed=sum(reading.ended and reading.tokens >= asked for reading in readings),
        errors=sum(not reading.accepted for reading in begun),
        cut_off=sum(_cut_off(reading, asked) for reading in begun),
    )


def whole_answers(answers: Sequence[Answer], start: float, end: float) -> tuple[float, float]:
    """The window, moved to where one stream's answers begin and end: from the first that was sent
    in it until the last that was sent in it has come. Else the speed of a slow model depends on how
    many prompts happen to be computed in the window. As it is where no answer was sent in it.
    """
    begun = [answer for answer in answers if start <= answer.sent < end and answer.arrivals]
    if not begun:
        return start, end
    return begun[0].sent, math.nextafter(begun[-1].arrivals[-1].at, math.inf)  # it is in the window


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest rank: the smallest value that `percent` of all values don't exceed."""
    if not values:
        return None
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(int(rank), 1) - 1]


def _tokens_between(reading: Reading, start: float, end: float) -> float:
    """A frame may hold several tokens, so an answer's tokens are spread evenly over its frames."""
    if not reading.texts:
        return 0.0
    inside = sum(start <= at < end for at in reading.texts)
    return reading.tokens * inside / len(reading.texts)


def _gaps(reading: Reading, start: float, end: float) -> list[float]:
    moments = sorted(set(reading.texts))
    return [
        later - earlier for earlier, later in pairwise(moments) if start <= earlier and later < end
    ]


def _cut_off(reading: Reading, asked: int) -> bool:
    return reading.accepted and not (reading.ended and reading.tokens >= asked)
