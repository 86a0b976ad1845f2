"""Model lists as Ollama's clients read them, and download progress. Knows no registry."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.dialects.frames import body, line
from gateway.dialects.ollama.presets import Preset
from gateway.dialects.ollama.request import with_tag

# The release whose API is spoken: clients refuse to talk to servers that are too old for them.
SPOKEN = "0.12.0"
FOR_GOOD = datetime(2318, 1, 1, tzinfo=UTC)  # the expiry of a model that never expires
CAPABILITIES: Mapping[str, str] = {
    "tools": "tools",
    "reasoning": "thinking",
    "vision": "vision",
    "embedding": "embedding",
}
OTHER_TASKS = frozenset({"embedding", "rerank"})  # of models that complete nothing


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model. Sizes are bytes, `created` is Unix time."""

    name: str
    created: int
    size: int
    format: str
    family: str
    context_length: int
    capabilities: Sequence[str] = ()
    parent: str = ""  # the model that it was made of


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of model it is; texts that are empty are not known."""

    parent_model: str = ""
    format: str
    family: str
    families: tuple[str, ...]
    parameter_size: str = ""
    quantization_level: str = ""


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model in a list; the last two where it is in memory."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    expires_at: str | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class Models(msgspec.Struct, frozen=True):
    """Some models."""

    models: Sequence[ListedModel]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of one model. Made models alone have a modelfile; no licence is known."""

    modelfile: str = ""
    parameters: str = ""
    template: str
    system: str | UnsetType = UNSET
    license: str = ""
    details: Details
    model_info: Mapping[str, Any]
    capabilities: tuple[str, ...]
    modified_at: str


class Version(msgspec.Struct, frozen=True):
    """Which API is spoken."""

    version: str = SPOKEN


class Status(msgspec.Struct, frozen=True):
    """One step of a download; sizes are bytes."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


def listed(seen: Seen) -> ListedModel:
    """A model in a list."""
    return ListedModel(
        name=with_tag(seen.name),
        model=with_tag(seen.name),
        modified_at=moment(datetime.fromtimestamp(seen.created, UTC)),
        size=seen.size,
        digest=sha256(f"{seen.name} {seen.size} {seen.created}".encode()).hexdigest(),
        details=_details(seen),
    )


def resident(seen: Seen, *, expires: datetime | None, size: int | None) -> ListedModel:
    """A model in memory. `expires`: when it is unloaded if not used; None: never. `size`: bytes it
    takes there; None: those on disk.
    """
    return msgspec.structs.replace(
        listed(seen),
        size=seen.size if size is None else size,
        expires_at=moment(expires or FOR_GOOD),
        context_length=seen.context_length,
    )


def models_body(models: Sequence[ListedModel]) -> bytes:
    """The JSON body that lists `models`, in their order."""
    return body(Models(models))


def show_body(seen: Seen, *, template: str, preset: Preset | None = None) -> bytes:
    """The JSON body of one model; of a made one with what its `preset` says."""
    if preset is not None:
        seen = msgspec.structs.replace(seen, parent=preset.base)
    able = [CAPABILITIES[name] for name in seen.capabilities if name in CAPABILITIES]
    writes = not OTHER_TASKS & set(seen.capabilities)
    return body(
        Shown(
            template=template,
            modelfile=preset.modelfile if preset else "",
            parameters=preset.parameters if preset else "",
            system=preset.system if preset and preset.system else UNSET,
            details=_details(seen),
            model_info={
                "general.architecture": seen.family,
                "general.basename": seen.name,
                f"{seen.family}.context_length": seen.context_length,
            },
            capabilities=("completion", *able) if writes else tuple(able),
            modified_at=moment(datetime.fromtimestamp(seen.created, UTC)),
        )
    )


def version_body() -> bytes:
    """The JSON body of the version."""
    return body(Version())


def pulling(file: str, done: int, total: int) -> bytes:
    """The line of a step of a download."""
    return line(Status(f"pulling {file}", digest=file, total=total, completed=done))


def status_line(status: str) -> bytes:
    """The line of a step that has no size; the last is "success"."""
    return line(Status(status))


def moment(time: datetime) -> str:
    """RFC 3339, in UTC."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _details(seen: Seen) -> Details:
    return Details(
        parent_model=seen.parent, format=seen.format, family=seen.family, families=(seen.family,)
    )
