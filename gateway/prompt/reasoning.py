"""How reasoning is opened and closed in text, whichever model wrote it.

Only the shapes of the markers are known here, enough to close what a prompt opened and to unwrap
what a client sends back. Which markers a model writes in its answers is the splitter's business.
"""

import re

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
_TAIL = 80  # characters that the longest opener and the white space behind it fit in


def ends_open(text: str) -> bool:
    """Whether `text` ends with an opening marker, white space after it aside."""
    return any(pattern.search(text[-_TAIL:]) for pattern, _ in _AT_END)


def closed(text: str) -> str:
    """`text` with the reasoning that it opens at its end closed again, empty; else unchanged."""
    for pattern, closer in _AT_END:
        if match := pattern.search(text[-_TAIL:]):
            return f"{text.rstrip()}\n\n{match.expand(closer).rstrip()}\n\n"
    return text


def unwrapped(text: str) -> tuple[str, str]:
    """Reasoning and answer of a `text` that begins with an opening marker; ("", text) of others.

    Reasoning that isn't closed is all of it. Line ends around the markers belong to neither.
    """
    for pattern, closer in _AT_START:
        if match := pattern.match(text):
            reasoning, marker, answer = text[match.end() :].partition(match.expand(closer))
            reasoning = reasoning.lstrip("\r\n")
            return (reasoning.rstrip() if marker else reasoning), answer.lstrip("\r\n")
    return "", text


def without_opener(text: str) -> str:
    """`text` without the opening marker that it begins with."""
    for pattern, _ in _AT_START:
        if match := pattern.match(text):
            return text[match.end() :].lstrip("\r\n")
    return text
