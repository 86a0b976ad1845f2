"""Finds tool calls in the content of a server that has no parser for its model. Sans-IO.

Which family wrote a call is told by its beginning, since no template is known here. What begins
like none stays content, as it is.
"""

import re
from collections.abc import Sequence

import msgspec

from gateway.splitter.formats import FORMATS
from gateway.splitter.payloads.reading import Markers
from gateway.splitter.splitter import Splitter
from gateway.terms.events import Content, Event, Finished, ToolOpened
from gateway.terms.request import Tool

LONGEST = 200  # characters of a beginning

# By format, the beginning of its calls; the first that fits counts.
BEGINNINGS = {
    "hermes_json": r"<tool_call>\s*(?:```(?:json)?\s*)?[\[{]",
    "qwen3_coder_xml": r"<tool_call>\s*<function=",
    "glm45": r"<tool_call>\s*[\w.-]+\s*<(?:arg_key>|/tool_call>)",
    "mistral_v3": r"\[TOOL_CALLS\]\s*\[\s*\{",
    "mistral_v11": r"\[TOOL_CALLS\]\s*[\w.-]+\s*(?:\[ARGS\]|\[CALL_ID\]|\{)",
    "kimi_k2": r"<\|tool_calls_section_begin\|>",
    "deepseek_v3": r"<｜tool▁calls▁begin｜>\s*<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "deepseek_v31": r"<｜tool▁calls▁begin｜>\s*<｜tool▁call▁begin｜>[\w.-]+<｜tool▁sep｜>",
    "minimax_m2": r"<minimax:tool_call>",
    "seed_oss_xml": r"<seed:tool_call>",
    "lfm2_pythonic": r"<\|tool_call_start\|>",
    "nemotron_v2": r"<TOOLCALL>\s*\[",
}
_RULES = tuple((name, re.compile(pattern)) for name, pattern in BEGINNINGS.items())
OPENERS = tuple(dict.fromkeys(FORMATS[name].syntaxes[0].openers[0] for name in BEGINNINGS))
_OPENER = Markers(OPENERS)
_MAY_BEGIN = re.compile(r"[<\[]|\s\Z")


class UnparsedCalls(msgspec.Struct, eq=False):
    """One answer's. `tools`: those that may be called; without any, nothing is looked for."""

    _tools: Sequence[Tool]
    _splitter: Splitter | None = None
    _held: str = ""  # what may become a call's beginning, and white space before it
    called: bool = False  # there was a call

    def feed(self, text: str) -> list[Event]:
        """The events of some more content."""
        if self._splitter is not None:
            return self._noted(self._splitter.feed(text))
        if not self._tools or (not self._held and _MAY_BEGIN.search(text) is None):
            return [Content(text)] if text else []
        return self._searched(self._held + text)

    def finish(self) -> list[Event]:
        """What is left when the answer is over, or its server parses calls after all."""
        held, self._held = self._held, ""
        if self._splitter is None:
            return [Content(held)] if held else []
        return [one for one in self._splitter.finish("stop") if not isinstance(one, Finished)]

    def _searched(self, text: str) -> list[Event]:
        start = 0
        while (found := _OPENER.search(text, start)) is not None:
            begin = found.start()
            name = next((name for name, rule in _RULES if rule.match(text, begin)), None)
            if name is not None:
                return self._begun(name, text, begin)
            if len(text) - begin < LONGEST:
                return self._passed(text, begin)
            start = found.end()
        return self._passed(text, _OPENER.held_from(text, start))

    def _passed(self, text: str, end: int) -> list[Event]:
        """Up to `end`, but for the white space before it; the rest is held."""
        free = text[:end].rstrip()
        self._held = text[len(free) :]
        return [Content(free)] if free else []

    def _begun(self, name: str, text: str, start: int) -> list[Event]:
        self._splitter = Splitter(FORMATS[name], in_reasoning=False, tools=self._tools)
        free, self._held = text[:start].rstrip(), ""
        before: list[Event] = [Content(free)] if free else []
        return before + self._noted(self._splitter.feed(text[start:]))

    def _noted(self, events: list[Event]) -> list[Event]:
        self.called = self.called or any(isinstance(one, ToolOpened) for one in events)
        return events
