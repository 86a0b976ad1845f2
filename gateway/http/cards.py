"""Entries of the model lists: the registry's state as the dialects' cards."""

from typing import Any, Literal

import msgspec

from backends.catalog import LoadFacts
from gateway.answers.capabilities import Known
from gateway.dialects.openai import ModelCard, OriginWire, StatusWire
from gateway.dialects.tabby.reply import CurrentModel, LoadedParameters, OutputFormat
from gateway.registry import ModelStatus

NO_FACTS = LoadFacts()


def card(status: ModelStatus, known: Known | None, facts: LoadFacts | None) -> ModelCard:
    """What is known now; of a loaded model, from its container. `facts`: of the options in force,
    if any.
    """
    return ModelCard(**_fields(status, known, facts or NO_FACTS))


def placed(card: ModelCard, status: ModelStatus, server: str) -> ModelCard:
    """The card with the model's origin; `server`: this server's id."""
    remote = status.files.remote if status.files else None
    origin = remote.origin if remote is not None else None
    wire = (
        OriginWire(server, card.id, 0)
        if origin is None
        else OriginWire(origin.server, origin.model, origin.hops)
    )
    return msgspec.structs.replace(card, origin=wire)


def current_card(
    status: ModelStatus, known: Known | None, facts: LoadFacts | None, template: str | None
) -> CurrentModel:
    """The card of a model, and what it is loaded with, if it is. `template`: the name of one chosen
    for it.
    """
    facts = facts or NO_FACTS
    recognised = known.recognised if known else None
    return CurrentModel(
        **_fields(status, known, facts),
        parameters=_parameters(status, known, facts, template) if status.info is not None else None,
        output_format=OutputFormat(recognised.format.id, recognised.why) if recognised else None,
    )


def _fields(status: ModelStatus, known: Known | None, facts: LoadFacts) -> dict[str, Any]:
    """The fields that both cards have."""
    files = status.files
    return {
        "id": status.id,
        "created": status.entry.created if status.entry else 0,
        "state": status.state,
        "status": status_wire(status),
        "why_failed": status.why_failed,
        "aliases": status.aliases,
        "backend": files.backend if files else None,
        "format": files.format if files else None,
        "context_length": _context_length(status),
        "size_bytes": files.size_bytes if files else None,
        "modalities": status.modalities,
        "capabilities": known.capabilities if known else None,
        "memory": status.arithmetic or None,
        "missing_bytes": status.missing,
        "in_use": status.in_use,
        "waiting": status.waiting,
        "adapters": facts.adapters,
    }


def _context_length(status: ModelStatus) -> int | None:
    """None too where another server doesn't report it."""
    if status.info is not None:
        return status.info.context_length or None
    if status.files is None:
        return None
    trained = status.files.context_length
    wanted = status.options.context_length if status.options is not None else None
    return (min(wanted, trained) if wanted and trained else trained) or None


def status_wire(status: ModelStatus) -> StatusWire:
    """A draining model counts as loaded, and one that failed as not loaded."""
    values: dict[str, Literal["unloaded", "loading", "loaded"]] = {
        "loading": "loading",
        "loaded": "loaded",
        "draining": "loaded",
    }
    progress = status.progress
    percent = 100 * progress.done // progress.total if progress and progress.total > 0 else None
    return StatusWire(
        value=values.get(status.state, "unloaded"), failed=status.state == "failed", percent=percent
    )


def _parameters(
    status: ModelStatus, known: Known | None, facts: LoadFacts, template: str | None
) -> LoadedParameters:
    info = status.info
    assert info is not None, "only a loaded model has parameters"
    return LoadedParameters(
        max_seq_len=info.context_length,
        max_batch_size=info.max_concurrent,
        cache_size=facts.cache_tokens,
        cache_mode=facts.cache_mode,
        rope_scale=facts.rope_scale,
        rope_alpha=facts.rope_alpha,
        chunk_size=facts.chunk_size,
        prompt_template=template,
        prompt_template_content=known.template if known else info.chat_template,
        use_vision="image" in info.modalities,
        draft=facts.draft_model,
    )
