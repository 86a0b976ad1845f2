"""How reasoning is opened and closed in a rendered prompt, whichever model wrote the template.

Only the shapes of the markers are known here, enough to close what a prompt opened. Which markers
a model writes in its answers is the splitter's business.
"""

import re

# opener -> closer, with the opener's variable part carried over
_MARKERS = (
    (r"<((?:\w+:)?think(?:ing)?(?::\w+)?)>", r"</\1>"),
    (r"<((?:\w+_)think)>", r"</\1>"),
    (r"\[THINK\]", "[/THINK]"),
    (r"<\|START_THINKING\|>", "<|END_THINKING|>"),
    (r"◁think▷", "◁/think▷"),
)
_OPENERS = tuple((re.compile(opener), closer) for opener, closer in _MARKERS)
_AT_END = tuple((re.compile(rf"{opener}\s*\Z"), closer) for opener, closer in _MARKERS)


def opener_at_end(text: str) -> str:
    """The opening marker that `text` ends with, white space after it aside; "" if there is none."""
    tail = text[-80:]
    for pattern, _ in _AT_END:
        if match := pattern.search(tail):
            return match.group().rstrip()
    return ""


def opener_at_start(text: str) -> str:
    """The opening marker that `text` begins with, white space before it aside; "" if none."""
    begin = text.lstrip()
    for pattern, _ in _OPENERS:
        if match := pattern.match(begin):
            return match.group()
    return ""


def closed(text: str) -> str:
    """`text` with the reasoning that it opens at its end closed again, empty; else unchanged."""
    for pattern, closer in _AT_END:
        if match := pattern.search(text[-80:]):
            return f"{text.rstrip()}\n\n{match.expand(closer).rstrip()}\n\n"
    return text


def joined(prompt: str, written: str) -> str:
    """`prompt` continued with what the model wrote, an opening marker that both carry kept once."""
    opener = opener_at_end(prompt)
    if opener and opener_at_start(written) == opener:
        return prompt.rstrip()[: -len(opener)] + written.lstrip()
    return prompt + written
