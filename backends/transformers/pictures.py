"""Pictures in a prompt, through the model's own processor.

A rendered prompt has one placeholder where a picture stands; the processor knows how many tokens
that picture takes and what its embeddings need. It wants text, so the prompt's tokens become text
again: that is exact, because a prompt's tokens were made from text with the same tokenizer, and
every processor expands placeholders in text.
"""

from collections.abc import Mapping
from typing import Any

from PIL import Image as Pillow

from backends.errors import InvalidJob
from backends.hf_vocabulary import HfVocabulary
from backends.protocol import Generation, Image


class ProcessorInputs:
    """Turns a job with pictures into the inputs of the model's forward."""

    def __init__(self, processor: Any, vocabulary: HfVocabulary, model: Any) -> None:
        self._processor = processor
        self._vocabulary = vocabulary
        self._model = model

    def inputs(self, job: Generation) -> Mapping[str, Any]:
        """Raises InvalidJob when prompt and pictures don't go together."""
        text = self._vocabulary.detokenize(job.prompt)
        try:
            made = self._processor(
                text=[text],
                images=[[_picture(image) for image in job.images]],
                add_special_tokens=False,  # the template wrote them into the prompt
                return_tensors="pt",
            )
        except (ValueError, IndexError, TypeError) as error:
            raise InvalidJob(
                f"the model's processor can't take this prompt: {error}", "messages"
            ) from error
        inputs: Mapping[str, Any] = made.to(self._model.device, dtype=self._model.dtype)
        return inputs


def _picture(image: Image) -> Pillow.Image:
    return Pillow.frombytes("RGB", (image.width, image.height), image.rgb)
