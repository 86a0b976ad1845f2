"""llama-server's bodies, in and out, except those of answers and slots: completions and infill,
tokens, embeddings, properties, settings, the states and loads of models. Knows no model.

Sampling parameters are read as OpenAI's text completion has them, whose fields know llama-server's
names.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backends.contract.protocol import Generation, ModelInfo, Progress
from backends.contract.samplers import Sampling, order_of
from config.values import alike
from gateway.dialects.dialect import body, frame
from gateway.dialects.encoding import (
    EmbeddingExchange,
    EncodingWire,
    Input,
    Token,
    read_encoding,
    read_texts,
    written,
)
from gateway.dialects.fields import (
    Fields,
    fields_of,
    given_fields,
    json_object,
    names_of,
    order_object,
    read_fields,
)
from gateway.dialects.openai.request import read_text_fields
from gateway.terms.errors import GatewayError, InvalidRequest
from gateway.terms.events import Encodings
from gateway.terms.request import (
    EmbeddingRequest,
    Fill,
    FillFile,
    GenerationParams,
    Prompt,
    TextRequest,
    Unapplied,
)

MOST_FIELDS = 64  # of an answer, that a request may choose

_PROMPT_FORMS = (
    "Expected a text, a list of texts and token ids, an object with prompt_string, or a list of "
    "those."
)


class CompletionWire(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that OpenAI's text completion lacks."""

    return_tokens: bool = False
    return_progress: bool = False
    post_sampling_probs: bool = False
    response_fields: Annotated[list[str], Meta(max_length=MOST_FIELDS)] = []


class InfillWire(CompletionWire, frozen=True, kw_only=True):
    """The text around the gap. `prompt` is more of what stands before it."""

    input_prefix: str
    input_suffix: str
    input_extra: "list[ExtraWire]" = []
    prompt: str = ""


class ExtraWire(msgspec.Struct, frozen=True, kw_only=True):
    """Another file of the project."""

    text: str
    filename: str = "tmp"


class CompletionExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A completion, and the form of its answer."""

    request: TextRequest
    response_fields: tuple[str, ...] = ()

    @property
    def choices(self) -> int:
        """How many answers it has."""
        return len(self.request.prompts) * self.request.answering.n


def read_completion(body: bytes) -> CompletionExchange:
    """What a `/completion` body means. Raises InvalidRequest, which names the field."""
    values = json_object(body)
    prompts = read_prompts(values.get("prompt"))
    return _exchange(values, given_fields(values).read(CompletionWire), prompts=prompts)


def read_infill(body: bytes) -> CompletionExchange:
    """What an `/infill` body means. Raises InvalidRequest, which names the field."""
    values = json_object(body)
    wire = given_fields(values).read(InfillWire)
    files = tuple(FillFile(one.filename, one.text) for one in wire.input_extra)
    fill = Fill(wire.input_prefix + wire.prompt, wire.input_suffix, files)
    return _exchange(values, wire, prompts=("",), fill=fill)


def _exchange(
    values: Mapping[str, Any],
    wire: CompletionWire,
    *,
    prompts: tuple[Prompt, ...],
    fill: Fill | None = None,
) -> CompletionExchange:
    own = names_of(type(wire))
    rest = {name: value for name, value in values.items() if name not in own}
    read = read_text_fields(fields_of({**rest, "prompt": ""}), least=0)
    asked = read.request.answering
    answering = msgspec.structs.replace(
        asked,
        after_samplers=wire.post_sampling_probs and asked.logprobs is not None,
        reports_progress=wire.return_progress and asked.streamed,
        returns_tokens=wire.return_tokens or asked.streamed,
        unapplied=_unapplied(asked, wire),
    )
    request = msgspec.structs.replace(
        read.request, prompts=prompts, fill=fill, answering=answering, returns_prompts=True
    )
    return CompletionExchange(request=request, response_fields=tuple(wire.response_fields))


def _unapplied(asked: GenerationParams, wire: CompletionWire) -> tuple[Unapplied, ...]:
    """Progress is reported in streams alone."""
    pointless = wire.return_progress and not asked.streamed
    progress = Unapplied("return_progress", "progress is reported in streams alone")
    return (*asked.unapplied, *((progress,) if pointless else ()))


def read_prompts(value: Any) -> tuple[Prompt, ...]:
    """One prompt, or several: texts, lists of token ids and texts, objects with a text."""
    if value is None:
        raise InvalidRequest.at("prompt", "This field is required.")
    if isinstance(value, list) and not _is_one(value):
        return tuple(_prompt(item, f"prompt[{index}]") for index, item in enumerate(value))
    return (_prompt(value, "prompt"),)


def _is_one(items: list[Any]) -> bool:
    """Whether a list is one prompt: token ids, with or without texts among them. Texts alone are
    prompts of their own. An empty one is faulty either way.
    """
    kinds = {type(item) for item in items}
    return kinds <= {int, str} and kinds != {str}


def _prompt(value: Any, path: str) -> Prompt:
    match value:
        case str(text):
            return text
        case {"prompt_string": str(text)}:
            if value.get("multimodal_data"):
                raise InvalidRequest.at(
                    f"{path}.multimodal_data", "Pictures are taken in chat messages."
                )
            return text
        case {"prompt_string": _}:
            raise InvalidRequest.at(f"{path}.prompt_string", "Expected a text.")
        case [_, *_]:
            return tuple(_part(part, f"{path}[{index}]") for index, part in enumerate(value))
        case []:
            raise InvalidRequest.at(path, "At least one token or text is required.")
    raise InvalidRequest.at(path, _PROMPT_FORMS)


def _part(part: Any, path: str) -> int | str:
    if isinstance(part, bool) or not isinstance(part, int | str):
        raise InvalidRequest.at(path, "Expected a token id or a text.")
    if isinstance(part, int) and not 0 <= part < 2**31:
        raise InvalidRequest.at(path, "Expected a token id.")
    return part


ANY_SEED = 2**32 - 1  # llama.cpp's LLAMA_DEFAULT_SEED
OFF = -1.0  # of top_n_sigma


class BiasWire(msgspec.Struct, frozen=True):
    """The value added to a token's logit. Null: the token is banned (JSON has no infinity)."""

    token: int
    bias: float | None


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one answer, by llama-server's names; settings that this server doesn't have
    are left out. The fields from `stream` on are sent only to the client of the request itself.
    """

    seed: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    samplers: Sequence[str]
    ignore_eos: bool
    n_probs: int
    post_sampling_probs: bool
    n_predict: int
    max_tokens: int
    min_tokens: int
    n_ctx: int
    stream: bool | UnsetType = UNSET
    model: str | UnsetType = UNSET
    stop: Sequence[str] | UnsetType = UNSET
    logit_bias: Sequence[BiasWire] | UnsetType = UNSET
    grammar: str | UnsetType = UNSET


def settings(job: Generation, *, context_length: int) -> GenerationSettings:
    """What `job` says of itself but texts: those are its client's alone."""
    sampling = job.sampling
    limit = -1 if job.max_tokens is None else job.max_tokens
    middle, spread = _temperatures(sampling)
    return alike(GenerationSettings, sampling)(
        seed=ANY_SEED if sampling.seed is None else sampling.seed,
        temperature=middle,
        dynatemp_range=spread,
        dynatemp_exponent=sampling.temp_exponent,
        top_n_sigma=sampling.top_n_sigma or OFF,
        repeat_last_n=sampling.penalty_range,
        repeat_penalty=sampling.repetition_penalty,
        dry_penalty_last_n=sampling.dry_range,
        mirostat=sampling.mirostat_mode,
        samplers=order_of(sampling),
        ignore_eos=sampling.ban_eos,
        n_probs=job.logprobs or 0,
        post_sampling_probs=job.after_samplers,
        n_predict=limit,
        max_tokens=limit,
        min_tokens=job.min_tokens,
        n_ctx=context_length,
        logit_bias=UNSET,
    )


def own_settings(
    job: Generation, *, context_length: int, model: str, stream: bool
) -> GenerationSettings:
    """All of it, for the client whose job it is."""
    return msgspec.structs.replace(
        settings(job, context_length=context_length),
        model=model,
        stream=stream,
        stop=job.stop,
        logit_bias=[BiasWire(token, _finite(bias)) for token, bias in job.sampling.logit_bias],
        grammar=job.constraint.grammar if job.constraint else "",
    )


def _temperatures(sampling: Sampling) -> tuple[float, float]:
    """The middle, and how far it goes to either side."""
    low, high = sampling.min_temp, sampling.max_temp
    if low == high:
        return sampling.temperature, 0.0
    return (low + high) / 2, (high - low) / 2


def _finite(bias: float) -> float | None:
    return bias if math.isfinite(bias) else None


class LoraAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter of a model. `path` is the name of its file or folder."""

    id: int
    name: str
    path: str
    scale: float


NO_MODEL = ("", "undefined", "null")  # what SillyTavern sends where no model is selected


class Tokenize(msgspec.Struct, frozen=True, kw_only=True):
    """A text to tokenize (`content` in llama-server's API, `prompt` in vLLM's), or a conversation
    (`messages`, with the fields of chat completions).
    """

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    inputs: Any = None  # TEI's
    messages: list[Any] | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False
    return_token_strs: bool = False

    @property
    def is_chat(self) -> bool:
        """Whether a conversation is meant: a text goes before it."""
        return self.messages is not None and self.content is None and self.prompt is None

    @property
    def field(self) -> str:
        """What the client calls the text."""
        return "content" if self.prompt is None or self.content is not None else "prompt"

    @property
    def text(self) -> str:
        """What is to be tokenized."""
        text = self.prompt if self.content is None else self.content
        if text is None and self.inputs is not None:
            message = "TEI's form is not taken. Send one text as content, or as prompt."
            raise InvalidRequest.at("inputs", message)
        if text is None:
            raise InvalidRequest.at("content", "This field is required.")
        return text

    @property
    def add_bos(self) -> bool:
        """llama-server adds none by default, vLLM does."""
        if self.content is not None:
            return bool(self.add_special)
        return self.add_special_tokens is not False


# What of `Tokenize` has a meaning beside a conversation, and none to the OpenAI dialect.
OF_CONVERSATIONS = frozenset({"with_pieces", "return_token_strs"})


class Detokenize(msgspec.Struct, frozen=True, kw_only=True):
    """The text of tokens."""

    tokens: list[Token]
    model: str | None = None


class NamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A body that names a model."""

    model: Annotated[str, Meta(min_length=1)]


class MaybeNamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A body that may name a model."""

    model: str | None = None
    force: bool = False


class PieceWire(msgspec.Struct, frozen=True):
    """A token and its text, or its bytes where they are not valid text by themselves."""

    id: int
    piece: str | Sequence[int]


def piece_wire(token: int, piece: bytes) -> PieceWire:
    """`token`, which stands for the bytes `piece`."""
    try:
        return PieceWire(token, piece.decode())
    except UnicodeDecodeError:
        return PieceWire(token, tuple(piece))


class LlamaTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens; `count`, `max_model_len` and `token_strs` are vLLM's."""

    tokens: Sequence[int | PieceWire]
    count: int
    max_model_len: int
    token_strs: Sequence[str] | UnsetType = UNSET


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The special tokens and the template, for clients that render prompts themselves, in vLLM's
    format. Null: the model doesn't have the token, or it is not known before a load.
    """

    tokenizer_class: str
    model_max_length: int
    vocab_size: int
    add_bos_token: bool
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    additional_special_tokens: Sequence[str]
    chat_template: str | None


def tokenizer_info(info: ModelInfo) -> TokenizerInfo:
    """What `info` says of a model's tokenizer."""
    special = info.special
    return TokenizerInfo(
        tokenizer_class=info.backend,
        model_max_length=info.context_length,
        vocab_size=info.vocab_size,
        add_bos_token=info.adds_bos,
        bos_token=special.bos or None,
        eos_token=special.eos or None,
        pad_token=special.pad or None,
        unk_token=special.unk or None,
        additional_special_tokens=special.control,
        chat_template=info.chat_template,
    )


class LlamaText(msgspec.Struct, frozen=True):
    """A text, in llama-server's field and in vLLM's."""

    content: str
    prompt: str


class Rendered(msgspec.Struct, frozen=True):
    """A conversation, rendered with its model's template."""

    prompt: str


class Settings(msgspec.Struct, frozen=True):
    """The default parameters of answers."""

    n_ctx: int
    params: GenerationSettings
    sampling: str | None  # who chose it: "configuration", "model" (its makers), "default" (nobody)


class Modalities(msgspec.Struct, frozen=True):
    """The inputs that the model accepts besides text."""

    vision: bool
    audio: bool = False


