"""What the options that exllamav2 and exllamav3 share are called elsewhere. No engine."""

from collections.abc import Mapping

from backends.catalog import LoadFacts, Translation, renamed
from config.engines import ExLlamaOptions

LOAD_OPTIONS: Mapping[str, Translation] = {
    "cache_size": renamed("cache_tokens"),
    "gpu_split": renamed("gpu_split"),
    "autosplit_reserve": renamed("autosplit_reserve"),
    "chunk_size": renamed("chunk_size"),
    "draft_model": renamed("draft_model"),
}


def facts(options: ExLlamaOptions, cache_type: str) -> LoadFacts:
    """See `OptionsModule.facts`."""
    return LoadFacts(
        cache_tokens=options.cache_tokens,
        cache_mode=cache_type.upper(),
        chunk_size=options.chunk_size,
        draft_model=options.draft_model,
        adapters=tuple(options.adapters),
    )
