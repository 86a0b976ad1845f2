"""The model's own processor: what makes inputs of text and pictures.

Most processors have a part for videos as well, and transformers builds that part only where
torchvision is installed. No API here takes videos, and pictures are prepared with Pillow as well as
with torchvision; so where it is missing, they are built without the one for videos.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from PIL import Image as Pillow
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from backends.errors import BackendMissing, InvalidJob, LoadFailed
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Generation, Image


def load(folder: Path, config: Any, *, trust_remote_code: bool) -> Any:
    """Raises BackendMissing where it takes a library that isn't installed, else LoadFailed."""
    options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    try:
        made = transformers.AutoProcessor.from_pretrained(folder, **options)
    except (ImportError, ValueError) as error:
        if "torchvision" not in str(error).lower():
            raise
        made = _without_videos(folder, config, options)
    if not hasattr(made, "image_processor"):  # AutoProcessor falls back to a tokenizer
        raise LoadFailed(f"{folder.name} says nowhere how its pictures are prepared")
    return made


def _without_videos(folder: Path, config: Any, options: Mapping[str, Any]) -> Any:
    """As `AutoProcessor.from_pretrained`, part by part."""
    kind = _kind_with_videos(config)
    if kind is None:
        raise BackendMissing(
            f"pictures for {folder.name} need torchvision: pip install torchvision"
        )
    makers = {
        "tokenizer": transformers.AutoTokenizer.from_pretrained,
        "image_processor": transformers.AutoImageProcessor.from_pretrained,
        "video_processor": lambda *_, **__: None,
    }
    parts = [makers[part](folder, **options) for part in kind.get_attributes()]
    settings, _ = kind.get_processor_dict(folder, local_files_only=True)

    class Unchecked(kind):  # type: ignore[misc, valid-type] # whichever class it is
        """Parts are checked by the name of a class that isn't there without torchvision."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> None:
            pass

    return Unchecked.from_args_and_dict(parts, settings)


def _kind_with_videos(config: Any) -> Any:
    """The class of the model's processor; None where its pictures need torchvision too."""
    try:
        kind = PROCESSOR_MAPPING.get(type(config), None)
        return kind if kind is not None and "video_processor" in kind.get_attributes() else None
    except ImportError:
        return None


# ----------------------------------------------------------------------------------------- pictures
# Pictures in a prompt, through the model's own processor.
#
# A rendered prompt has one placeholder where a picture stands; the processor knows how many tokens
# that picture takes and what its embeddings need. It wants text, so the prompt's tokens become text
# again: that is exact, because a prompt's tokens were made from text with the same tokenizer, and
# every processor expands placeholders in text.


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
