"""A model's sight: the vision tower at work beside the engine. On a CPU a look takes seconds, in
which others want their tokens.

What the engine's thread asks mtmd meanwhile, to cut up the next picture, only reads the tower's
settings.
"""

from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from backends.llamacpp.running import LlamaJob

if TYPE_CHECKING:
    from backends.llamacpp.pictures import ImageCells, MtmdEncoder


class EncoderTask:
    """At the picture that `running` has come to."""

    def __init__(
        self, running: LlamaJob, picture: "ImageCells", pictures: "MtmdEncoder", tower: Executor
    ) -> None:
        self.running = running
        self.picture = picture
        self._work = tower.submit(pictures.encode, picture)

    def wait(self, seconds: float | None = None) -> None:
        """Until it is over, or time is up."""
        wait([self._work], seconds)

    @property
    def is_over(self) -> bool:
        return self._work.done()

    @property
    def is_wanted(self) -> bool:
        """Whether its job still waits for it: its cells may have been taken away meanwhile."""
        return self.running.slot is not None and self.running.fed == self.picture.start

    def check(self) -> None:
        """Raises GenerationFailed if the tower failed."""
        self._work.result()


class EncoderThread:
    """One look at a time: the tower keeps what it found only until the next. Only the engine's
    thread calls it.

    `beside`: the engine goes on meanwhile. On a card it doesn't: nobody has seen one bear two of
    llama.cpp's contexts at work, and there a look takes milliseconds.
    """

    def __init__(self, pictures: "MtmdEncoder", *, beside: bool) -> None:
        self.pictures = pictures
        self._beside = beside
        self._tower = ThreadPoolExecutor(1, "vision tower")
        self._look: EncoderTask | None = None

    def begin(self, jobs: Iterable[LlamaJob]) -> None:
        """Look for the first of `jobs` that has come to a picture, if nothing is looked at."""
        if self._look is not None:
            return
        for running in jobs:
            picture = running.picture()
            if running.slot is not None and picture is not None and picture.start == running.fed:
                self._look = EncoderTask(running, picture, self.pictures, self._tower)
                self.wait(0 if self._beside else None)
                return

    def wait(self, seconds: float | None) -> None:
        """Until the look is over, or time is up."""
        if self._look is not None:
            self._look.wait(seconds)

    def take(self) -> EncoderTask | None:
        """The look, once it is over."""
        if self._look is None or not self._look.is_over:
            return None
        look, self._look = self._look, None
        return look

    def away(self, running: LlamaJob | None = None) -> None:
        """Look no more, or no more for `running`. A look can't be cut short, and must be over
        before its picture is freed.
        """
        if self._look is not None and running in (None, self._look.running):
            self._look.wait()
            self._look = None

    def close(self) -> None:
        self.away()
        self._tower.shutdown()
