"""The model list, as `GET /v1/models` and `GET /v1/models/{id}` tell it. Knows no registry."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from backends.protocol import Modality
from gateway.dialects.openai.frames import body


class StatusWire(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp's word for the state, as Open WebUI reads it. `percent` of a load in progress."""

    value: Literal["unloaded", "loading", "loaded"]
    failed: bool = False
    percent: int | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="model"):
    """One model. The first three fields are OpenAI's; null: not known before a load."""

    id: str
    created: int  # Unix time
    owned_by: str = "roundhouse"
    state: str | None = None  # "unloaded", "loading", "loaded", …
    status: StatusWire = StatusWire(value="unloaded")
    why_failed: str | None = None
    aliases: tuple[str, ...] = ()
    backend: str | None = None
    format: str | None = None
    context_length: int | None = None  # tokens
    size_bytes: int | None = None
    modalities: tuple[Modality, ...] = ("text",)
    capabilities: tuple[str, ...] | None = None  # "tools", "reasoning", "vision"
    memory: str | None = None  # the arithmetic: what it needs, and what is free


class CachedRepository(msgspec.Struct, frozen=True):
    """One repository in the hub's local cache; size in bytes."""

    repo_id: str
    repo_type: str
    size_on_disk: int


class ModelList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """All models."""

    data: Sequence[ModelCard]
    models: Sequence[CachedRepository] | UnsetType = UNSET


def model_list(
    cards: Sequence[ModelCard], cached: Sequence[CachedRepository] | UnsetType = UNSET
) -> bytes:
    """The JSON body that lists `cards`, in their order, and what lies in the hub's cache, where asked."""
    return body(ModelList(cards, cached))


def model_card(card: ModelCard) -> bytes:
    """The JSON body that tells one model."""
    return body(card)
