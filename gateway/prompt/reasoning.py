"""How reasoning is opened and closed in text, whichever model wrote it.

Only the shapes of the markers are known here, enough to close what a prompt opened and to unwrap
what a client sends back. Which markers a model writes in its answers is the splitter's business.
"""

import re

from gateway.prompt.traced import framed, joined, partition, plain, stripped

# opener -> closer, with the opener's variable part carried over
_MARKERS = (
    (r"<((?:\w+:)?think(?:ing)?(?::\w+)?)>", r"</\1>"),
    (r"<(\w+_think)>", r"</\1>"),
    (r"\[THINK\]", "[/THINK]"),
    (r"<\|START_THINKING\|>", "<|END_THINKING|>"),
    (r"◁think▷", "◁/think▷"),
)
_AT_START = tuple((re.compile(rf"\s*{opener}"), closer) for opener, closer in _MARKERS)
_AT_END = tuple((re.compile(rf"{opener}\s*\Z"), closer) for opener, closer in _MARKERS)
_LONGEST_OPENER = 80  # characters that the longest opener and the white space behind it fit in


def ends_open(text: str) -> bool:
    """Whether `text` ends with an opening marker, white space after it aside; not a client's."""
    tail = framed(text[-_LONGEST_OPENER:])
    return any(pattern.search(tail) for pattern, _ in _AT_END)


def closed(text: str) -> str:
    """`text` with the reasoning that it opens at its end closed again, empty; else unchanged."""
    for pattern, closer in _AT_END:
        if match := pattern.search(framed(text[-_LONGEST_OPENER:])):
            head = stripped(text, left=False, right=True)
            return joined((head, f"\n\n{match.expand(closer).rstrip()}\n\n"))
    return text


def unwrapped(text: str) -> tuple[str, str]:
    """Reasoning and answer of a `text` that begins with an opening marker; ("", text) of others.

    Reasoning that isn't closed is all of it. Line ends around the markers belong to neither.
    """
    for pattern, closer in _AT_START:
        if match := pattern.match(text):
            reasoning, marker, answer = partition(text[match.end() :], match.expand(closer))
            reasoning = _without_line_ends(reasoning)
            if marker:
                reasoning = stripped(reasoning, left=False, right=True)
            return reasoning, _without_line_ends(answer)
    return "", text


def without_opener(text: str) -> str:
    """`text` without the opening marker that it begins with."""
    for pattern, _ in _AT_START:
        if match := pattern.match(text):
            return _without_line_ends(text[match.end() :])
    return text


def marked(text: str) -> str:
    """A client's `text` that begins with an opening marker: the markers around the reasoning are
    taken as such, and what is between and behind them stays the client's.
    """
    for pattern, closer in _AT_START:
        if match := pattern.match(text):
            reasoning, marker, answer = partition(text[match.end() :], match.expand(closer))
            return joined((plain(match[0]), reasoning, plain(marker), answer))
    return text


def _without_line_ends(text: str) -> str:
    return stripped(text, "\r\n", left=True, right=False)
