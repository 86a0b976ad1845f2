"""One picture on its way through the vision tower, beside the engine: on a CPU that takes seconds,
in which others want their tokens. What the engine's thread asks mtmd meanwhile, to cut up the next
picture, only reads the tower's settings.
"""

from concurrent.futures import Executor, wait
from typing import TYPE_CHECKING

from backends.llamacpp.running import Running

if TYPE_CHECKING:
    from backends.llamacpp.pictures import Picture, Pictures


class Look:
    """At the picture that `running` has come to. The tower keeps what it found until the next."""

    def __init__(
        self, running: Running, picture: "Picture", pictures: "Pictures", tower: Executor
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
