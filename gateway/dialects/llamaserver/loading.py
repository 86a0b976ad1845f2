"""A load as `transformers serve` reports it: events with a `status`, at last `ready` or `error`."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from backends.protocol import Progress
from gateway.dialects.frames import frame
from gateway.errors import GatewayError


class ProgressWire(msgspec.Struct, frozen=True):
    """How far: the engine's own units (bytes, where it knows them)."""

    current: int
    total: int


class LlamaLoadEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `cached`: the model was there already."""

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
