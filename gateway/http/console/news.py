"""What can happen, and who is told of it how. Pure.

This is the one place where it is decided: the lists that can be asked for go the same way as the
events.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from gateway.access import Access
from gateway.http.console.wire import GaugesWire, HistoryWire, ModelWire
from gateway.http.request_record import RequestStanding
from gateway.hub import DownloadState
from gateway.logs import LogLine
from gateway.reloading import ReloadReport


class ModelNews(msgspec.Struct, frozen=True):
    """A model as it is now. `told`: why it failed, without places on the disk."""

    model: ModelWire
    told: str | None


class ModelGone(msgspec.Struct, frozen=True):
    """There is no such model any more."""

    id: str


class RequestNews(msgspec.Struct, frozen=True):
    """A request as it is now, and whose it is."""

    owner: str
    standing: RequestStanding


class DownloadGone(msgspec.Struct, frozen=True):
    """A download is not listed any more."""

    id: str


class Reloaded(msgspec.Struct, frozen=True):
    """Another configuration is in force: which options changed, and which wait for a restart."""

    changed: Sequence[str]
    restart: Sequence[str]


def reloaded(report: ReloadReport) -> Reloaded:
    """The news of a reload."""
    return Reloaded(report.changed, report.restart)


News: TypeAlias = (
    ModelNews
    | ModelGone
    | RequestNews
    | GaugesWire
    | DownloadState
    | DownloadGone
    | LogLine
    | Reloaded
)
Told: TypeAlias = tuple[str, msgspec.Struct]  # the event's name, and its data


def told(news: News, access: Access) -> Told | None:
    """What the holder of a key is told; None: nothing."""
    match news:
        case ModelNews(model=model):
            return ("model", seen_model(news, access)) if access.allows(model.id) else None
        case ModelGone(id=id):
            return ("model_removed", news) if access.allows(id) else None
        case RequestNews(owner=owner, standing=standing):
            return ("request", standing) if access.oversees(owner) else None
        case GaugesWire():
            return "gauges", seen_gauges(news, access)
        case DownloadState():
            return ("download", news) if access.role == "admin" else None
        case DownloadGone():
            return ("download_removed", news) if access.role == "admin" else None
        case LogLine():
            return ("log", news) if access.role == "admin" else None
        case Reloaded():
            return ("reloaded", news) if access.role == "admin" else None


def seen_model(news: ModelNews, access: Access) -> ModelWire:
    """Who is no administrator learns nothing of other models, nor where files lie."""
    if access.role == "admin":
        return news.model
    return replace(
        news.model,
        why_failed=news.told,
        memory=None,
        fit=None,
        missing_bytes=None,
        cost=None,
        parts=None,
        file=None,
        copy_of=None,
    )


def seen_gauges(gauges: GaugesWire, access: Access) -> GaugesWire:
    """Who waits for the caller's models; memory, and how fast others are answered, is for
    administrators.
    """
    if access.role == "admin":
        return gauges
    models = [
        replace(one, tokens_per_second=0.0, prompt_tokens_per_second=0.0, ttft=None)
        for one in gauges.models
        if access.allows(one.id)
    ]
    return replace(
        gauges,
        devices=(),
        models=models,
        waiting=sum(one.waiting for one in models),
        in_use=sum(one.in_use for one in models),
        tokens_per_second=0.0,
    )


def seen_history(history: HistoryWire, access: Access) -> HistoryWire:
    """It is for administrators; others get an empty one."""
    return history if access.role == "admin" else replace(history, times=(), devices={}, models={})
