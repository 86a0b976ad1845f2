"""Jobs that can't share passes, one after another: through the model's own `generate`.

`generate` knows what a forward pass of ours can't: how pictures become embeddings, which positions
they take, caches that no row of the grid can be. It prepares all that and leaves the loop to
`_steps`, which hands the logits over here, where the token is chosen by the same samplers as a
batch's.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from PIL import Image as Pillow
from transformers import GenerationConfig
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from backends.contract.errors import BackendMissing, InvalidJob, LoadFailed
from backends.contract.protocol import Generation
from backends.engines.constraints import Mask
from backends.engines.engine import JobFailed, Token
from backends.engines.sampling.batch import logprobs
from backends.engines.sampling.state import SamplerState, SamplingContext
from backends.engines.threads import StepThreads
from backends.engines.transformers.memory import while_generating
from backends.engines.transformers.sampler import Sampler
from backends.engines.vocabulary import HfVocabulary

Inputs = Mapping[str, Any]  # what a processor makes for the model's forward


def _steps(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,  # noqa: ARG001 - `generate` has it
    stopping_criteria: Any,  # noqa: ARG001
    generation_config: GenerationConfig,
    **given: Any,
) -> Generator[torch.Tensor, int]:
    """The loop of transformers' `GenerationMixin._sample`: gives the logits after the newest token,
    (1, vocabulary), and goes on with the token that it is sent.
    """
    outputs = model._prefill(input_ids, generation_config, given)  # noqa: SLF001 - as `_sample`
    with model._optimize_model_for_decode():  # noqa: SLF001
        while True:
            given = model._update_model_kwargs_for_generation(  # noqa: SLF001
                outputs, given, is_encoder_decoder=False
            )
            # Copied: of a prompt there may be the logits of all places.
            logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32)
            del outputs
            token = yield logits
            input_ids = torch.cat([input_ids, input_ids.new_tensor([[token]])], dim=-1)
            inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=1, **given)
            outputs = model(**inputs, return_dict=True)


class SoloJob:
    """One job; `_generating` is None until its turn comes."""

    def __init__(self, key: int, job: Generation, inputs: Inputs, context: SamplingContext) -> None:
        self.key = key
        self.job = job
        self.inputs = inputs
        self.tokens: list[int] = inputs["input_ids"][0].tolist()
        self.state = SamplerState(job, self.tokens, context)
        self.forced: list[int] = []
        self._generating: Generator[torch.Tensor, int] | None = None

    @property
    def unread(self) -> int:
        """How many tokens the coming step computes."""
        return len(self.tokens) if self._generating is None else 1

    def scores(self, model: Any, length: int) -> torch.Tensor:
        """The logits after the newest token, (1, vocabulary)."""
        if self._generating is not None:
            return self._generating.send(self.tokens[-1])
        plain = GenerationConfig(
            do_sample=False, num_beams=1, max_length=length, pad_token_id=0, use_cache=True
        )
        self._generating = model.generate(
            **self._continued(), generation_config=plain, custom_generate=_steps
        )
        return next(self._generating)

    def stop(self) -> None:
        """What `generate` holds is given back."""
        if self._generating is not None:
            self._generating.close()
            self._generating = None

    def _continued(self) -> Inputs:
        """The prompt's inputs, and the tokens said after it. What a processor gives for each token
        of a prompt (`attention_mask`, token types) is given for these as for text.
        """
        ids = self.inputs["input_ids"]
        answer = self.tokens[ids.shape[1] :]
        if not answer:
            return self.inputs
        text = {"input_ids": torch.tensor([answer], device=ids.device)}
        text["attention_mask"] = torch.ones_like(text["input_ids"])
        return {
            name: torch.cat([value, text.get(name, torch.zeros_like(text["input_ids"]))], 1)
            if isinstance(value, torch.Tensor) and value.shape == ids.shape
            else value
            for name, value in self.inputs.items()
        }


class Solo(msgspec.Struct, eq=False):
    """The jobs that run one after another, oldest first. Only the engine's thread calls it."""

    _model: Any
    _context: SamplingContext
    _sampler: Sampler
    _length: int
    _threads: StepThreads
    jobs: dict[int, SoloJob] = {}  # by their keys

    def admit(self, key: int, job: Generation, inputs: Inputs, mask: Mask | None = None) -> int:
        """`inputs` is the prompt as the model's forward wants it; returns its tokens, pictures
        counted.
        """
        self.jobs[key] = SoloJob(key, job, inputs, self._context)
        self.jobs[key].state.mask = mask
        return len(self.jobs[key].tokens)

    @property
    def turn(self) -> int:
        """The key of the job that runs, or runs next."""
        return next(iter(self.jobs))

    def step(self) -> list[Token | JobFailed]:
        return [self._next(self.jobs[self.turn])] if self.jobs else []

    def _next(self, running: SoloJob) -> Token | JobFailed:
        self._threads.begin(running.unread)
        scores = running.scores(self._model, self._length)
        self._threads.end()
        if running.forced:
            return self._force(running, scores)
        [sampled] = self._sampler.sample([running.state], scores)
        if isinstance(sampled, Exception):
            return JobFailed(running.key, while_generating(sampled))
        running.tokens.append(sampled.token)
        running.state.drawn()
        return Token(running.key, sampled.token, sampled.logprob)

    def _force(self, running: SoloJob, scores: torch.Tensor) -> Token:
        token = running.forced.pop(0)
        running.tokens.append(token)
        running.state.accepted()
        [found] = logprobs(scores, [token], [running.job.logprobs], self._context.vocabulary.piece)
        return Token(running.key, token, found)

    def force(self, key: int, tokens: Sequence[int]) -> None:
        self.jobs[key].forced += tokens

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        """`generate` can't go back: another one begins with what is left."""
        running = self.jobs[key]
        running.forced.clear()
        del running.tokens[len(running.tokens) - count :]
        running.state.rewound(banned)
        self._sampler.clear()
        running.stop()

    def release(self, key: int) -> int:
        running = self.jobs.pop(key)
        self._sampler.clear()
        running.stop()
        return 0

    def clear(self) -> None:
        for key in list(self.jobs):
            self.release(key)


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
        raise LoadFailed(f"{folder.name} has no image processor configuration")
    return made


