"""Options to models in memory: the model, its cache, a draft model, an image encoder, adapters.

Knows exllamav2's constructors and their order, not how it is then stepped. A job's tokens are
drawn by its own sampler where that is greedy or takes a temperature alone, else by
`backends.engines.exllama.jobs.Drawing` in its place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch

from backends.contract.catalog import ModelFiles
from backends.contract.errors import UnsupportedModel
from backends.contract.samplers import Sampling
from backends.engines.exllama import loading
from backends.engines.exllama.files import draft_cache_type, drafts, pages
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
from backends.engines.exllamav2 import model_config
from backends.engines.exllamav2.container import ExLlamaV2Library
from backends.engines.exllamav2.files import cache_size, draft, fitted
from backends.engines.sampling.state import SamplingContext
from backends.engines.vocabulary import HfVocabulary
from config.engines import ExLlamaV2Options

Sampled: TypeAlias = tuple[torch.Tensor, None, None, None, bool]


def theirs(sampling: Sampling, library: ExLlamaV2Library) -> Any:
    """Settings of its sampler with this temperature, and nothing else of its defaults: an
    `ExLlamaV2Sampler.Settings`.
    """
    greedy = sampling.temperature <= 0
    return library.settings(
        token_repetition_penalty=1.0,
        temperature=1.0 if greedy else sampling.temperature,
        top_k=1 if greedy else 0,
        top_p=1.0,
    )


def draw_with(drawing: Drawing, job: Any) -> None:
    """Let `drawing` draw the tokens of `job`, an `ExLlamaV2DynamicJob`."""

    def receive_logits(logits: torch.Tensor) -> Sampled:
        """As the job's own, which is called once for every token: `logits` is (1, 1, padded
        vocabulary), on the CPU. Alternatives and probabilities aren't wanted of it.
        """
        token = drawing.draw(logits)
        return torch.tensor([[token]]), None, None, None, False

    job.receive_logits = receive_logits


MEGABYTE = 1 << 20
SCORES = 512 << 20  # bytes of attention scores at a time, where flash-attn is missing
SCORE_BYTES = 3 * 2  # 16 bits each: the product, with its mask, after softmax
SHORTEST_CHUNK = 16  # prompt tokens


class Picture(msgspec.Struct, frozen=True):
    """How one stands in a prompt: what a chat template writes for it, and what encloses it there.

    exllamav2 encloses a picture's rows with rows of its own for these markers
    (exllamav2/vlm/processor). The tokens themselves stand in their place, so that those which a
    template has written are known. `breaks`: rows of patches end with a marker, of which exllamav2
    has one too many, behind the last.
    """

    placeholder: str
    before: str = ""
    after: str = ""
    breaks: bool = False

    def ids(self, rows: Sequence[int], tokenize: Callable[[str], Sequence[int]]) -> list[int]:
        """What stands in the prompt, where an embedding's own ids are `rows`."""
        if self.breaks:
            return [*rows[:-2], rows[-1]]
        return [*tokenize(self.before), *rows[1:-1], *tokenize(self.after)]


