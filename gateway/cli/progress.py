"""Progress bars of loads and downloads, below the log of a server in a terminal. Elsewhere the log
has lines of them.
"""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gateway.hub import DownloadProgress
from gateway.registry import ModelEvent, ModelProgressed

COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    TextColumn("{task.percentage:.0f} %"),
    TimeRemainingColumn(),
)


class Bars:
    """A bar for each model that is on its way; nothing is drawn while there is none. What is
    written to stderr meanwhile stands above them.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None

    @property
    def shown(self) -> bool:
        """Whether there is a terminal to draw in."""
        return self._console.is_terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for title in list(self._tasks):
            self._drop(title)

    def download(self, model: str) -> Callable[[DownloadProgress], None]:
        """Shows one model's download."""
        return lambda step: self._show(f"downloading {model}", step.done, step.total)

    def on_model_event(self, event: ModelEvent) -> None:
        """A load goes on, or is over."""
        title = f"loading {event.model}"
        if isinstance(event, ModelProgressed):
            step = event.progress
            self._show(title, step.done, step.total)
        elif title in self._tasks:
            self._drop(title)

    def _show(self, title: str, done: int, total: int) -> None:
        if not self.shown:
            return
        if self._progress is None:
            self._progress = Progress(*COLUMNS, console=self._console, transient=True)
            self._progress.start()
        if title not in self._tasks:
            self._tasks[title] = self._progress.add_task(title)
        self._progress.update(self._tasks[title], completed=done, total=total)

    def _drop(self, title: str) -> None:
        """The last one takes the whole display away, and its thread."""
        assert self._progress is not None
        self._progress.remove_task(self._tasks.pop(title))
        if not self._tasks:
            self._progress.stop()
            self._progress = None
