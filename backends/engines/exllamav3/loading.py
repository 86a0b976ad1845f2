"""Options to models in memory: the model, its cache, a draft model, an image encoder, adapters.

Knows exllamav3's constructors and their order, not how it is then stepped. A job's tokens are
drawn by its own sampler where that is greedy or takes a temperature alone, else by
`backends.engines.exllama.jobs.Drawing` in its place.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.contract.samplers import Sampling
from backends.engines.exllama import loading
from backends.engines.exllama.adapters import LoadedAdapter
from backends.engines.exllama.files import PAGE, cache_bits, draft_cache_type, drafts, pages
from backends.engines.exllama.jobs import Drawing, ExLlamaJob
from backends.engines.exllama.loading import (
    LoadStep,
    PlacedModel,
    fill,
    per_card,
    reporting,
    split_of,
)
from backends.engines.exllama.pictures import ImageEmbeddings, ImageEncoder
from backends.engines.exllamav3.container import ExLlamaV3Library
from backends.engines.exllamav3.files import (
    MEGABYTE,
    cache_size,
    draft,
    experts_apart,
    fitted,
    together,
)
from backends.engines.sampling.state import SamplingContext
from backends.engines.vocabulary import HfVocabulary
from config.engines import ExLlamaV3Options


def theirs(sampling: Sampling, library: ExLlamaV3Library) -> Any:
    """A sampler with this temperature and nothing else."""
    steps = library.steps
    if sampling.temperature <= 0:
        return steps.CustomSampler([steps.SS_Argmax()])
    return steps.CustomSampler([steps.SS_Temperature(sampling.temperature), steps.SS_Sample()])


class OurSampler:
    """Has what a job needs of a `Sampler` in exllamav3 1.6.5."""

    # Else the places behind guesses would be drawn for before it is known which guesses came true.
    reqs_past_ids = True
    reqs_torch_seed = False

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing

    def forward(
        self,
        logits: torch.Tensor,
        sequence_ids: torch.Tensor,
        rand_u32: int,
        tokenizer: Any,
        logit_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Called by the job once for every token: `logits` is (1, 1, padded vocabulary)."""
        return torch.tensor([[self._drawing.draw(logits)]])


GIGABYTE = 1 << 30
# What a chat template writes for one picture, where it isn't the token that config.json names.
PLACEHOLDERS: Mapping[str, str] = {"Gemma3ForConditionalGeneration": "<start_of_image>"}
# What stands before and behind a picture with its markers, as the model was trained.
AROUND: Mapping[str, str] = {"Gemma3ForConditionalGeneration": "\n\n"}


class ExLlamaV3Model(loading.ExLlamaModel):
    """`generator` is a `Generator`."""

    name = "exllamav3"
    library: ExLlamaV3Library
    options: ExLlamaV3Options
    together: int  # requests computed at a time

    @property
    def chunk(self) -> int:
        """Prompt tokens in one pass: whole pages, and no more than the cache holds."""
        return min(pages(self.options.chunk_size), self.plan.cells)

    def job(self, running: ExLlamaJob, ends: Sequence[int]) -> Any:
        """It takes its stretches by itself, with a checkpoint between them where a model has
        recurrent layers.
        """
        return self.library.job(
            **self.parts_of_job(running, ends),
            max_new_tokens=running.left,
            sampler=(
                theirs(running.job.sampling, self.library)
                if running.drawing is None
                else OurSampler(running.drawing)
            ),
            max_rq_tokens=running.stretch,
        )

    def cached(self, job: Any) -> int:
        if job.rq_cached is not None:  # in its first stretch; the present one found that too
            return int(job.rq_cached[1])
        return int(job.cached_pages * PAGE + job.cached_tokens)

    def make_generator(self) -> Any:
        options = self.options
        return self.library.generator(
            **self.parts_of_generator(),
            max_chunk_size=self.chunk,
            ngram_match_min=options.ngram_match_min if drafts(options).repeats else 0,
            prefill_cooldown=options.prefill_cooldown,
            dynamic_draft_tokens=options.dynamic_draft_tokens,
            cpu_cache_size=options.cpu_cache_size * MEGABYTE,
            disk_cache_dir=self.disk_cache_dir(),
            disk_cache_size=options.disk_cache_size * GIGABYTE,
            recurrent_cache_size=options.recurrent_cache_size * MEGABYTE,
        )

    def use(self, loras: list[Any]) -> None:
        """Its layers add what they have."""

    def pages(self) -> Iterable[Any]:
        return self.generator.pagetable.all_pages  # type: ignore[no-any-return]

    def disk_cache_dir(self) -> str | None:
        """Where pages are kept. exllamav3 tells models and kinds of caches apart, and by their
        origins pages of adapters. Nobody else may read there what users wrote.
        """
        if self.options.disk_cache_dir is None:
            return None
        folder = Path(self.options.disk_cache_dir)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(folder)

    def retire(self, generator: Any) -> None:
        generator.close()


def load(
    files: ModelFiles, options: ExLlamaV3Options, library: ExLlamaV3Library, report: LoadStep
) -> ExLlamaV3Model:
    """Load on the calling thread. Raises LoadFailed and leaves nothing behind."""
    files = fitted(files, options)
    loaded = ExLlamaV3Model(library, options, cache_size(files, options))
    loaded.together = together(files, options)
    fill(loaded, files, lambda: _load(loaded, files, report))
    return loaded


