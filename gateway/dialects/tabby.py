"""TabbyAPI's dialect: loading, tokens, templates, overrides. Its completions are OpenAI's.

Pure: bytes in, structs out; structs and progress in, bytes out. Frames are `data:` lines of JSON.

Its load options become options of our engines; one that an engine lacks is named. A name that
TabbyAPI doesn't have passes through: it may be one of ours, and the load refuses it if it isn't.
Options that run code or name files are the configuration's alone.

A load is reported in phases (vision, draft, model). Each ends with one `finished`; clients count
those. `module` of `modules` are the engine's own units: bytes, where it knows them.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from backends.contract.protocol import Progress
from config.values import alike
from gateway.dialects.dialect import Dialect, frame
from gateway.dialects.encoding import Token
from gateway.dialects.fields import Fields, given_fields, json_object, order_object
from gateway.dialects.models import ModelCard, problem
from gateway.terms.errors import InvalidRequest

DIALECT = Dialect(name="Tabby", tag="TabbyAPI", error=problem)


Positive: TypeAlias = Annotated[float, Meta(gt=0)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Size: TypeAlias = Annotated[int, Meta(ge=1)]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]

# The names of older versions, which the loader extension of SillyTavern still sends.
_OLD_NAMES: Mapping[str, str] = {"name": "model_name", "draft": "draft_model"}


class LoadWire(msgspec.Struct, frozen=True, kw_only=True):
    """The options that TabbyAPI has, with their types. Other fields are kept unchanged."""

    model_name: Name
    backend: str | None = None
    prompt_template: str | None = None
    vision: bool | None = None
    draft_model: dict[str, Any] | None = None
    max_seq_len: Annotated[int, Meta(ge=-1)] | None = None
    cache_size: Size | None = None
    cache_mode: str | None = None
    max_batch_size: Size | None = None
    chunk_size: Size | None = None
    rope_scale: Positive | None = None
    rope_alpha: Positive | str | None = None
    gpu_split: list[float] | None = None
    gpu_split_auto: bool | None = None
    autosplit_reserve: list[float] | None = None
    tensor_parallel: bool | None = None
    tensor_parallel_backend: str | None = None
    output_chunking: bool | None = None
    cpu_moe_offload_layers: Count | None = None
    sysmem_kv_cache: Count | None = None
    sysmem_recurrent_cache: Count | None = None
    skip_queue: bool | None = None
    fasttensors: bool | None = None


class DraftWire(msgspec.Struct, frozen=True, kw_only=True):
    """The types of what TabbyAPI has in `draft_model`."""

    draft_model_name: str | None = None
    draft_mode: str | None = None
    draft_rope_scale: Positive | None = None
    draft_rope_alpha: Positive | str | None = None
    draft_cache_mode: str | None = None
    draft_gpu_split: list[float] | None = None
    draft_num_tokens: Size | None = None
    dynamic_draft: bool | None = None
    ngram_match_min: Size | None = None


_APART = frozenset(
    {"model_name", "backend", "prompt_template", "vision", "draft_model", "draft_model_name"}
)
LOAD_OPTIONS = frozenset((*LoadWire.__struct_fields__, *DraftWire.__struct_fields__)) - _APART


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Load a model. `asked`: options by TabbyAPI's names or ours; see `engine_options`."""

    model: str
    backend: str | None = None
    template: str | None = None
    vision: bool | None = None
    draft: str | None = None  # the name of the model that drafts
    asked: Mapping[str, Any] = {}


class UnloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The model to unload; without a name, all. `force` aborts running answers."""

    model: str | None = None
    force: bool = False


class EmbeddingLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load an embedding model. The engine's options determine the device."""

    embedding_model_name: Name
    embeddings_device: str | None = None


class SpecialFlags(msgspec.Struct, frozen=True, kw_only=True):
    """How special tokens are treated."""

    add_bos_token: bool = True
    encode_special_tokens: bool = True
    decode_special_tokens: bool = True


class Encode(SpecialFlags, frozen=True, kw_only=True):
    """A text to tokenize. A list is a conversation with the fields of chat completions."""

    text: str | list[Any]
    model: str | None = None


class Decode(SpecialFlags, frozen=True, kw_only=True):
    """The text of tokens."""

    tokens: list[Token]
    model: str | None = None


class TemplateSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """The chat template to use, for one model or for the loaded ones."""

    prompt_template_name: Name
    model: str | None = None


class TemplateUnload(msgspec.Struct, frozen=True, kw_only=True):
    """Back to the model's own template."""

    model: str | None = None


class OverrideSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """New sampling overrides: a preset by name, or the values themselves. The preset takes
    precedence.
    """

    preset: str | None = None
    overrides: dict[str, Any] | None = None


