"""Loaded models as the engine uses them, and the steps of loading that both libraries share.

Each backend's `loading` fills in its library's calls.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import msgspec
import torch

from backends.contract.catalog import ModelFiles, loadable_adapters
from backends.contract.errors import LoadFailed
from backends.contract.protocol import Generation, ModelInfo, Progress
from backends.engines.constraints import Mask
from backends.engines.exllama.adapters import (
    LoadedAdapter,
    applied,
    begin_chains,
    hide_first_pages,
    origin,
)
from backends.engines.exllama.faults import while_loading
from backends.engines.exllama.files import PagedCacheSize
from backends.engines.exllama.jobs import Drawing, ExLlamaJob, is_simple
from backends.engines.exllama.pictures import ImageEmbeddings
from backends.engines.sampling.state import SamplingContext
from backends.engines.sampling.truncation import SUPPORTED
from backends.engines.tokenizing import known_info
from backends.engines.vocabulary import HfVocabulary
from config.engines import ExLlamaOptions

LoadStep: TypeAlias = Callable[[Progress], bool]  # False: the load is cancelled

# Forced tokens are a new job of the library, which costs about as much as a few drawn ones.
FORCES_FROM = 4


class PlacedModel(msgspec.Struct, frozen=True):
    """A model on its devices, and its cache; both the library's."""

    model: Any
    cache: Any


class ExLlamaModel(ABC):
    """What the engine works with. `free` gives all of it back; nothing here is usable then.

    `generator` is the library's dynamic generator over the models and caches. It is made anew after
    a failed step, so no other reference to it is kept.
    """

    name: ClassVar[str]  # of the backend

    def __init__(self, library: Any, options: ExLlamaOptions, plan: PagedCacheSize) -> None:
        """`library`: an `ExLlamaLibrary`."""
        self.library = library
        self.options = options
        self.plan = plan
        self.main: PlacedModel
        self.draft: PlacedModel | None = None
        self.tokenizer: Any  # the library's
        self.known_tokens: int  # that it has
        self.vocabulary: HfVocabulary
        self.context: SamplingContext  # on the device where the last layer gives the logits
        self.adapters: list[LoadedAdapter] = []
        self.scales: tuple[float, ...] = ()  # of them, in the coming passes
        self.pictures: ImageEmbeddings | None = None
        self.info: ModelInfo
        self.generator: Any = None
        self._unloading = ExitStack()

    @abstractmethod
    def job(self, running: ExLlamaJob, ends: Sequence[int]) -> Any:
        """A job that goes on where `running` stands; the tokens in `ends` end it."""

    @abstractmethod
    def cached(self, job: Any) -> int:
        """How many of its prompt's tokens the job found in the cache."""

    @abstractmethod
    def make_generator(self) -> Any: ...

    @abstractmethod
    def use(self, loras: list[Any]) -> None:
        """The generator computes with these from now on; they are in the layers already."""

    @abstractmethod
    def pages(self) -> Iterable[Any]:
        """All pages of the generator's cache."""

    @abstractmethod
    def retire(self, generator: Any) -> None:
        """End the generator's threads, which would stay."""

    def parts_of_job(self, running: ExLlamaJob, ends: Sequence[int]) -> Mapping[str, Any]:
        """What both libraries' jobs are made of."""
        return {
            "input_ids": torch.tensor([running.prompt + running.written], dtype=torch.long),
            "stop_conditions": list(ends),
            "decode_special_tokens": True,
            "identifier": running.key,
            "embeddings": running.embeddings,
        }

    def parts_of_generator(self) -> Mapping[str, Any]:
        """What both libraries' generators are made of."""
        return {
            "model": self.main.model,
            "cache": self.main.cache,
            "tokenizer": self.tokenizer,
            "max_batch_size": self.info.max_concurrent,
            "draft_model": self.draft.model if self.draft else None,
            "draft_cache": self.draft.cache if self.draft else None,
            "num_draft_tokens": self.plan.drafted,
        }

    def load_adapter(self, folder: str) -> LoadedAdapter:
        """Onto the model."""
        lora = self.library.lora.from_directory(self.main.model, folder)
        self.unload_later(lora.unload)
        return LoadedAdapter(lora, Path(folder))

    def drawing(self, job: Generation, mask: Mask | None) -> Drawing | None:
        """What draws this request's tokens; None: the library does."""
        if is_simple(job, mask):
            return None
        return Drawing(job, mask, self.context, self.known_tokens)

    def adapt(self, scales: tuple[float, ...]) -> None:
        """Compute with its adapters at these scales from now on. Called by the engine's thread, and
        where they change while the generator has no job.
        """
        coming = origin(self.adapters, scales)
        begin_chains(coming)
        if scales != self.scales:
            self.use(applied(self.adapters, scales))
            past = origin(self.adapters, self.scales) if self.scales else None
            hide_first_pages(self.pages(), past, coming)
            self.scales = scales

    def unload_later(self, unload: Callable[[], None]) -> None:
        """`unload` is called by `free`, the newest first."""
        self._unloading.callback(unload)

    def renew(self) -> None:
        """Make a new generator; the one before, and its page table, are forgotten."""
        self._dismiss()
        self.generator = self.make_generator()

    def _dismiss(self) -> None:
        if self.generator is not None:
            self.retire(self.generator)
            self.generator = None
            give_back()

    def free(self) -> None:
        self._dismiss()
        self._unloading.close()
        for name in ("main", "draft", "tokenizer", "adapters", "pictures", "context"):
            setattr(self, name, None)
        give_back()

    def describe(self, files: ModelFiles, *, together: int) -> ModelInfo:
        """`together`: requests computed at a time."""
        known = known_info(files, self.vocabulary, length=self.plan.length, together=together)
        return msgspec.structs.replace(
            known,
            modalities=("text", "image") if self.pictures else ("text",),
            samplers=SUPPORTED,
            rewinds=True,
            constrains=True,
            penalties_first=True,
            forces_from=FORCES_FROM,
            chooses_adapters=True,
            adapters=loadable_adapters(self.options.adapters, self.options.adapter_scaling),
        )


def give_back() -> None:
    """Return unreferenced memory to the device. CUDA's context itself stays."""
    gc.collect()
    torch.cuda.empty_cache()


def fill(loaded: ExLlamaModel, files: ModelFiles, steps: Callable[[], None]) -> None:
    """Take `steps` to load what `files` names into `loaded`, and make its generator.

    Raises LoadFailed and leaves nothing behind.
    """
    try:
        steps()
        loaded.renew()
    except Exception as error:  # noqa: BLE001 - the library raises whatever it likes
        failure = while_loading(loaded.name, files.path.name, error)
    else:
        return
    # Out here the error is gone, and with it the frames that held tensors.
    loaded.free()
    raise failure


def reporting(stage: str, report: LoadStep) -> Callable[[int, int], None]:
    """The libraries' callback: module `done` of `total` is loaded."""

    def callback(done: int, total: int) -> None:
        if not report(Progress(stage, done, total)):
            raise LoadFailed("the load was cancelled")

    return callback


def split_of(options: ExLlamaOptions, *, draft: bool) -> list[float]:
    """GB on each card; empty: the library fills them."""
    own = options.draft_gpu_split if draft else ()
    return list(own or options.gpu_split)


def per_card(given: Sequence[float], cards: int) -> list[float]:
    """A number for every card; what is said of the last one holds for those after it."""
    given = given or (0.0,)
    return [given[min(card, len(given) - 1)] for card in range(cards)]
