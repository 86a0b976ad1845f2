"""An answer as it comes: reasoning dimmed in a terminal, calls as lines of JSON."""

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from gateway.cli.remote import Remote

CHAT = "/v1/chat/completions"


class Display:
    """Shows one answer. `content`: what was said so far, without its reasoning."""

    def __init__(self) -> None:
        self.content = ""
        self._console = Console(highlight=False)
        self._began = self._thinks = False

    def show(self, server: Remote, body: dict[str, Any]) -> None:
        """To its end; Ctrl-C leaves what has come in `content`. Raises CommandFailed."""
        try:
            for choice in self._choices(server, body):
                self._began = True
                self._take(choice["delta"])
                self._note(choice)
        finally:
            if self._began:
                self._console.print()

    def _choices(self, server: Remote, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A spinner turns until the first: a model may be loaded before it."""
        chunks = server.events(CHAT, {**body, "stream": True})
        with Console(stderr=True).status("…"):
            first = next(chunks, None)
        if first is not None:
            yield from first["choices"]
        for chunk in chunks:
            yield from chunk["choices"]

    def _take(self, delta: dict[str, Any]) -> None:
        # In a pipe or a file reasoning can't be distinguished from the answer, so it is left out
        # there.
        if (reasoning := delta.get("reasoning_content")) and self._console.is_terminal:
            self._console.print(inert(reasoning), style="dim", end="", markup=False, soft_wrap=True)
            self._thinks = True
        if text := delta.get("content"):
            self._print("\n\n" * self._thinks + text)
            self.content, self._thinks = self.content + text, False
        for call in delta.get("tool_calls") or ():
            function = call.get("function", {})
            name = f"\n[{function['name']}] " if "name" in function else ""
            self._print(name + function.get("arguments", ""))

    def _print(self, text: str) -> None:
        self._console.print(inert(text), end="", markup=False, soft_wrap=True)

    def _note(self, choice: dict[str, Any]) -> None:
        """What is wrong with a finished answer, where it isn't taken for a part of it."""
        if choice.get("finish_reason") == "length":
            print("\n(cut at the limit of tokens)", file=sys.stderr)
        if fault := choice.get("schema_fault"):
            print(f"\n(it misses its schema: {fault})", file=sys.stderr)


def inert(text: str) -> str:
    """`text` without control characters, so that a model can't move a terminal's cursor or set its
    title.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