class Props(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a model. `chat_template` is never null, because frontends hash it."""

    total_slots: int
    chat_template: str
    default_generation_settings: Settings
    modalities: Modalities
    model_alias: str
    build_info: str
    is_sleeping: bool  # the model is not in memory
    model_path: str | UnsetType = UNSET  # for administrators
    bos_token: str | UnsetType = UNSET  # of a model in memory
    eos_token: str | UnsetType = UNSET


class LoadStages(msgspec.Struct, frozen=True):
    """The progress of a load: `value` is the completed part of its stage, 0 to 1. Only the current
    stage is known.
    """

    stages: Sequence[str]
    current: str
    value: float


class StateData(msgspec.Struct, frozen=True, kw_only=True):
    """A model's state. `failed` and `reason` are set if the model can't be used or its last load
    failed.
    """

    status: str
    progress: LoadStages | UnsetType = UNSET
    failed: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class StateEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of `GET /models/sse`. No data: the model was removed."""

    model: str
    event: Literal["model_status", "model_remove"]
    data: StateData | UnsetType = UNSET


STAGES: Mapping[str, str] = {"vision": "mmproj_model", "draft": "spec_model"}  # else "text_model"


def load_stages(progress: Progress) -> LoadStages:
    """A load's progress in llama-server's words."""
    stage = STAGES.get(progress.stage, "text_model")
    value = min(1.0, progress.done / progress.total) if progress.total > 0 else 0.0
    return LoadStages((stage,), stage, value)


class Success(msgspec.Struct, frozen=True):
    """The action was completed or started."""

    success: bool = True


def read(data: bytes, shape: type[Any]) -> Any:
    """The body as a `shape`; no body is an empty one. It is an order, and short. Raises
    InvalidRequest, naming the field, and TooLarge.
    """
    return _fields(order_object(data)).read(shape)


def read_text(data: bytes, shape: type[Any]) -> tuple[Any, Sequence[Unapplied]]:
    """A body that holds a text or tokens as a `shape`, and what of it says nothing to that.
    Raises as `read`.
    """
    fields = _fields(json_object(data))
    return fields.read(shape), fields.unapplied(shape)


def _fields(values: dict[str, Any]) -> Fields:
    is_named = values.get("model") not in NO_MODEL
    return given_fields(values if is_named else {**values, "model": None})


EUCLIDEAN = 2  # the length of a vector that models are normalized by


class EmbeddingBody(EncodingWire, frozen=True, kw_only=True):
    """Texts or token ids, in either of two fields."""

    content: Input | None = None
    input: Input | None = None
    embd_normalize: int = EUCLIDEAN


class EmbeddedWire(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding of one text."""

    index: int
    embedding: Sequence[list[float] | str]


def read_embedding(content: bytes) -> EmbeddingExchange:
    """What a body of `/embedding` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(EmbeddingBody)
    if wire.embd_normalize != EUCLIDEAN:
        text = "Vectors are normalized by their Euclidean length (2) alone."
        raise InvalidRequest.at("embd_normalize", text)
    field = "content" if wire.content is not None else "input"
    texts = wire.input if wire.content is None else wire.content
    if texts is None:
        raise fields.wrong("content", "This field is required.")
    return EmbeddingExchange(
        request=read_encoding(EmbeddingRequest, fields, wire, field)(
            inputs=read_texts(fields, field, texts)
        ),
    )


def embedding_body(_exchange: EmbeddingExchange, encoded: Encodings) -> bytes:
    """The JSON body of vectors: each in a list of vectors, since where nothing is pooled there is
    one for each token.
    """
    return body(
        [
            EmbeddedWire(index=at, embedding=[written(vector, base64=False)])
            for at, vector in enumerate(encoded.vectors)
        ]
    )


def asks_own_form(content: bytes) -> bool:
    """Whether a body sent to `/embeddings`, which OpenAI's clients call too where they leave out
    `/v1`, has llama-server's field. Raises InvalidRequest.
    """
    return "content" in read_fields(content).values


class ProgressWire(msgspec.Struct, frozen=True):
    """The progress, in the engine's units (bytes if known)."""

    current: int
    total: int


class LlamaLoadEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a load, as `transformers serve` reports it. `cached`: the model was already
    loaded.
    """

    status: Literal["loading", "ready", "error"]
    model: str
    stage: str | UnsetType = UNSET
    progress: ProgressWire | UnsetType = UNSET
    cached: bool | UnsetType = UNSET
    message: str | UnsetType = UNSET


def progress(model: str, news: Progress) -> bytes:
    """Some more is loaded."""
    wire = ProgressWire(news.done, news.total)
    return frame(LlamaLoadEvent(status="loading", model=model, stage=news.stage, progress=wire))


def ready(model: str, *, cached: bool) -> bytes:
    """The last event of a load."""
    return frame(LlamaLoadEvent(status="ready", model=model, cached=cached))


def failed(model: str, error: GatewayError) -> bytes:
    """The last event of a load that failed."""
    return frame(LlamaLoadEvent(status="error", model=model, message=error.message))
