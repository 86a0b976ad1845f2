"""TabbyAPI's answers: events of a load's progress, and small bodies. Frames are `data:` lines of
JSON.

A load is reported in phases (vision, draft, model). Each ends with one `finished`; clients count
those. `module` of `modules` are the engine's own units: bytes, where it knows them.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from backends.protocol import Progress
from gateway.dialects.frames import body, frame
from gateway.dialects.openai.models import ModelCard

Phase: TypeAlias = Literal["vision", "draft", "model", "embedding_model"]

_PHASES: Mapping[str, Phase] = {"vision": "vision", "draft": "draft"}


class TabbyLoadEvent(msgspec.Struct, frozen=True):
    """One step of a load."""

    model_type: Phase
    module: int
    modules: int
    status: Literal["processing", "finished"]


class LoadReply:
    """The events of one load."""

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._modules = 1

    def progress(self, progress: Progress) -> bytes:
        """Frames for `progress`. A new phase ends the one before."""
        phase = _PHASES.get(progress.stage, "model")
        ended = self._finished() if self._phase not in (None, phase) else b""
        self._phase, self._modules = phase, max(1, progress.total)
        module = min(progress.done, self._modules)
        return ended + frame(TabbyLoadEvent(phase, module, self._modules, "processing"))

    def loaded(self) -> bytes:
        """The last frames. A model that was there already took one step."""
        if self._phase is None:
            return self.progress(Progress("model", 1, 1)) + self._finished()
        if self._phase != "model":
            return self._finished() + self.progress(Progress("model", 1, 1)) + self._finished()
        return self._finished()

    def _finished(self) -> bytes:
        assert self._phase is not None, "a phase begins before it ends"
        return frame(TabbyLoadEvent(self._phase, self._modules, self._modules, "finished"))


def load_body() -> bytes:
    """The one answer for clients that don't request a stream."""
    return body(TabbyLoadEvent("model", 1, 1, "finished"))


def embedding_load_body() -> bytes:
    """The same of an embedding model."""
    return body(TabbyLoadEvent("embedding_model", 1, 1, "finished"))


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


class OutputFormat(msgspec.Struct, frozen=True):
    """The format of reasoning and tool calls, and the reason why it was chosen."""

    id: str
    why: str


class CurrentModel(ModelCard, frozen=True, kw_only=True, tag_field="object", tag="model"):
    """The model for requests without a name; `parameters` are null while it isn't loaded."""

    parameters: LoadedParameters | None
    output_format: OutputFormat | None = None


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


def service_info(*, openai: bool, koboldai: bool) -> bytes:
    """What this server is and which of the APIs it speaks that this document has names for."""
    api = {"openai": OPENAI} if openai else {}
    return body(ServiceInfo(api={**api, "koboldai": KOBOLDAI} if koboldai else api))


def permission(*, is_admin: bool) -> bytes:
    """The body of `/v1/auth/permission`."""
    return body(Permission("admin" if is_admin else "api"))


NULL = b"null"  # TabbyAPI's empty answer
