"""The model list, as `GET /v1/models` and `GET /v1/models/{id}` tell it. Knows no registry."""

from collections.abc import Sequence

import msgspec

from backends.protocol import Modality
from gateway.dialects.openai.frames import body


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="model"):
    """One model. The first three fields are OpenAI's; null: not known before a load."""

    id: str
    created: int  # Unix time
    owned_by: str = "roundhouse"
    state: str | None = None  # "unloaded", "loading", "loaded", …
    backend: str | None = None
    format: str | None = None
    context_length: int | None = None  # tokens
    size_bytes: int | None = None
    modalities: tuple[Modality, ...] = ("text",)
    capabilities: tuple[str, ...] = ()


class ModelList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """All models."""

    data: Sequence[ModelCard]


def model_list(cards: Sequence[ModelCard]) -> bytes:
    """The JSON body that lists `cards`, in their order."""
    return body(ModelList(cards))


def model_card(card: ModelCard) -> bytes:
    """The JSON body that tells one model."""
    return body(card)
