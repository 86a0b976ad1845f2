"""A model's entry in the console, from the registry and the catalog."""

import time

from msgspec.structs import replace

from gateway.answers.capabilities import Known
from gateway.http.console.feed import ModelUpdate
from gateway.http.console.wire import LoadProgress, ModelWire
from gateway.http.services import Services
from gateway.registry import ModelStatus
from gateway.registry.survey import Fit, ModelCost


async def model_updates(services: Services, statuses: list[ModelStatus]) -> list[ModelUpdate]:
    """The models with everything that is known of them."""
    known = await services.capabilities.of_all(statuses)
    default = services.registry.default_name()
    return [_update(services, one, known.get(one.id), default) for one in statuses]


def _update(
    services: Services, status: ModelStatus, known: Known | None, default: str | None
) -> ModelUpdate:
    survey, entry = services.registry.survey, status.entry
    cost = survey.cost(entry) if entry is not None else None
    fit = survey.fit(entry) if entry is not None else Fit(verdict="unknown")
    model = replace(
        _model(status, known, cost, fit),
        default=_is_called(status, default),
        copy_of=services.reloader.copies.get(status.id),
    )
    return ModelUpdate(model, services.without_paths(status.why_failed))


def _is_called(status: ModelStatus, name: str | None) -> bool:
    return name is not None and name in (status.id, *status.aliases)


def _model(status: ModelStatus, known: Known | None, cost: ModelCost | None, fit: Fit) -> ModelWire:
    files, entry, now = status.files, status.entry, time.time()
    left = status.remaining_seconds
    return ModelWire(
        id=status.id,
        aliases=status.aliases,
        state=status.state,
        progress=progress_of(status, cost, now),
        why_failed=status.why_failed,
        backend=files.backend if files else None,
        format=files.format if files else None,
        architecture=files.architecture if files else None,
        remote=files is not None and files.remote is not None,
        context_length=_context_length(status),
        size_bytes=files.size_bytes if files else None,
        modalities=status.modalities,
        capabilities=known.capabilities if known else None,
        pinned=cost.pinned if cost else entry is not None and entry.pinned,
        preload=entry is not None and entry.preload,
        cost=cost.devices if cost else None,
        parts=cost.parts if cost else None,
        measured=cost is not None and cost.measured,
        load_seconds=cost.load_seconds if cost else None,
        missing_bytes=status.missing,
        memory=status.arithmetic or None,
        fit=fit,
        in_use=status.in_use,
        waiting=status.waiting,
        slots=cost.slots if cost else None,
        ttl=cost.ttl if cost else None,
        idle_seconds=status.idle_seconds,
        expires_at=now + left if left is not None else None,
        loaded_at=now - cost.loaded_for if cost and cost.loaded_for is not None else None,
        file=_file(status),
    )


def progress_of(status: ModelStatus, cost: ModelCost | None, now: float) -> LoadProgress | None:
    """While it loads, also before its engine reports anything."""
    if status.state != "loading":
        return None
    progress, since = status.progress, cost.loading_for if cost else None
    since = since or 0.0
    last = cost.load_seconds if cost else None
    return LoadProgress(
        stage=progress.stage if progress else "",
        done=progress.done if progress else 0,
        total=progress.total if progress else 0,
        began_at=now - since,
        seconds_left=max(0.0, last - since) if last is not None else None,
    )


def _context_length(status: ModelStatus) -> int | None:
    if status.info is not None:
        return status.info.context_length or None
    return (status.files.context_length or None) if status.files is not None else None


def _file(status: ModelStatus) -> str | None:
    """The name of the file or folder; None where it is not on this machine."""
    if status.files is None:
        return status.unusable.name if status.unusable is not None else None
    return status.files.path.name if status.files.remote is None else None