def _load(loaded: ExLlamaV3Model, files: ModelFiles, report: LoadStep) -> None:
    library, options, guess = loaded.library, loaded.options, draft(files, loaded.options)
    config = _config(loaded, files.path)
    if experts_apart(files, options):  # which the CPU computes
        config.infer_params.moe_cpu_offload = options.moe_cpu_offload
        config.infer_params.moe_cpu_split = options.moe_cpu_split
        config.infer_params.moe_cpu_threads = options.moe_cpu_threads
    loaded.tokenizer = library.tokenizer.from_config(config)
    loaded.known_tokens = int(loaded.tokenizer.actual_vocab_size)
    loaded.vocabulary = HfVocabulary(files.path, config.vocab_size)
    if "image" in files.modalities:
        loaded.pictures = ImageEmbeddings(_image_encoder(loaded, config, report))
    if guess is not None:
        drafting = config if drafts(options).heads else _config(loaded, guess.path)
        loaded.draft = _place(loaded, drafting, "draft", report)
    loaded.main = _place(loaded, config, "model", report)
    device = torch.device(loaded.main.model.output_device)
    loaded.context = SamplingContext(loaded.vocabulary, device)
    loaded.adapters = [_adapter(loaded, folder) for folder in options.adapters.values()]
    if options.warmup:
        loaded.main.model.warmup(
            cache=loaded.main.cache,
            max_chunk_size=loaded.chunk,
            callback=reporting("warmup", report),
        )
    loaded.info = loaded.describe(files, together=loaded.together)


def _config(loaded: ExLlamaV3Model, folder: Path) -> Any:
    try:
        config = loaded.library.config.from_directory(str(folder))
    except AssertionError as error:  # an architecture, or a form of it, that it doesn't know
        raise UnsupportedModel(f"exllamav3 can't read {folder.name}: {error}") from error
    config.override_dynamic_seq_len(loaded.plan.positions)
    return config


def _place(loaded: ExLlamaV3Model, config: Any, stage: str, report: LoadStep) -> PlacedModel:
    """A model with its cache, which must be there before the weights are."""
    drafting, options = stage == "draft", loaded.options
    model = _model(loaded, config, "mtp" if drafting and drafts(options).heads else "text")
    bits = cache_bits(draft_cache_type(options) if drafting else options.cache_type)
    layers: dict[str, Any] = {}
    if bits is not None:
        layers = {"layer_type": loaded.library.quantized, "k_bits": bits[0], "v_bits": bits[1]}
    cache = loaded.library.cache(
        model,
        max_num_tokens=loaded.plan.cells,
        max_batch_size=loaded.together,  # of recurrent states
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
    split, progress = split_of(options, draft=stage == "draft"), reporting(stage, report)

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
            tp_dev_limits=dict(options.tensor_parallel_limits),
            max_chunk_size=loaded.chunk,
            callback=callback,
            draft_model=loaded.draft.model if main and loaded.draft else None,
        )
    except BaseException:  # it leaves its cap behind when it fails
        library.unset_memory_fraction(list(range(library.devices)))
        raise


def _image_encoder(loaded: ExLlamaV3Model, config: Any, report: LoadStep) -> ImageEncoder:
    if text := PLACEHOLDERS.get(config.architecture):
        placeholder = loaded.vocabulary.id_of(text)
    else:
        placeholder = config.image_token_id
    if placeholder is None:
        raise UnsupportedModel("the model's files don't define the image placeholder token")
    around = loaded.vocabulary.tokenize(AROUND.get(config.architecture, ""), special=False)
    tower, tokenizer = _model(loaded, config, "vision"), loaded.tokenizer
    _fill_cards(loaded, tower, "vision", report)
    return ImageEncoder(
        embed=lambda picture: tower.get_image_embeddings(tokenizer=tokenizer, image=picture),
        ids=lambda embedding: [*around, *embedding.token_list, *around],
        placeholder=placeholder,
    )


def _adapter(loaded: ExLlamaV3Model, folder: str) -> LoadedAdapter:
    """Raises LoadFailed where exllamav3 would only print that nothing of it fits."""
    adapter = loaded.load_adapter(folder)
    if not adapter.lora.target_modules:
        raise LoadFailed(f"no layer of the adapter {folder} fits the loaded model")
    _unfuse(loaded.main.model, adapter.lora)
    return adapter


class Unfused(dict[int, Any]):
    """In place of an attention's fused kernels, by its caches: there is none."""

    def get(self, key: int, default: Any = None) -> Any:
        return False


def _unfuse(model: Any, lora: Any) -> None:
    """For few tokens exllamav3 1.6.5 computes an attention's or a feed-forward's layers with one
    kernel, which leaves out what adapters add to them: those are computed one by one.
    """
    for name in {key.rpartition(".")[0] for key in lora.target_modules}:
        block = model.modules_dict.get(name)
        if hasattr(block, "bc_attn"):
            block.bc_attn = Unfused()
            block.multi_kv = block.multi_qg = block.multi_qkv = None
        if type(block).__name__ in ("MLP", "GatedMLP"):
            block.bc = None
        if hasattr(block, "multi_gu"):
            block.multi_gu = [None] * len(block.multi_gu)
