"""One job's sequence: its tokens, its pictures, and how far it has been computed."""

from typing import TYPE_CHECKING

from backends.cells import Slot
from backends.llamacpp.sampling import Chain
from backends.protocol import Generation

if TYPE_CHECKING:
    from backends.llamacpp.pictures import ImageCells


class LlamaJob:
    """`tokens` holds one number for each cell of the KV cache: a token, or, below 0, a part of a
    picture. `fed` of them are in the cache.
    """

    def __init__(
        self,
        key: int,
        job: Generation,
        chain: Chain,
        tokens: list[int],
        pictures: "tuple[ImageCells, ...]" = (),
    ) -> None:
        self.key = key
        self.job = job
        self.chain = chain
        self.tokens = tokens
        self.pictures = pictures
        self.prompt_tokens = len(tokens)
        self.fed = 0
        self.lag = 0  # positions that pictures among the fed cells saved, see `ImageCells`
        self.cached = 0
        # Tokens of the prompt whose log probabilities are told, or not wanted.
        self.scored = self.prompt_tokens if job.prompt_logprobs is None else 0
        self.slot: Slot | None = None  # None: not started, or its cells were taken away

    @property
    def left(self) -> int:
        return len(self.tokens) - self.fed

    @property
    def scoring(self) -> bool:
        return self.scored < self.prompt_tokens

    @property
    def known(self) -> list[int]:
        """The tokens whose cells may be taken over. Cells tell nothing of the tokens in them: where
        that is wanted the prompt is computed again from what is told on.
        """
        return self.tokens[: max(1, self.scored)] if self.scoring else self.tokens

    @property
    def position(self) -> int:
        """Of the next token to be fed."""
        return self.fed - self.lag

    def lag_at(self, cells: int) -> int:
        """`lag` once `cells` cells are fed."""
        return sum(picture.saved for picture in self.pictures if picture.end <= cells)

    def start(self, slot: Slot, keep: int) -> None:
        """In `slot`, where the first `keep` cells are computed already."""
        slot.busy = True
        self.slot, self.fed, self.lag = slot, keep, self.lag_at(keep)
        self.cached = max(self.cached, min(keep, self.prompt_tokens))

    def feed(self, count: int) -> None:
        """The next `count` cells are computed."""
        assert self.slot is not None
        self.slot.tokens += self.tokens[self.fed : self.fed + count]
        self.fed += count

    def picture(self) -> "ImageCells | None":
        """The next one to be computed."""
        return next((picture for picture in self.pictures if picture.start >= self.fed), None)

    def whole(self, cells: int) -> int:
        """As many of the first `cells` cells as cut no picture in two."""
        cut = (picture.start for picture in self.pictures if picture.start < cells < picture.end)
        return next(cut, cells)

    def free(self) -> None:
        self.chain.free()
        for picture in self.pictures:
            picture.free()
