"""Jobs that can't share passes, one after another: through the model's own `generate`.

`generate` knows what a forward pass of ours can't: how pictures become embeddings, which positions
they take, caches that no row of the grid can be. It runs on a thread of its own and hands every
step's logits over here, where the token is chosen by the same samplers as a batch's:

    engine thread                       generate's thread
    step: scores ◀───────────────────   a forward pass
          choose ───────────────────▶   the next one
    release: None ──────────────────▶   raises Abandoned; the thread ends within one pass
"""

import queue
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image as Pillow
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from backends.contract.errors import BackendMissing, InvalidJob, LoadFailed
from backends.contract.protocol import Generation, Image
from backends.engines.constraints import Mask
from backends.engines.engine import JobFailed, Token
from backends.engines.sampling.batch import logprobs
from backends.engines.sampling.state import SamplerState, SamplingContext
from backends.engines.threads import StepThreads
from backends.engines.transformers.batching import Sampler
from backends.engines.transformers.memory import while_generating
from backends.engines.vocabulary import HfVocabulary
from config.values import Threads

Inputs = Mapping[str, Any]  # what a processor makes for the model's forward


class SoloAbandoned(BaseException):
    """The rest is not wanted. Not an Exception, so that nothing inside the model takes it for a
    failure.
    """


class Handover(LogitsProcessor):
    """Gives each step's logits away and makes `generate` choose the token that comes back."""

    def __init__(self, threads: StepThreads) -> None:
        self._threads = threads
        self.scores: queue.SimpleQueue[torch.Tensor | BaseException | None] = queue.SimpleQueue()
        self.tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._threads.end()
        self.scores.put(scores)
        token = self.tokens.get()
        if token is None:
            raise SoloAbandoned
        self._threads.begin(1)
        return torch.full_like(scores, float("-inf")).index_fill_(
            1, torch.tensor([token], device=scores.device), 0.0
        )


class Generating:
    """One `generate` under way."""

    def __init__(self, model: Any, inputs: Inputs, length: int, threads: StepThreads) -> None:
        self._threads = threads
        self._handover = Handover(threads)
        self._thread = threading.Thread(target=self._run, args=(model, inputs, length), daemon=True)
        self._thread.start()

    def _run(self, model: Any, inputs: Inputs, length: int) -> None:
        plain = GenerationConfig(
            do_sample=False, num_beams=1, max_length=length, pad_token_id=0, use_cache=True
        )
        self._threads.begin(inputs["input_ids"].shape[1])
        try:
            model.generate(
                **inputs,
                generation_config=plain,
                logits_processor=LogitsProcessorList([self._handover]),
            )
        except SoloAbandoned:
            return
        except BaseException as error:  # noqa: BLE001 - raised again on the engine's thread
            self._handover.scores.put(error)
        else:
            self._handover.scores.put(None)

    def scores(self) -> torch.Tensor | None:
        """The logits after the newest token, (1, vocabulary); None: `generate` has ended by
        itself. Raises what it raised.
        """
        scores = self._handover.scores.get()
        if isinstance(scores, BaseException):
            raise scores
        return scores

    def choose(self, token: int) -> None:
        self._handover.tokens.put(token)

    def stop(self) -> None:
        """When this returns the device does no more work for it."""
        self._handover.tokens.put(None)
        self._thread.join()


class SoloJob:
    """One job; `generating` is None until its turn comes."""

    def __init__(self, key: int, job: Generation, inputs: Inputs, context: SamplingContext) -> None:
        self.key = key
        self.job = job
        self.inputs = inputs
        self.tokens: list[int] = inputs["input_ids"][0].tolist()
        self.state = SamplerState(job, self.tokens, context)
        self.forced: list[int] = []
        self.generating: Generating | None = None

    def continued(self) -> Inputs:
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


class Solo:
    """The jobs that run one after another, oldest first. Only the engine's thread calls it."""

    def __init__(
        self,
        model: Any,
        vocabulary: HfVocabulary,
        context: SamplingContext,
        length: int,
        threads: Threads,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._context = context
        self._sampler = Sampler(context, vocabulary.piece)
        self._length = length
        self._threads = threads
        self._jobs: dict[int, SoloJob] = {}

    def admit(self, key: int, job: Generation, inputs: Inputs, mask: Mask | None = None) -> int:
        """`inputs` is the prompt as the model's forward wants it; returns its tokens, pictures
        counted.
        """
        self._jobs[key] = SoloJob(key, job, inputs, self._context)
        self._jobs[key].state.mask = mask
        return len(self._jobs[key].tokens)

    @property
    def turn(self) -> int:
        """The key of the job that runs, or runs next."""
        return next(iter(self._jobs))

    def step(self) -> list[Token | JobFailed]:
        for running in self._jobs.values():
            if running.generating is None:
                # torch's count is each thread's own
                threads = StepThreads(self._threads, self._threads, torch.set_num_threads)
                inputs = running.continued()
                running.generating = Generating(self._model, inputs, self._length, threads)
            return [self._next(running, running.generating)]
        return []

    def _next(self, running: SoloJob, generating: Generating) -> Token | JobFailed:
        scores = generating.scores()
        if scores is None:
            return Token(running.key, self._context.ends[0])
        if running.forced:
            return self._force(running, generating, scores)
        [sampled] = self._sampler.sample([running.state], scores)
        if isinstance(sampled, Exception):
            return JobFailed(running.key, while_generating(sampled))
        running.tokens.append(sampled.token)
        running.state.drawn()
        generating.choose(sampled.token)
        return Token(running.key, sampled.token, sampled.logprob)

    def _force(self, running: SoloJob, generating: Generating, scores: torch.Tensor) -> Token:
        token = running.forced.pop(0)
        running.tokens.append(token)
        running.state.accepted()
        generating.choose(token)
        [found] = logprobs(scores, [token], [running.job.logprobs], self._vocabulary.piece)
        return Token(running.key, token, found)

    def force(self, key: int, tokens: Sequence[int]) -> None:
        self._jobs[key].forced += tokens

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        """`generate` can't go back: another one begins with what is left."""
        running = self._jobs[key]
        running.forced.clear()
        del running.tokens[len(running.tokens) - count :]
        running.state.rewound(banned)
        self._sampler.clear()
        if running.generating is not None:
            running.generating.stop()
            running.generating = None

    def release(self, key: int) -> int:
        running = self._jobs.pop(key)
        self._sampler.clear()
        if running.generating is not None:
            running.generating.stop()
        return 0

    def clear(self) -> None:
        for key in list(self._jobs):
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
                f"the model's processor rejected this prompt: {error}", "messages"
            ) from error
        inputs: Mapping[str, Any] = made.to(self._model.device, dtype=self._model.dtype)
        return inputs


def _picture(image: Image) -> Pillow.Image:
    return Pillow.frombytes("RGB", (image.width, image.height), image.rgb)
