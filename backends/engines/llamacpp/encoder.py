"""llama.cpp for models that make vectors or rank: many texts in one pass, each a sequence of its
own; llama.cpp pools them by what the file says.

A pair goes in as llama-server has it (`format_prompt_rerank`), but that of a WordPiece vocabulary
ends with a separator too, as the models were trained.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec
import numpy as np
import numpy.typing as npt

from backends.contract.catalog import ModelFiles
from backends.contract.encoder import EncoderInput
from backends.contract.errors import GenerationFailed
from backends.contract.protocol import ModelInfo, Reading, Vectors
from backends.engines.encoder_driver import Pass
from backends.engines.llamacpp import load_log, loading
from backends.engines.llamacpp.batch import Batch
from backends.engines.llamacpp.library import Context, api
from backends.engines.llamacpp.memory import (
    ENCODERS,
    MEAN,
    MOST_ROWS,
    POOLINGS,
    RANK,
    estimate,
    pass_length,
    text_length,
)
from backends.engines.llamacpp.vocabulary import LlamaVocabulary, text_of
from backends.engines.tokenizing import known_info
from config.engines import LlamaCppOptions

UNSPECIFIED = -1  # llama_pooling_type: as the file says


class LlamaEncoderModel(loading.LoadedLlama, frozen=True, kw_only=True):
    """A model that makes vectors or ranks."""

    most: Pass
    width: int  # values that the context gives for each text


def load(
    files: ModelFiles, options: LlamaCppOptions, progress: Callable[[float], bool]
) -> LlamaEncoderModel:
    """As `loading.load`: on the calling thread, abandoned when `progress` returns False.

    Raises LoadFailed or OutOfMemory and leaves nothing behind.
    """
    load_log.listen()
    with ExitStack() as undone:
        under_way = loading.Loading(files, options, progress, undone)
        model = under_way.weights()
        vocabulary = under_way.vocabulary(model)
        context = _make_context(model, under_way)
        if loading.on_device(options):
            loading.warm_up(context, at_once=options.micro_batch_size)
        length, ranks = text_length(files, options), api.llama_pooling_type(context) == RANK
        width = api.llama_model_n_cls_out(model) if ranks else api.llama_model_n_embd_out(model)
        return LlamaEncoderModel(
            context=context,
            vocabulary=vocabulary,
            info=msgspec.structs.replace(
                known_info(files, vocabulary, length=length, together=options.max_concurrent),
                layers=load_log.layers(),
                memory=load_log.memory_taken(files) or estimate(files, options, files.size_bytes),
                task="rank" if ranks else "embed",
                vectors=None if ranks else Vectors(width=width, normalized=True),
                reading=_reading(model, vocabulary),
            ),
            most=Pass(rows=MOST_ROWS, tokens=pass_length(files, options), pads=False),
            width=width,
            threads=loading.step_threads(context, options),
            on_device=loading.on_device(options),
            held=undone.pop_all(),
        )


def _make_context(model: api.llama_model_p, under_way: loading.Loading) -> Context:
    files, options = under_way.files, under_way.options
    tokens = pass_length(files, options)
    own = text_of(model, f"{files.architecture}.pooling_type".encode())
    bare = files.architecture in ENCODERS and own not in map(str, POOLINGS.values())
    params = api.llama_context_default_params()
    params.embeddings = True
    params.pooling_type = MEAN if bare else UNSPECIFIED
    if options.pooling is not None:
        params.pooling_type = POOLINGS[options.pooling]
    params.n_ctx = params.n_batch = params.n_ubatch = tokens
    params.n_seq_max = MOST_ROWS
    params.kv_unified = True
    return under_way.context_of(model, params, f"passes of {tokens} tokens")


def _reading(model: api.llama_model_p, vocabulary: LlamaVocabulary) -> Reading:
    vocab = vocabulary.pointer
    before, after = vocabulary.frame()
    template = text_of(model, b"tokenizer.chat_template.rerank")
    if template:
        begin, _, rest = template.partition("{query}")
        between, _, end = rest.partition("{document}")
        first, inside, behind = (
            vocabulary.tokenize(text, special=True) for text in (begin, between, end)
        )
        return Reading(before=before, after=after, pair=(first, inside, behind), joined=True)
    bos = _ids(api.llama_vocab_bos(vocab)) if api.llama_vocab_get_add_bos(vocab) else ()
    sep = _ids(api.llama_vocab_sep(vocab)) if api.llama_vocab_get_add_sep(vocab) else ()
    eos = _ids(api.llama_vocab_eos(vocab)) if api.llama_vocab_get_add_eos(vocab) else ()
    return Reading(before=before, after=after, pair=(bos, (*eos, *sep), eos or sep))


def _ids(token: int) -> tuple[int, ...]:
    return () if token == api.LLAMA_TOKEN_NULL else (token,)


class LlamaCppEncoder:
    """See `backends.engines.encoder_driver.EncoderEngine`. Owns the model and the context it was
    given.
    """

    def __init__(self, loaded: LlamaEncoderModel) -> None:
        self._loaded = loaded
        self._context = loaded.context
        self._memory = api.llama_get_memory(loaded.context)
        self._compute = api.llama_decode if self._memory else api.llama_encode
        self._batch = Batch(loaded.most.tokens)
        self.info: ModelInfo = loaded.info
        self.most: Pass = loaded.most
        self.tokenize = loaded.vocabulary.tokenize
        self.detokenize = loaded.vocabulary.detokenize

    def encode(self, inputs: Sequence[EncoderInput]) -> Sequence[bytes]:
        self._batch.clear()
        for row, one in enumerate(inputs):
            self._batch.chunk(list(one.tokens), 0, row, last=True, every=True)
        if self._memory:
            api.llama_memory_clear(self._memory, False)
        self._loaded.threads.begin(self._batch.rows)
        code = self._compute(self._context, self._batch.ready())
        if self._loaded.on_device:
            api.llama_synchronize(self._context)  # wait here, without the GIL
        self._loaded.threads.end()
        if code:
            raise GenerationFailed(f"llama.cpp could not encode the texts (code {code})")
        return [self._vector(row) for row in range(len(inputs))]

    def _vector(self, row: int) -> bytes:
        there = api.llama_get_embeddings_seq(self._context, row)
        vector = np.ctypeslib.as_array(there, shape=(self._loaded.width,))
        return (_score(vector) if self.info.task == "rank" else _normalized(vector)).tobytes()

    def recover(self) -> None:
        """A pass leaves nothing behind."""

    def close(self) -> None:
        self._loaded.free()


def _normalized(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    length = np.linalg.norm(vector)
    return (vector / length).astype(np.float32) if length else vector


def _score(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """From 0 to 1. Of one output it is the logit; of several, the probability of the first."""
    first = scores[:1]
    chance = 1 / (1 + np.exp(-first.astype(np.float64)))
    return chance.astype(np.float32) if len(scores) == 1 else first
