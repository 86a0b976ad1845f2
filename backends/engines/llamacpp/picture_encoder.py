"""The image encoder beside the engine. On a CPU a picture takes seconds, in which other jobs need
their tokens.

What the engine's thread calls of mtmd meanwhile, to cut up the next picture, only reads the
encoder's settings.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import msgspec

from backends.engines.llamacpp.batch import ImageCells, LlamaJob

if TYPE_CHECKING:  # not every build has mtmd
    from backends.engines.llamacpp.pictures import MtmdEncoder


class EncoderTask(msgspec.Struct, frozen=True, eq=False):
    """Encodes the picture that `running` has come to: `work` is over when that is."""

    running: LlamaJob
    picture: ImageCells
    work: Future[None]

    @property
    def is_wanted(self) -> bool:
        """Whether its job still waits for it: its cells may have been taken away meanwhile."""
        running = self.running
        there = running.slot is not None and running.restoring is None
        return there and running.fed == self.picture.start


class EncoderThread:
    """One picture at a time: the encoder keeps its embeddings only until the next. Only the
    engine's thread calls it.

    `pictures`: None: the model reads text. `beside`: the engine goes on meanwhile. On a card it
    doesn't: two of llama.cpp's contexts at work there are untested, and a picture takes
    milliseconds.
    """

    def __init__(self, pictures: "MtmdEncoder | None", *, beside: bool) -> None:
        self.pictures = pictures
        self._beside = beside
        self._tower = ThreadPoolExecutor(1, "vision tower")
        self._task: EncoderTask | None = None

    def begin(self, jobs: Iterable[LlamaJob]) -> None:
        """Encode for the first of `jobs` that has come to a picture, if no task runs."""
        if self._task is not None:
            return
        for running in jobs:
            picture = running.picture()
            ready = running.slot is not None and running.restoring is None
            if ready and picture is not None and picture.start == running.fed:
                assert self.pictures is not None  # else the driver refuses pictures
                work = self._tower.submit(self.pictures.encode, picture)
                self._task = EncoderTask(running, picture, work)
                self.wait(0 if self._beside else None)
                return

    def wait(self, seconds: float | None) -> None:
        """Until the task is over, or time is up."""
        if self._task is not None:
            wait([self._task.work], seconds)

    def take(self) -> EncoderTask | None:
        """The task, once it is over."""
        if self._task is None or not self._task.work.done():
            return None
        task, self._task = self._task, None
        return task

    def drop(self, running: LlamaJob | None = None) -> None:
        """Drop the task, or only one of `running`. It can't be cut short, so it is waited for."""
        if self._task is not None and running in (None, self._task.running):
            self.wait(None)
            self._task = None

    def close(self) -> None:
        self.drop()
        self._tower.shutdown()