QWEN = Picture("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
PICTURES: Mapping[str, Picture] = {  # by ExLlamaV2Config.vision_model_type
    "pixtral": Picture("[IMG]", breaks=True),
    "qwen2": QWEN,
    "qwen2.5": QWEN,
    "siglip_vision_model": Picture(
        "<start_of_image>", "\n\n<start_of_image>", "<end_of_image>\n\n"
    ),
}


class ExLlamaV2Model(loading.ExLlamaModel):
    """`generator` is an `ExLlamaV2DynamicGenerator`."""

    name = "exllamav2"
    library: ExLlamaV2Library
    options: ExLlamaV2Options
    paged: bool
    _loras: Sequence[Any] = ()  # that count in the coming passes

    def job(self, running: ExLlamaJob, ends: Sequence[int]) -> Any:
        # Without pages there is nothing to share.
        new = running.stretch if self.paged else running.left
        made = self.library.job(
            **self.parts_of_job(running, ends),
            max_new_tokens=new + self.plan.drafted,  # it stops that much earlier
            gen_settings=theirs(running.job.sampling, self.library),
        )
        if running.drawing is not None:
            draw_with(running.drawing, made)
        return made

    def cached(self, job: Any) -> int:
        return int(job.cached_pages * self.generator.page_size + job.cached_tokens)

    def make_generator(self) -> Any:
        generator = self.library.generator(
            **self.parts_of_generator(),
            max_q_size=self.plan.drafted + 1,  # positions computed in one step for one job
            use_ngram_draft=drafts(self.options).repeats,
            paged=self.paged,
            filter_background_eval=False,  # masks are computed on threads of our own
        )
        generator.current_loras = self._loras or None
        return generator

    def use(self, loras: list[Any]) -> None:
        self.main.model.update_loras()  # its kernels have addresses of their tensors
        self._loras = loras
        # Not by `set_loras`: with a list of none exllamav2 asks the first of them for embeddings.
        self.generator.current_loras = loras or None
        if not self.paged:  # what it has of the last prompt is compared token by token
            [page] = self.pages()
            page.kv_position = page.kv_position_revert = 0

    def pages(self) -> Iterable[Any]:
        return self.generator.all_pages  # type: ignore[no-any-return]

    def retire(self, generator: Any) -> None:
        generator.sampling_pool.shutdown(wait=False)


@contextmanager
def undisturbed() -> Iterator[None]:
    """exllamav2 makes its own stream on the last card the thread's current one, and this thread
    will load other models too.
    """
    if not torch.cuda.is_available():
        yield
        return
    stream = torch.cuda.current_stream()
    try:
        yield
    finally:
        torch.cuda.set_stream(stream)  # its card becomes the current one with it


def load(
    files: ModelFiles, options: ExLlamaV2Options, library: ExLlamaV2Library, report: LoadStep
) -> ExLlamaV2Model:
    """Load on the calling thread. Raises LoadFailed and leaves nothing behind."""
    loaded = ExLlamaV2Model(library, options, cache_size(files, options))
    files = fitted(files, options)
    with undisturbed():
        fill(loaded, files, lambda: _load(loaded, files, report))
    return loaded


def _load(loaded: ExLlamaV2Model, files: ModelFiles, report: LoadStep) -> None:
    library, guess = loaded.library, draft(loaded.options)
    config = _config(loaded, files.path)
    loaded.tokenizer = library.tokenizer(config)
    loaded.known_tokens = int(loaded.tokenizer.get_vocab_size())
    loaded.vocabulary = HfVocabulary(files.path, config.vocab_size)
    loaded.paged = _paged(library, config)
    tower = None
    if "image" in files.modalities:
        tower = library.vision(config)
        loaded.unload_later(tower.unload)
        tower.load(callback=reporting("vision", report))
    if guess is not None:
        guessing = _config(loaded, guess.path)
        loaded.paged = loaded.paged and _paged(library, guessing)  # one page table for both
        loaded.draft = _place(loaded, guessing, "draft", report)
    loaded.main = _place(loaded, config, "model", report)
    device = torch.device(loaded.main.model.modules[-1].device())
    loaded.context = SamplingContext(loaded.vocabulary, device)
    loaded.adapters = [*map(loaded.load_adapter, loaded.options.adapters.values())]
    if tower is not None:
        loaded.pictures = ImageEmbeddings(_image_encoder(loaded, tower))
    drafted = loaded.plan.drafted
    together = min(loaded.options.max_concurrent, config.max_input_len // (drafted + 1))
    loaded.info = loaded.describe(files, together=together if loaded.paged else 1)


def _config(loaded: ExLlamaV2Model, folder: Path) -> Any:
    options = loaded.options
    config = model_config.read(loaded.library, folder, loaded.plan.positions)
    # All models of a process share one stream per card (exllamav2/device.py, global_streams), so a
    # CUDA graph captured for one could pick up the kernels another model's thread launches.
    config.no_graphs = True
    config.max_input_len = min(pages(options.chunk_size), loaded.plan.positions)
    if _paged(loaded.library, config):
        # flash-attn counts the tokens before a query, exllamav2's config the query too.
        config.sliding_window = max(0, config.sliding_window - 1)
    else:
        _attend_by_matmul(config, loaded.plan.positions)
    config.max_attention_size = config.max_input_len**2
    if options.rope_scale is not None:
        config.scale_pos_emb = options.rope_scale
    if options.rope_alpha is not None:
        config.scale_alpha_value = options.rope_alpha
    return config


def _attend_by_matmul(config: Any, positions: int) -> None:
    """Without flash-attn exllamav2 0.3.2 calls scaled_dot_product_attention without a causal mask
    (attn.py, `_attn_torch`): every token would see those behind it. Its matmul path masks right. It
    keeps the scores of a whole chunk, so chunks are as long as `SCORES` allows.

    Where a window slides, it gives all queries of a chunk the window of the last: chunks are short
    there, so that hardly anything is missing from the others'.
    """
    config.no_sdpa = True
    row = positions * config.num_attention_heads * SCORE_BYTES
    most = max(SHORTEST_CHUNK, SCORES // row)
    if model_config.slides(config) and positions > config.sliding_window:
        most = SHORTEST_CHUNK
    config.max_input_len = min(config.max_input_len, most)


def _paged(library: ExLlamaV2Library, config: Any) -> bool:
    """Whether flash-attn is there; without it jobs run one after another."""
    try:
        library.assert_paged()
    except AssertionError:
        return False
    return not config.no_flash_attn


def _place(loaded: ExLlamaV2Model, config: Any, stage: str, report: LoadStep) -> PlacedModel:
    library, options = loaded.library, loaded.options
    model = library.model(config)
    model_config.drop_positions(model)
    loaded.unload_later(model.unload)
    drafts = stage == "draft"
    kind = draft_cache_type(options) if drafts else options.cache_type
    cache_class, cells = library.caches[kind], loaded.plan.cells
    callback = reporting(stage, report)
    if split := split_of(options, draft=drafts):
        model.load(gpu_split=split, callback=callback)
        return PlacedModel(model, cache_class(model, max_seq_len=cells))
    cache = cache_class(model, max_seq_len=cells, lazy=True)
    reserve = [
        int(free * MEGABYTE) for free in per_card(options.autosplit_reserve, library.devices)
    ]
    model.load_autosplit(cache, reserve_vram=reserve, last_id_only=True, callback=callback)
    return PlacedModel(model, cache)


def _image_encoder(loaded: ExLlamaV2Model, tower: Any) -> ImageEncoder:
    picture, vocabulary = PICTURES[tower.config.vision_model_type], loaded.vocabulary
    placeholder = vocabulary.id_of(picture.placeholder)
    if placeholder is None:
        raise UnsupportedModel(f"the tokenizer lacks the image placeholder {picture.placeholder}")
    tokenize = partial(vocabulary.tokenize, special=True)
    model, tokenizer = loaded.main.model, loaded.tokenizer
    return ImageEncoder(
        embed=lambda picture: tower.get_image_embeddings(
            model=model, tokenizer=tokenizer, image=picture
        ),
        ids=lambda embedding: picture.ids(embedding.get_ids(), tokenize),
        placeholder=placeholder,
        longest=tower.config.vision_max_size,
    )
