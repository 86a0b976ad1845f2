"""The order of a job's samplers, and which parameters then have no effect. Knows no engine.

The order is that of the field (transformers, vLLM, exllamav2): penalties, DRY, temperature, the
truncations, XTC. `temperature_last` moves the temperature behind them, and `Sampling.samplers` says
all of it. As llama-server has it, a sampler that it knows and such a list leaves out is not
applied; those that only other servers know keep their place.
"""

from collections.abc import Mapping, Sequence

from backends.protocol import Sampling

ORDER = (
    "penalties",
    "dry",
    "temperature",
    "top_n_sigma",
    "top_k",
    "tfs",
    "typical_p",
    "top_p",
    "min_p",
    "top_a",
    "xtc",
)
# Of these llama-server has no sampler, or has given it up: its clients' lists can't mean them.
_ELSEWHERE = frozenset({"tfs", "top_a"})
# What comes first on an engine whose samplers work on tensors, whatever a list says.
FIRST = ("penalties", "dry")

# The fields of each sampler.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "penalties": ("repetition_penalty", "frequency_penalty", "presence_penalty"),
    "dry": ("dry_multiplier",),
    "temperature": ("temperature", "min_temp", "max_temp", "smoothing_factor"),
    "xtc": ("xtc_probability",),
    **{name: (name,) for name in ORDER[3:-1]},
}
_TRUNCATIONS = ORDER[3:]


def order_of(sampling: Sampling) -> tuple[str, ...]:
    """The samplers of `ORDER` that a job may use, in the requested order."""
    if sampling.samplers:
        return _listed(sampling.samplers)
    if sampling.temperature_last:
        return (*(name for name in ORDER if name != "temperature"), "temperature")
    return ORDER


def _listed(names: Sequence[str]) -> tuple[str, ...]:
    order = [name for name in dict.fromkeys(names) if name in FIELDS]
    for name in _TRUNCATIONS:
        if name in _ELSEWHERE and name not in order:
            order.insert(_place(name, order), name)
    return tuple(order)


def _place(name: str, order: Sequence[str]) -> int:
    """Of a truncation that a list can't mean: behind those listed that stand before it in `ORDER`,
    else before the others listed.
    """
    earlier = _TRUNCATIONS[: _TRUNCATIONS.index(name)]
    behind = [place + 1 for place, one in enumerate(order) if one in earlier]
    others = [place for place, one in enumerate(order) if one in _TRUNCATIONS]
    return max(behind) if behind else min(others, default=len(order))


def penalties_first(order: Sequence[str]) -> bool:
    """Whether nothing stands before the penalties and DRY, so far as they are there at all."""
    leading = [name for name in order if name in FIRST]
    return list(order[: len(leading)]) == leading


def fades(sampling: Sampling) -> bool:
    """Whether the repetition penalty decays."""
    return (
        sampling.repetition_penalty != 1
        and sampling.repetition_decay > 0
        and sampling.penalty_range >= 0
    )


def without_effect(sampling: Sampling) -> Mapping[str, str]:
    """The fields that are set but have no effect beside others of `sampling`: why."""
    found: dict[str, str] = {}
    if sampling.samplers:
        used = order_of(sampling)
        for name, fields in FIELDS.items():
            if name not in used:
                found |= dict.fromkeys(fields, "samplers does not list it")
    if sampling.mirostat_mode and sampling.temperature > 0:
        for name in _TRUNCATIONS:
            found |= dict.fromkeys(FIELDS[name], "mirostat takes its place")
        found |= dict.fromkeys(("adaptive_target", "skew"), "mirostat takes its place")
    if sampling.samplers and sampling.temperature_last and order_of(sampling)[-1] != "temperature":
        found["temperature_last"] = "samplers gives the order"
    requested = sampling.requested() if found else ()
    return {name: why for name, why in found.items() if name in requested}
