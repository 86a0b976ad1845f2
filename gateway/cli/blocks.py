"""An answer in a terminal, as it is written: Markdown, folded between words."""

from markdown_it import MarkdownIt
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.text import Text

LONG = 4_000  # characters that are shown again and again as Markdown, before they are whole
LONGEST = 20 * LONG  # of a block whose end is looked for
# Without HTML and references, of which a terminal would show nothing.
PARSER = MarkdownIt("commonmark", {"html": False}).disable("reference")
PARSER.enable(["strikethrough", "table"])


class Blocks:
    """Prints each block once it is whole; what has come of the next one stands below until then."""

    def __init__(self, console: Console) -> None:
        self._console, self._text, self._style = console, "", ""
        self._live = Live(
            console=console, get_renderable=self._below, transient=True, refresh_per_second=8
        )

    def add(self, text: str, style: str = "") -> None:
        """More of the answer; with a style, it is no Markdown."""
        self._live.start()
        if style != self._style:
            self._print()
            self._style = style
        may_begin = "\n\n" in self._text[-2:] + text and not style
        self._text += text
        if may_begin and len(self._text) < LONGEST:
            tops = [one.map[0] for one in PARSER.parse(self._text) if one.map and not one.level]
            if len(tops) > 1:
                self._print(tops[-1])

    def end(self) -> None:
        """No more comes."""
        self._print()
        self._live.stop()

    def _print(self, count: int | None = None) -> None:
        """So many lines, or all."""
        lines = self._text.splitlines(keepends=True)
        whole = "".join(lines[:count])
        self._text = self._text[len(whole) :]
        if whole.strip():
            self._console.print(self._shown(whole), "", sep="\n")

    def _shown(self, text: str) -> RenderableType:
        """Lines end where `text` ends them."""
        if self._style:
            return Text(text.strip("\n"), self._style)
        shown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
        shown.parsed = PARSER.parse(text)
        for token in shown.parsed:
            for child in token.children or ():
                child.type = "hardbreak" if child.type == "softbreak" else child.type
        return shown

    def _below(self) -> RenderableType:
        """As much of it as the terminal has room for."""
        width, height = self._console.size
        end = Text(self._text[-width * height :], self._style)
        shown = end if len(self._text) > LONG else self._shown(self._text)
        lines = self._console.render_lines(shown, pad=False)[2 - height :]
        return Segments(part for line in lines for part in (*line, Segment.line()))