def _without_videos(folder: Path, config: Any, options: Mapping[str, Any]) -> Any:
    """As `AutoProcessor.from_pretrained`, part by part.

    Most processors have a part for videos as well, and transformers builds that part only where
    torchvision is installed. No API here takes videos, and pictures are prepared with Pillow as
    well as with torchvision; so where it is missing, they are built without the one for videos.
    """
    kind = _kind_with_videos(config)
    if kind is None:
        raise BackendMissing(
            f"images for {folder.name} require torchvision: pip install torchvision"
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


# Pictures in a prompt, through the model's own processor.
#
# A rendered prompt has one placeholder where a picture stands; the processor knows how many tokens
# that picture takes and what its embeddings need. It wants text, so the prompt's tokens become text
# again: that is exact, because a prompt's tokens were made from text with the same tokenizer, and
# every processor expands placeholders in text.


def image_inputs(
    processor: Any, vocabulary: HfVocabulary, model: Any, job: Generation
) -> Mapping[str, Any]:
    """A job with pictures as the inputs of the model's forward. Raises InvalidJob when prompt and
    pictures don't go together.
    """
    text = vocabulary.detokenize(job.prompt)
    try:
        pictures = [Pillow.frombytes("RGB", (one.width, one.height), one.rgb) for one in job.images]
        made = processor(
            text=[text],
            images=[pictures],
            add_special_tokens=False,  # the template wrote them into the prompt
            return_tensors="pt",
        )
    except (ValueError, IndexError, TypeError) as error:
        raise InvalidJob(
            f"the model's processor rejected this prompt: {error}", "messages"
        ) from error
    inputs: Mapping[str, Any] = made.to(model.device, dtype=model.dtype)
    return inputs
