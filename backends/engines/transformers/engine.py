"""The engine the driver steps: jobs that can share passes go to `Batching`, others to `Solo`."""

from collections.abc import Collection, Sequence

import msgspec
import torch

from backends.contract.beginnings import AT_EASE, Beginnings, NothingKept, Pace
from backends.contract.protocol import Generation, ModelInfo
from backends.engines.constraints import Mask
from backends.engines.draft_model import ModelDrafter
from backends.engines.engine import JobFailed, StepResult, Token
from backends.engines.sampling.state import SamplingContext
from backends.engines.speculation import Speculation
from backends.engines.threads import StepThreads
from backends.engines.tokenizing import VocabularyTokenizer
from backends.engines.transformers import loading
from backends.engines.transformers.batching import Batching
from backends.engines.transformers.draft import TransformersDraftModel
from backends.engines.transformers.forward import Forward
from backends.engines.transformers.grid import Grid
from backends.engines.transformers.loading import TransformersModel
from backends.engines.transformers.memory import give_back, in_our_words, while_generating
from backends.engines.transformers.sampler import Sampler
from backends.engines.transformers.solo import Solo, image_inputs


class TransformersEngine(VocabularyTokenizer):
    """See `backends.engines.engine.Engine`. Owns the model it was given."""

    def __init__(
        self,
        loaded: TransformersModel,
        speculation: Speculation | None = None,
        pace: Pace = AT_EASE,
    ) -> None:
        super().__init__(loaded.vocabulary)
        self._loaded = loaded
        context = SamplingContext(loaded.vocabulary, loaded.device)
        self._device = loaded.device
        beside = loaded.device.type != "cpu"
        threads = StepThreads(loaded.threads, loaded.threads, torch.set_num_threads, beside=beside)
        self._batching = _batching(loaded, context, threads, speculation, pace)
        length = loaded.info.context_length
        self._solo = Solo(loaded.model, context, Sampler(context), length, threads)
        # `generate` gives the logits after the last token alone.
        self.info: ModelInfo = msgspec.structs.replace(
            loaded.info,
            scores_prompts=self._batching is not None,
            heeds_marks=self._batching is not None and self._batching.takes_snapshots,
            build=loading.build(loaded) if self._batching is not None else "",
            drafts=self._batching is not None and self._batching.drafts,
            undrafted=loading.undrafted(loaded),
        )

    @in_our_words()
    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        if self._batching is not None and not job.images:
            return self._batching.admit(key, job, mask)
        if job.images:
            loaded = self._loaded  # which sees: else the driver refuses pictures
            inputs = image_inputs(loaded.processor, loaded.vocabulary, loaded.model, job)
        else:
            ids = torch.tensor([job.prompt], device=self._device)
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return self._solo.admit(key, job, inputs, mask)

    @property
    def kept(self) -> Beginnings:
        """See `backends.places.kept`: of the jobs that share passes."""
        return NothingKept() if self._batching is None else self._batching.kept

    @kept.setter
    def kept(self, beginnings: Beginnings) -> None:
        if self._batching is not None:
            self._batching.kept = beginnings

    def step(self) -> Sequence[StepResult]:
        with in_our_words(), torch.inference_mode():
            together = self._batching.step() if self._batching is not None else []
            return [*together, *self._step_alone()]

    def _step_alone(self) -> Sequence[Token | JobFailed]:
        """A job that is alone fails alone, unless all are: then a second failure must count."""
        try:
            return self._solo.step()
        except Exception as error:
            if self._batching is None:
                raise
            failure = while_generating(error)
        give_back(self._device)
        return [JobFailed(self._solo.turn, failure)]

    def force(self, key: int, tokens: Sequence[int]) -> None:
        with torch.inference_mode():
            self._worker(key).force(key, tokens)

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        with torch.inference_mode():
            self._worker(key).rewind(key, count, banned)

    def release(self, key: int) -> int:
        with torch.inference_mode():
            return self._worker(key).release(key)

    def _worker(self, key: int) -> Batching | Solo:
        if self._batching is None or key in self._solo.jobs:
            return self._solo
        return self._batching

    def recover(self) -> None:
        self._forget()
        give_back(self._device)

    def _forget(self) -> None:
        self._solo.clear()
        if self._batching is not None:
            self._batching.clear()

    def close(self) -> None:
        if self._batching is not None:
            with torch.inference_mode():
                self._batching.take_all_out()
        self._forget()
        self._batching = None
        del self._solo
        self._loaded.free()


def _batching(
    loaded: TransformersModel,
    context: SamplingContext,
    threads: StepThreads,
    speculation: Speculation | None,
    pace: Pace,
) -> Batching | None:
    if loaded.pattern is None:
        return None
    grid = Grid(loaded.pattern.layers)
    forward = Forward(loaded.model, grid, loaded.pattern, loaded.traced)
    if speculation is None and not loading.undrafted(loaded):
        options, drafter = loaded.options.speculation, None
        if loaded.drafting is not None:
            model, measures = TransformersDraftModel(loaded.drafting), options.mode == "auto"
            drafter = ModelDrafter(model, loaded.options.draft, context.size, measures=measures)
        speculation = Speculation(options, even=True, drafter=drafter)
    if grid.keeps_states:
        speculation = None
    room = loaded.snapshot_bytes
    return Batching(forward, grid, loaded.limit, room, context, threads, speculation, pace)
