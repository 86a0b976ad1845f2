"""Options to models in memory: the model, its cache, a draft model, an image encoder, adapters.

Knows exllamav3's constructors and their order, not how it is then stepped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from backends.catalog import ModelFiles
from backends.errors import LoadFailed, UnsupportedModel
from backends.exllama import loading
from backends.exllama.files import PAGE, PagedCacheSize, pages
from backends.exllama.jobs import ExLlamaJob
from backends.exllama.loading import LoadStep, PlacedModel, fill, per_card, reporting
from backends.exllama.pictures import ImageEmbeddings, ImageEncoder
from backends.exllamav3.files import MEGABYTE, cache_bits, cache_size, draft, fitted
from backends.exllamav3.library import ExLlamaV3Library
from backends.exllamav3.sampling import OurSampler, theirs
from backends.huggingface.vocabulary import HfVocabulary
from config.engines import ExLlamaV3Options

SHORTEST_MATCH = 3  # tokens that must be repeated before n-gram speculation drafts what follows
# What a chat template writes for one picture, where it isn't the token that config.json names.
PLACEHOLDERS: Mapping[str, str] = {"Gemma3ForConditionalGeneration": "<start_of_image>"}


class ExLlamaV3Model(loading.ExLlamaModel):
    """`generator` is a `Generator`."""

    name = "exllamav3"

    def __init__(
        self, library: ExLlamaV3Library, options: ExLlamaV3Options, plan: PagedCacheSize
    ) -> None:
        super().__init__(plan)
        self.library = library
        self.options = options

    @property
    def chunk(self) -> int:
        """Prompt tokens in one pass: whole pages, and no more than the cache holds."""
        return min(pages(self.options.chunk_size), self.plan.cells)

    @property
    def device(self) -> torch.device:
        return torch.device(self.main.model.output_device)

    @property
    def known_tokens(self) -> int:
        return int(self.tokenizer.actual_vocab_size)

    def job(self, running: ExLlamaJob, ends: Sequence[int]) -> Any:
        """It takes its stretches by itself, with a checkpoint between them where a model has
        recurrent layers.
        """
        return self.library.job(
            input_ids=torch.tensor([running.prompt + running.written], dtype=torch.long),
            max_new_tokens=running.left,
            sampler=(
                theirs(running.job.sampling, self.library)
                if running.drawing is None
                else OurSampler(running.drawing)
            ),
            stop_conditions=list(ends),
            decode_special_tokens=True,
            identifier=running.key,
            embeddings=running.embeddings,
            max_rq_tokens=running.stretch,
        )

    def cached(self, job: Any) -> int:
        if job.rq_cached is not None:  # in its first stretch; the present one found that too
            return int(job.rq_cached[1])
        return int(job.cached_pages * PAGE + job.cached_tokens)

    def make_generator(self) -> Any:
        return self.library.generator(
            model=self.main.model,
            cache=self.main.cache,
            tokenizer=self.tokenizer,
            max_batch_size=self.info.max_concurrent,
            max_chunk_size=self.chunk,
            draft_model=self.draft.model if self.draft else None,
            draft_cache=self.draft.cache if self.draft else None,
            num_draft_tokens=self.plan.drafted,
            ngram_match_min=SHORTEST_MATCH if self.options.ngram_speculation else 0,
            prefill_cooldown=self.options.prefill_cooldown,
            dynamic_draft_tokens=self.options.dynamic_draft_tokens,
            cpu_cache_size=self.options.cpu_cache_size * MEGABYTE,
        )

    def retire(self, generator: Any) -> None:
        generator.close()


def load(
    files: ModelFiles, options: ExLlamaV3Options, library: ExLlamaV3Library, report: LoadStep
) -> ExLlamaV3Model:
    """Load on the calling thread. Raises LoadFailed and leaves nothing behind."""
    loaded = ExLlamaV3Model(library, options, cache_size(files, options))
    files = fitted(files, options)
    fill(loaded, files, lambda: _load(loaded, files, report))
    return loaded


def _load(loaded: ExLlamaV3Model, files: ModelFiles, report: LoadStep) -> None:
    library, options, guess = loaded.library, loaded.options, draft(loaded.options)
    config = _config(loaded, files.path)
    loaded.tokenizer = library.tokenizer.from_config(config)
    loaded.vocabulary = HfVocabulary(files.path, config.vocab_size)
    if "image" in files.modalities:
        loaded.pictures = ImageEmbeddings(_image_encoder(loaded, config, report))
    if guess is not None:
        loaded.draft = _place(loaded, _config(loaded, guess.path), "draft", report)
    loaded.main = _place(loaded, config, "model", report)
    loaded.loras = [_lora(loaded, Path(path)) for path in options.adapters.values()]
    if options.warmup:
        loaded.main.model.warmup(
            cache=loaded.main.cache,
            max_chunk_size=loaded.chunk,
            callback=reporting("warmup", report),
        )
    loaded.info = loaded.describe(files, together=options.max_concurrent)


# -- one model -------------------------------------------------------------------------------------


def _config(loaded: ExLlamaV3Model, folder: Path) -> Any:
    try:
        config = loaded.library.config.from_directory(str(folder))
    except AssertionError as error:  # an architecture, or a form of it, that it doesn't know
        raise UnsupportedModel(f"exllamav3 can't read {folder.name}: {error}") from error
    config.override_dynamic_seq_len(loaded.plan.positions)
    return config


def _place(loaded: ExLlamaV3Model, config: Any, stage: str, report: LoadStep) -> PlacedModel:
    """A model with its cache, which must be there before the weights are."""
    model = _model(loaded, config, "text")
    bits = cache_bits(loaded.options.cache_type)
    layers: dict[str, Any] = {}
    if bits is not None:
        layers = {"layer_type": loaded.library.quantized, "k_bits": bits[0], "v_bits": bits[1]}
    cache = loaded.library.cache(
        model,
        max_num_tokens=loaded.plan.cells,
        max_batch_size=loaded.options.max_concurrent,  # of recurrent states
        max_history=loaded.plan.drafted,
        **layers,
    )
    _fill_cards(loaded, model, stage, report)
    return PlacedModel(model, cache)


def _model(loaded: ExLlamaV3Model, config: Any, component: str) -> Any:
    """One whose memory is given back, also when its load fails midway."""
    model = loaded.library.model.from_config(config, component=component)

    def unload() -> None:
        model.unload()
        if model.mp_children:  # `unload` ends the processes of whole tensor-parallel models only
            model.destroy_tp_context()

    loaded.unload_later(unload)
    return model


def _fill_cards(loaded: ExLlamaV3Model, model: Any, stage: str, report: LoadStep) -> None:
    library, options, main = loaded.library, loaded.options, stage == "model"
    gigabytes = [free / 1024 for free in per_card(options.autosplit_reserve, library.devices)]
    split, progress = list(options.gpu_split), reporting(stage, report)

    def callback(done: int, total: int) -> None:
        # On every new card it caps what the whole process may allocate there (util/memory.py), so
        # models that run meanwhile would be out of memory. Its own count of what was allocated
        # keeps the budget just as well, so the cap goes at the next module.
        library.unset_memory_fraction(list(range(library.devices)))
        progress(done, total)

    try:
        model.load(
            use_per_device=split or None,
            reserve_per_device=None if split else gigabytes,
            tensor_p=main and options.tensor_parallel,
            tp_backend=options.tensor_parallel_backend,
            max_chunk_size=loaded.chunk,
            callback=callback,
            draft_model=loaded.draft.model if main and loaded.draft else None,
        )
    except BaseException:  # it leaves its cap behind when it fails
        library.unset_memory_fraction(list(range(library.devices)))
        raise


# -- what belongs to it ----------------------------------------------------------------------------


def _image_encoder(loaded: ExLlamaV3Model, config: Any, report: LoadStep) -> ImageEncoder:
    if text := PLACEHOLDERS.get(config.architecture):
        placeholder = loaded.vocabulary.id_of(text)
    else:
        placeholder = config.image_token_id
    if placeholder is None:
        raise UnsupportedModel("the model's files don't say which token stands for a picture")
    tower, tokenizer = _model(loaded, config, "vision"), loaded.tokenizer
    _fill_cards(loaded, tower, "vision", report)
    return ImageEncoder(
        embed=lambda picture: tower.get_image_embeddings(tokenizer=tokenizer, image=picture),
        ids=lambda embedding: list(embedding.token_list),
        placeholder=placeholder,
    )


def _lora(loaded: ExLlamaV3Model, folder: Path) -> Any:
    """Raises LoadFailed where exllamav3 would only print that nothing of it fits."""
    lora = loaded.library.lora.from_directory(loaded.main.model, str(folder))
    loaded.unload_later(lora.unload)
    if not lora.target_modules:
        raise LoadFailed(f"nothing of the adapter {folder} fits the model as it is loaded")
    return lora
