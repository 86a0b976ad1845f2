"""What the model lists tell of a model: the registry's state as the dialects' cards."""

from typing import Any, Literal

from config.engines import (
    EngineOptions,
    ExLlamaOptions,
    ExLlamaV2Options,
    ExLlamaV3Options,
    LlamaCppOptions,
    TransformersOptions,
)
from gateway.answers.capabilities import Known
from gateway.dialects.openai import ModelCard, StatusWire
from gateway.dialects.tabby.reply import CurrentModel, OutputFormat, Parameters
from gateway.registry import ModelStatus


def card(status: ModelStatus, known: Known | None) -> ModelCard:
    """What is known now; a loaded model knows best."""
    return ModelCard(**_fields(status, known))


def current_card(status: ModelStatus, known: Known | None, template: str | None) -> CurrentModel:
    """The card of a model, and what it is loaded with, if it is. `template`: the name of one chosen
    for it.
    """
    recognised = known.recognised if known else None
    return CurrentModel(
        **_fields(status, known),
        parameters=_parameters(status, known, template) if status.info is not None else None,
        output_format=OutputFormat(recognised.format.id, recognised.why) if recognised else None,
    )


def _fields(status: ModelStatus, known: Known | None) -> dict[str, Any]:
    """The fields that both cards have."""
    files, info = status.files, status.info
    return {
        "id": status.id,
        "created": status.entry.created if status.entry else 0,
        "state": status.state,
        "status": status_wire(status),
        "why_failed": status.why_failed,
        "aliases": status.aliases,
        "backend": files.backend if files else None,
        "format": files.format if files else None,
        "context_length": info.context_length if info else files.context_length if files else None,
        "size_bytes": files.size_bytes if files else None,
        "modalities": status.modalities,
        "capabilities": known.capabilities if known else None,
        "memory": status.arithmetic or None,
        "adapters": _adapters(status.options),
    }


def _adapters(options: EngineOptions | None) -> tuple[str, ...]:
    match options:
        case TransformersOptions() | ExLlamaOptions():
            return tuple(options.adapters)
        case _:
            return ()


def status_wire(status: ModelStatus) -> StatusWire:
    """A model that drains still answers, and one that failed isn't there."""
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


def _parameters(status: ModelStatus, known: Known | None, template: str | None) -> Parameters:
    info, options = status.info, status.options
    assert info is not None, "only a loaded model has parameters"
    assert options is not None, "a loaded model was loaded with options"
    scale, alpha = _rope(options)
    return Parameters(
        max_seq_len=info.context_length,
        max_batch_size=info.max_concurrent,
        cache_size=_cache_tokens(options),
        cache_mode=_cache_mode(options),
        rope_scale=scale,
        rope_alpha=alpha,
        chunk_size=_chunk_size(options),
        prompt_template=template,
        prompt_template_content=known.template if known else info.chat_template,
        use_vision="image" in info.modalities,
        draft=options.draft_model if isinstance(options, ExLlamaOptions) else None,
    )


def _cache_tokens(options: EngineOptions) -> int | None:
    match options:
        case LlamaCppOptions() | ExLlamaOptions() | TransformersOptions():
            return options.cache_tokens
        case _:
            return None


def _cache_mode(options: EngineOptions) -> str | None:
    """As TabbyAPI writes it: FP16, Q8, or keys and values apart."""
    match options:
        case ExLlamaV2Options() | ExLlamaV3Options():
            return options.cache_type.upper()
        case LlamaCppOptions(cache_type_k=keys, cache_type_v=values):
            both = (keys,) if keys == values else (keys, values)
            return ",".join(kind.upper().replace("F16", "FP16").removesuffix("_0") for kind in both)
        case _:
            return None


def _rope(options: EngineOptions) -> tuple[float | None, float | None]:
    """Scale of positions, and alpha."""
    match options:
        case ExLlamaV2Options():
            return options.rope_scale, options.rope_alpha
        case LlamaCppOptions(rope_freq_scale=scale) if scale:
            return 1 / scale, None
        case _:
            return None, None


def _chunk_size(options: EngineOptions) -> int | None:
    match options:
        case ExLlamaOptions():
            return options.chunk_size
        case LlamaCppOptions():
            return options.batch_size
        case _:
            return None
