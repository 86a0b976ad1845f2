"""Pictures in a prompt, through a library's image encoder.

The tower makes an embedding of each picture, whose rows have token ids of their own (from a
thousand million on); where the prompt has a placeholder, these ids are put. An embedding may bring
the markers that enclose a picture along; those that the chat template has already written are not
repeated.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import msgspec
from PIL import Image as Pillow

from backends.contract.errors import InvalidJob
from backends.contract.protocol import Generation, Image

REMEMBERED = 32  # pictures; a conversation sends its pictures again at every turn


class ImageEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """A library's image encoder."""

    embed: Callable[[Any], Any]  # a Pillow picture to the library's MMEmbedding
    ids: Callable[[Any], list[int]]  # the token ids of such an embedding, markers included
    placeholder: int  # the token a chat template writes for one picture
    longest: int | None = None  # pixels of an edge


class ImageEmbeddings:
    """Embeddings of recent pictures."""

    def __init__(self, encoder: ImageEncoder) -> None:
        self._encoder = encoder
        # The same picture keeps its ids, so that its part of the KV cache is found again.
        self._embedding = lru_cache(REMEMBERED)(partial(_embedded, encoder))

    def prepare(self, job: Generation) -> tuple[list[int], list[Any]]:
        """The prompt in the generator's form, with ids of embeddings where pictures stand, and
        these. Raises InvalidJob for a picture that is too large, or when there are not as many
        placeholders as pictures.
        """
        self._check(job)
        embeddings = [self._embedding(image) for image in job.images]
        coming, prompt = iter(embeddings), list[int]()
        for place, token in enumerate(job.prompt):
            if token == self._encoder.placeholder:
                prompt += self._rows(
                    next(coming), prompt[-1:], list(job.prompt[place + 1 : place + 2])
                )
            else:
                prompt.append(token)
        return prompt, embeddings

    def _check(self, job: Generation) -> None:
        longest, places = self._encoder.longest, job.prompt.count(self._encoder.placeholder)
        if longest and any(max(image.width, image.height) > longest for image in job.images):
            raise InvalidJob(f"an image is larger than {longest} pixels", "messages")
        if places != len(job.images):
            raise InvalidJob(
                f"the prompt has places for {places} images, {len(job.images)} were sent",
                "messages",
            )

    def _rows(self, embedding: Any, before: list[int], after: list[int]) -> list[int]:
        """The ids of `embedding` between its neighbours, without markers that are these."""
        ids = self._encoder.ids(embedding)
        if ids[:1] == before:
            ids = ids[1:]
        return ids[:-1] if ids[-1:] == after else ids


def _embedded(encoder: ImageEncoder, image: Image) -> Any:
    return encoder.embed(Pillow.frombytes("RGB", (image.width, image.height), image.rgb))
