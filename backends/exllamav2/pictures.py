"""Pictures in a prompt, through exllamav2's vision tower.

The tower makes an embedding of each picture, whose rows have token ids of their own (from a
thousand million on); where the prompt has a placeholder, these ids are put. An embedding brings the
markers that enclose a picture along, so they are part of the placeholder.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from PIL import Image as Pillow

from backends.errors import InvalidJob
from backends.hf_vocabulary import Vocabulary
from backends.protocol import Generation, Image

# By ExLlamaV2Config.vision_model_type: what a chat template writes for one picture, and what the
# `postprocess` of exllamav2/vlm/processor puts around its embedding.
PLACEHOLDERS: Mapping[str, tuple[str, ...]] = {
    "pixtral": ("[IMG]",),
    "qwen2": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "qwen2.5": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "siglip_vision_model": ("<start_of_image>",),
}
REMEMBERED = 32  # pictures; a conversation sends its pictures again at every turn


class Seen(msgspec.Struct, frozen=True):
    """A prompt as the generator wants it: ids of embeddings where pictures stand."""

    prompt: list[int]
    embeddings: list[Any]  # ExLlamaV2MMEmbedding


class Pictures:
    """`tower`, `model` and `tokenizer` are exllamav2's."""

    def __init__(self, tower: Any, model: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
        self._tower = tower
        self._model = model
        self._tokenizer = tokenizer
        texts = PLACEHOLDERS[tower.config.vision_model_type]
        self._placeholder = [vocabulary.id_of(text) for text in texts]
        self._longest: int = tower.config.vision_max_size  # pixels of an edge
        self._known: OrderedDict[Image, Any] = OrderedDict()

    def see(self, job: Generation) -> Seen:
        """Raises InvalidJob for a picture that is too large, or when there are not as many
        placeholders as pictures.
        """
        if any(max(image.width, image.height) > self._longest for image in job.images):
            raise InvalidJob(f"an image is larger than {self._longest} pixels", "messages")
        places = find(job.prompt, self._placeholder)
        if len(places) != len(job.images):
            raise InvalidJob(
                f"the prompt has room for {len(places)} images, and {len(job.images)} were sent",
                "messages",
            )
        embeddings = [self._embedding(image) for image in job.images]
        prompt, done = list[int](), 0
        for place, embedding in zip(places, embeddings, strict=True):
            prompt += [*job.prompt[done:place], *embedding.get_ids()]
            done = place + len(self._placeholder)
        return Seen([*prompt, *job.prompt[done:]], embeddings)

    def _embedding(self, image: Image) -> Any:
        """The same picture keeps its ids, so that its part of the KV cache is found again."""
        embedding = self._known.pop(image, None)
        if embedding is None:
            picture = Pillow.frombytes("RGB", (image.width, image.height), image.rgb)
            embedding = self._tower.get_image_embeddings(
                model=self._model, tokenizer=self._tokenizer, image=picture
            )
        self._known[image] = embedding
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return embedding


def find(tokens: Sequence[int], wanted: Sequence[int | None]) -> list[int]:
    """Where `wanted` begins in `tokens`, without overlaps."""
    places, at, size = [], 0, len(wanted)
    while at + size <= len(tokens):
        if list(tokens[at : at + size]) == list(wanted):
            places.append(at)
            at += size
        else:
            at += 1
    return places