class Lora(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter and its weight."""

    name: Name
    scaling: float = 1.0


class LoraLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Put adapters on a loaded model."""

    loras: list[Lora]
    model: str | None = None


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """A repository of the hub to download. `include` and `exclude` are fnmatch patterns."""

    repo_id: Name
    repo_type: str = "model"
    folder_name: str | None = None
    revision: str | None = None
    token: str | None = None
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    timeout: Positive | None = None  # seconds for all of it
    stream: bool = False


def read_load(body: bytes) -> LoadRequest:
    """What a `/v1/model/load` body wants, in its new or its old form. Raises InvalidRequest."""
    fields = given_fields(order_object(body), _OLD_NAMES)
    wire = fields.read(LoadWire)
    asked = {
        name: getattr(wire, name) if name in LOAD_OPTIONS else value
        for name, value in fields.values.items()
        if name not in _APART
    }
    draft = _draft(fields, wire.draft_model or {})
    return alike(LoadRequest, wire)(
        model=wire.model_name,
        template=wire.prompt_template or None,
        draft=draft.pop("draft_model_name", None),
        asked={**asked, **draft},
    )


def _draft(fields: Fields, wire: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of drafts, the model's name among it; nothing where none is named or wanted."""
    prefix = f"{fields.spelled.get('draft_model', 'draft_model')}."
    given = {name: value for name, value in wire.items() if value is not None}
    known = Fields(given, {}, prefix).read(DraftWire)
    asked = {name: getattr(known, name) for name in DraftWire.__struct_fields__ if name in given}
    if known.draft_mode not in (None, "model"):
        asked.pop("draft_model_name", None)
    elif not known.draft_model_name:
        return {}
    if strange := next((name for name in given if _asks(name, given[name], asked)), None):
        raise InvalidRequest(
            f"{prefix}{strange}: Not supported by any engine.", param=prefix + strange
        )
    return asked


def _asks(name: str, value: object, known: Mapping[str, Any]) -> bool:
    """Whether it is not `known`, and wishes for something."""
    return name not in known and name != "draft_model_name" and value not in ([], 1.0, "auto")


def as_chat(body: bytes) -> bytes:
    """An encode call's body whose `text` is a conversation, as the OpenAI dialect reads it."""
    values = json_object(body)
    return msgspec.json.encode({**values, "messages": values["text"]})


Options: TypeAlias = dict[str, Any]
Translation: TypeAlias = Callable[[Any], Mapping[str, Any]]

_ANY: Mapping[str, Translation] = {
    "max_seq_len": lambda value: {"context_length": value},
    "max_batch_size": lambda value: {"max_concurrent": value},
}

# What frontends send in every body, and what it then means: nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "max_seq_len": (-1,),
    "rope_scale": (1.0,),
    "rope_alpha": (1.0, "auto"),
    "gpu_split": ([],),
    "gpu_split_auto": (True, False),  # a split itself says that it is not automatic
    "autosplit_reserve": ([],),
    "cache_mode": ("FP16", "fp16"),
    "tensor_parallel": (False,),
    "tensor_parallel_backend": ("native",),
    "draft_mode": ("model",),  # the one that is named, if one is
    "draft_cache_mode": ("FP16", "fp16"),
    "draft_gpu_split": ([],),
    "draft_rope_scale": (1.0,),
    "draft_rope_alpha": (1.0, "auto"),
    "dynamic_draft": (False,),
    "output_chunking": (True, False),
    "skip_queue": (True, False),
    "fasttensors": (True, False),
}


def engine_options(
    asked: Mapping[str, Any],
    backend: str,
    own: Mapping[str, Translation],
    configured_only: Collection[str],
) -> Options:
    """The options of `backend` that `asked` means. `own`: how it translates TabbyAPI's; what is
    `configured_only` no request may set.

    Raises InvalidRequest, which names the option as the client wrote it.
    """
    known = {**_ANY, **own}
    automatic = asked.get("gpu_split_auto") is True  # then a split is only a leftover of the form
    options: Options = {}
    for name, value in asked.items():
        if value in _NEUTRAL.get(name, ()) or (automatic and name == "gpu_split"):
            continue
        if name in configured_only:
            text = f"{name} runs code or refers to files; it can only be set in the configuration"
            raise InvalidRequest(text, param=name)
        if name in known:
            options = joined(options, _translated(known[name], name, value))
        elif name in LOAD_OPTIONS:
            raise InvalidRequest(f"{backend} has no option like {name}", param=name)
        else:
            options[name] = value
    return options


def joined(options: Mapping[str, Any], others: Mapping[str, Any]) -> Options:
    """Both; of an option with parts (`draft`) the parts of both."""
    both = {**options, **others}
    for name in options.keys() & others.keys():
        if isinstance(options[name], Mapping) and isinstance(others[name], Mapping):
            both[name] = {**options[name], **others[name]}
    return both


def _translated(translation: Translation, name: str, value: Any) -> Mapping[str, Any]:
    try:
        return translation(value)
    except ValueError as error:
        raise InvalidRequest.at(name, error) from None


Phase: TypeAlias = Literal["vision", "draft", "model", "embedding_model"]

_PHASES: Mapping[str, Phase] = {"vision": "vision", "draft": "draft"}


class TabbyLoadEvent(msgspec.Struct, frozen=True):
    """One step of a load."""

    model_type: Phase
    module: int
    modules: int
    status: Literal["processing", "finished"]


class LoadReply(msgspec.Struct, eq=False):
    """The events of one load."""

    _phase: Phase | None = None
    _modules: int = 1

    def progress(self, progress: Progress) -> bytes:
        """Frames for `progress`. A new phase ends the one before."""
        phase = _PHASES.get(progress.stage, "model")
        ended = self._finished() if self._phase not in (None, phase) else b""
        self._phase, self._modules = phase, max(1, progress.total)
        module = min(progress.done, self._modules)
        return ended + frame(TabbyLoadEvent(phase, module, self._modules, "processing"))

    def loaded(self) -> bytes:
        """The last frames. A model that was there already took one step."""
        begun = b"" if self._phase == "model" else self.progress(Progress("model", 1, 1))
        return begun + self._finished()

    def _finished(self) -> bytes:
        assert self._phase is not None, "a phase begins before it ends"
        return frame(TabbyLoadEvent(self._phase, self._modules, self._modules, "finished"))


# The one answer for clients that don't request a stream; and that of an embedding model.
LOADED = TabbyLoadEvent("model", 1, 1, "finished")
EMBEDDING_LOADED = TabbyLoadEvent("embedding_model", 1, 1, "finished")


class LoadedParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a loaded model. Null: not known, or the model's default."""

    max_seq_len: int
    max_batch_size: int
    cache_size: int | None
    cache_mode: str | None
    rope_scale: float | None
    rope_alpha: float | None
    chunk_size: int | None
    prompt_template: str | None
    prompt_template_content: str | None
    use_vision: bool
    draft: str | None = None


class CurrentModel(ModelCard, frozen=True, kw_only=True, tag_field="object", tag="model"):
    """The model for requests without a name; `parameters` are null while it isn't loaded."""

    parameters: LoadedParameters | None


class Permission(msgspec.Struct, frozen=True):
    """The permissions of a key."""

    permission: Literal["admin", "api"]


class TabbyTokens(msgspec.Struct, frozen=True):
    """Tokens and their number."""

    tokens: tuple[int, ...]
    length: int


class TabbyText(msgspec.Struct, frozen=True):
    """The text of tokens."""

    text: str


class Names(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """A list of names, or of anything else."""

    data: tuple[Any, ...] = ()


class LoraCard(msgspec.Struct, frozen=True, tag_field="object", tag="lora"):
    """An adapter of a model."""

    id: str
    scaling: float
    owned_by: str = "roundhouse"


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """The active sampling overrides. `presets` are listed for administrators only."""

    selected_preset: str | None
    overrides: Mapping[str, Any]
    presets: tuple[str, ...] = ()


class Downloaded(msgspec.Struct, frozen=True):
    """The location of a download."""

    download_path: str


class DownloadEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a download: `done` of `total` bytes. `file` is the current file, `model` the
    downloaded model with its chosen quantization.
    """

    status: Literal["downloading", "finished"]
    done: int
    total: int
    file: str | None = None
    model: str | None = None
    download_path: str | None = None


class Software(msgspec.Struct, frozen=True):
    """The server's software."""

    name: str = "Roundhouse"
    repository: str = ""
    homepage: str = ""


class Api(msgspec.Struct, frozen=True):
    """One API and its base path."""

    name: str
    relative_url: str
    documentation: str
    version: int


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The document at `/.well-known/serviceinfo` (lite.koboldai.net's, version 0.1)."""

    version: float = 0.1
    software: Software = Software()
    api: Mapping[str, Api] = {}


OPENAI = Api("OpenAI API", "/v1", "https://platform.openai.com/docs/api-reference", 1)
KOBOLDAI = Api("KoboldAI API", "/api", "https://lite.koboldai.net/koboldcpp_api", 1)


def service_info(*, openai: bool, koboldai: bool) -> ServiceInfo:
    """What this server is and which of the APIs it speaks that this document has names for."""
    api = {"openai": OPENAI} if openai else {}
    return ServiceInfo(api={**api, "koboldai": KOBOLDAI} if koboldai else api)
