"""The parameters of sampling: a row for each, and the order in which samplers are applied.

All that is known of a parameter without an engine stands at its field of `Sampling`: its type and
neutral value, the range that every engine can take, what clients call it and send, the sampler that
it switches on, the slider that people move. The fields stand in the order of their samplers:
penalties, DRY, temperature, truncations, XTC, as is usual in the field (transformers, vLLM,
exllamav2). `temperature_last` moves the temperature behind the others, and `Sampling.samplers`
gives the whole order. As llama-server has it, a sampler that it knows and such a list leaves out is
not applied; those that only other servers know keep their place.

How a sampler is computed is in the engines. This module knows none of them.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

Extent = Literal["context", "vocabulary"]
Pairs: TypeAlias = tuple[tuple[int, float], ...]  # of token ids and what is added to their logits


class Sizes(Protocol):
    """What the bounds of sampling ask of a model."""

    @property
    def context_length(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...


Info_contra = TypeVar("Info_contra", contravariant=True)


class Bound(msgspec.Struct, Generic[Info_contra], frozen=True):
    """What one field may hold: anything, unless a subclass says otherwise. `Info_contra`: what is
    asked of the model for it.
    """

    def fault(self, value: Any) -> str | None:
        """Why `value` can't be, whatever the model; None where it can."""
        return None

    def fault_for(self, value: Any, info: Info_contra) -> str | None:
        """Why this model can't have `value`, which has no other fault."""
        return None

    def fitted(self, value: Any, info: Info_contra) -> object:
        """`value`, or what means the same to this model and is not larger than it needs to be."""
        return value


FLAG = Bound[object]()  # true or false


class Number(Bound[Sizes], frozen=True, kw_only=True):
    """From `low` to `high`, both included; or None, where the field may be. What is above `enough`
    of the model means the same as that.
    """

    low: float
    high: float = math.inf  # infinity only where `enough` is given: then it never arrives
    enough: Extent | None = None

    def fault(self, value: float | None) -> str | None:
        if value is None or (self.low <= value <= self.high and value != math.inf):
            return None
        end = "" if self.high == math.inf else f" to {self.high:g}"
        return f"Expected a number from {self.low:g}{end}, got {_short(value)}."

    def fitted(self, value: int | None, info: Sizes) -> object:
        if value is None or self.enough is None:
            return value
        return min(value, info.context_length if self.enough == "context" else info.vocab_size)


class Texts(Bound[object], frozen=True):
    """At most `count` texts of at most `size` characters each; or one text alone."""

    count: int
    size: int
    total: int | None = None  # characters of all of them; None: as many as they may have each

    def fault(self, value: str | tuple[str, ...]) -> str | None:
        if isinstance(value, str):
            value = (value,)
        if len(value) > self.count:
            return f"Expected at most {self.count} texts, got {len(value)}."
        longest = max(map(len, value), default=0)
        if longest > self.size:
            return f"Expected texts of at most {self.size} characters, one has {longest}."
        if self.total is not None and sum(map(len, value)) > self.total:
            return f"Expected at most {self.total} characters in all texts together."
        if any(map(is_half, value)):
            return "A text contains an unpaired surrogate."
        return None


class TokenIds(Bound[Sizes], frozen=True):
    """Token ids of the vocabulary; no more of them than it has."""

    def fault_for(self, value: tuple[int, ...], info: Sizes) -> str | None:
        return _wrong(value, info)


class Biases(Bound[Sizes], frozen=True):
    """Pairs of a token id of the vocabulary and what is added to its logit: from `-high` to `high`,
    or minus infinity, which bans it.
    """

    high: float

    def fault(self, value: Pairs) -> str | None:
        for _, bias in value:
            if not (-self.high <= bias <= self.high or bias == -math.inf):
                least, most = -self.high, self.high
                return f"Expected a bias from {least:g} to {most:g}, got {_short(bias)}."
        return None

    def fault_for(self, value: Pairs, info: Sizes) -> str | None:
        return _wrong([token for token, _ in value], info)


def _wrong(tokens: Sequence[int], info: Sizes) -> str | None:
    if len(tokens) > info.vocab_size:
        return f"Expected at most {info.vocab_size} tokens, got {len(tokens)}."
    return unknown(tokens, info)


def unknown(tokens: Sequence[int], info: Sizes) -> str | None:
    """The ends first: this is done for every token of every prompt."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < info.vocab_size):
        return None
    wrong = next(token for token in tokens if not 0 <= token < info.vocab_size)
    return f"token {_short(wrong)} is not in the vocabulary"


def _short(number: float) -> str:
    """Python refuses to write whole numbers of thousands of digits."""
    if isinstance(number, int):
        return str(number) if abs(number) < 2**64 else "one far beyond"
    return f"{number:g}"


def is_half(text: str) -> bool:
    """Whether half a surrogate pair stands in `text`, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class Slider(msgspec.Struct, frozen=True):
    """How people set a parameter: what they call it, and how far a slider goes. Without `low` and
    `high`: a field for a number.
    """

    group: Literal["Sampling", "Repetition", "Advanced"]
    label: str
    low: float | None = None
    high: float | None = None
    step: float = 1
    hint: str = ""


class Row(msgspec.Struct, frozen=True):
    """What is known of a parameter besides its type and its neutral value."""

    bound: Bound[Sizes]  # what engines can take
    sent: Any = None  # the type that clients send; None: its own
    slider: Slider | None = None
    sampler: str = ""  # the one that it switches on; "": it is a detail of another
    names: tuple[str, ...] = ()  # what clients call it besides


SHARE = Number(low=0, high=1)
SOME = Number(low=0, high=100)
ANY = Number(low=-100, high=100)
OF_CONTEXT = Number(low=0, enough="context")
RANGE = Number(low=-1, enough="context")  # -1: the whole context

# What clients may send: OpenAI's ranges where it has them, else TabbyAPI's, inside those above.
SentShare: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
SentPositive: TypeAlias = Annotated[float, Meta(gt=0)]
SentNotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
SentTemperature: TypeAlias = Annotated[float, Meta(ge=0, le=10)]
SentPenalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
SentCount: TypeAlias = Annotated[int, Meta(ge=0)]
SentCountOrAll: TypeAlias = Annotated[int, Meta(ge=-1)]
SentTexts: TypeAlias = str | list[str]
SentTokens: TypeAlias = str | list[int]

# Rows by what engines take and clients may send of them.
_share = partial(Row, SHARE, SentShare)
_strength = partial(Row, SOME, SentNotNegative)
_heat = partial(Row, SOME, SentTemperature)
_penalty = partial(Row, ANY, SentPenalty, sampler="penalties")
_reach = partial(Row, RANGE, SentCountOrAll)
_count = partial(Row, OF_CONTEXT, SentCount)
# Sliders by their groups.
_first = partial(Slider, "Sampling")
_repeats = partial(Slider, "Repetition")
_advanced = partial(Slider, "Advanced")


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. Every default is neutral: it changes nothing.

    An engine applies what it can and names those fields in `ModelInfo.samplers`; the gateway
    reports the requested ones that it lacks, so that nothing is ignored silently.
    """

    repetition_penalty: Annotated[
        float,
        Row(
            Number(low=0.01, high=100),
            SentPositive,
            _repeats("Repetition penalty", 0.8, 2, 0.01),
            "penalties",
            ("rep_pen", "repeat_penalty"),
        ),
    ] = 1.0  # a divisor of logits
    frequency_penalty: Annotated[float, _penalty(_repeats("Frequency penalty", -2, 2, 0.05))] = 0.0
    presence_penalty: Annotated[float, _penalty(_repeats("Presence penalty", -2, 2, 0.05))] = 0.0
    # The last tokens that count; -1 is the whole context. Memory is taken for so many tokens.
    penalty_range: Annotated[
        int,
        _reach(
            _repeats("Penalty range", hint="−1: all"),
            names=(
                "repetition_range",
                "repetition_penalty_range",
                "rep_pen_range",
                "repeat_last_n",
            ),
        ),
    ] = -1
    repetition_decay: Annotated[int, _count()] = 0
    dry_multiplier: Annotated[float, _strength(_repeats("DRY multiplier", 0, 5, 0.05), "dry")] = 0.0
    # Raised to powers of up to the length of a repetition.
    dry_base: Annotated[float, _strength(_repeats("DRY base", 1, 4, 0.05))] = 1.75
    dry_allowed_length: Annotated[int, _count(_repeats("DRY allowed length", 1, 20, 1))] = 2
    dry_range: Annotated[
        int, _reach(_repeats("DRY range", hint="−1: all"), names=("dry_penalty_last_n",))
    ] = -1
    # Each is searched for in the text of every token; llama.cpp cuts longer ones off.
    dry_sequence_breakers: Annotated[tuple[str, ...], Row(Texts(64, 40), SentTexts)] = (
        "\n",
        ":",
        '"',
        "*",
    )
    # Below `bounds.GREEDY_BELOW` it is greedy.
    temperature: Annotated[float, _heat(_first("Temperature", 0, 2, 0.05), "temperature")] = 1.0
    temperature_last: Annotated[bool, Row(FLAG)] = False
    # Dynamic temperature runs from min_temp to max_temp when they differ.
    min_temp: Annotated[
        float, _heat(_advanced("Dynamic, lowest", 0, 3, 0.05), "temperature", ("dynatemp_low",))
    ] = 1.0
    max_temp: Annotated[
        float, _heat(_advanced("Dynamic, highest", 0, 3, 0.05), "temperature", ("dynatemp_high",))
    ] = 1.0
    temp_exponent: Annotated[float, _strength(names=("dynatemp_exponent",))] = 1.0
    smoothing_factor: Annotated[
        float, _strength(_advanced("Smoothing factor", 0, 10, 0.1), "temperature")
    ] = 0.0
    smoothing_curve: Annotated[float, _strength(_advanced("Smoothing curve", 0, 10, 0.1))] = 1.0
    top_n_sigma: Annotated[
        float,
        Row(
            Number(low=0, high=1e6),
            slider=_advanced("Top nσ", 0, 5, 0.1),
            sampler="top_n_sigma",
            names=("nsigma",),
        ),
    ] = 0.0
    top_k: Annotated[
        int,
        Row(
            Number(low=0, enough="vocabulary"),
            SentCountOrAll,
            _first("Top K", 0, 200, 1, hint="0: all"),
            "top_k",
        ),
    ] = 0
    tfs: Annotated[float, _share(_advanced("Tail free", 0, 1, 0.01), "tfs", ("tfs_z",))] = 1.0
    typical_p: Annotated[
        float, _share(_advanced("Typical P", 0, 1, 0.01), "typical_p", ("typical", "typ_p"))
    ] = 1.0
    top_p: Annotated[float, _share(_first("Top P", 0, 1, 0.01), "top_p")] = 1.0
    min_p: Annotated[float, _share(_first("Min P", 0, 1, 0.01), "min_p")] = 0.0
    top_a: Annotated[float, _strength(_advanced("Top A", 0, 1, 0.01), "top_a")] = 0.0
    xtc_probability: Annotated[float, _share(_advanced("XTC probability", 0, 1, 0.01), "xtc")] = 0.0
    xtc_threshold: Annotated[float, _share(_advanced("XTC threshold", 0, 0.5, 0.01))] = 0.1
    skew: Annotated[float, Row(ANY, slider=_advanced("Skew", -5, 5, 0.1))] = 0.0
    mirostat_mode: Annotated[
        Literal[0, 1, 2],
        Row(
            Number(low=0, high=2),
            Annotated[int, Meta(ge=0, le=2)],
            _advanced("Mirostat", 0, 2, 1),
            names=("mirostat",),
        ),
    ] = 0
    mirostat_tau: Annotated[float, _strength(_advanced("Mirostat τ", 0, 10, 0.1))] = 5.0
    mirostat_eta: Annotated[float, _strength(_advanced("Mirostat η", 0, 1, 0.01))] = 0.1
    adaptive_target: Annotated[
        float,
        Row(
            Number(low=-100, high=1),
            slider=_advanced("Adaptive target", -1, 1, 0.01, hint="below 0: off"),
        ),
    ] = -1.0
    # llama.cpp takes 0.99 for all above.
    adaptive_decay: Annotated[float, _share(_advanced("Adaptive decay", 0, 1, 0.01))] = 0.9
    seed: Annotated[
        int | None,
        Row(
            Number(low=-(2**63), high=2**64 - 1),
            Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
            _first("Seed", hint="any"),
            names=("sampler_seed",),
        ),
    ] = None  # engines take of it what they can
    samplers: Annotated[
        tuple[str, ...], Row(Texts(64, 40), SentTexts, names=("sampler_priority",))
    ] = ()  # the order; empty: ours
    # Pairs of a token id and what is added to its logit.
    logit_bias: Annotated[
        Pairs,
        Row(Biases(1e4), dict[str, float] | list[tuple[int | str, float | bool]]),
    ] = ()
    banned_tokens: Annotated[
        tuple[int, ...], Row(TokenIds(), SentTokens, names=("custom_token_bans",))
    ] = ()
    allowed_tokens: Annotated[
        tuple[int, ...], Row(TokenIds(), SentTokens, names=("allowed_token_ids",))
    ] = ()  # empty: all
    # Each character is a node of a tree.
    banned_strings: Annotated[
        tuple[str, ...], Row(Texts(1_024, 1_000, total=32_768), SentTexts)
    ] = ()
    ban_eos: Annotated[bool, Row(FLAG, names=("ban_eos_token", "ignore_eos"))] = False

    def requested(self) -> frozenset[str]:
        """The fields that differ from their neutral value."""
        values = zip(SAMPLERS, msgspec.structs.astuple(self), _NEUTRAL_VALUES, strict=True)
        return frozenset([name for name, value, neutral in values if value != neutral])


NEUTRAL = Sampling()
# Where nobody chose: llama-server's. Small and quantized models ramble where every token may come.
DEFAULTS = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
SAMPLERS = Sampling.__struct_fields__
_NEUTRAL_VALUES = msgspec.structs.astuple(NEUTRAL)
_HINTS = get_type_hints(Sampling, include_extras=True)
ROWS: Mapping[str, Row] = {name: _HINTS[name].__metadata__[0] for name in SAMPLERS}

ORDER = tuple(dict.fromkeys(row.sampler for row in ROWS.values() if row.sampler))
# llama.cpp's letters for those that it has (common/sampling.cpp).
LETTERS: Mapping[str, str] = {
    "e": "penalties",
    "d": "dry",
    "t": "temperature",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typical_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
}
# Of these llama-server has no sampler, or has given it up: its clients' lists can't mean them.
_ELSEWHERE = frozenset(ORDER) - {*LETTERS.values()}
# What comes first on an engine whose samplers work on tensors, whatever a list says.
FIRST = ("penalties", "dry")
# The fields of each sampler.
FIELDS: Mapping[str, tuple[str, ...]] = {
    sampler: tuple(name for name, row in ROWS.items() if row.sampler == sampler)
    for sampler in ORDER
}
_BEHIND = ORDER[ORDER.index("temperature") + 1 :]
TRUNCATIONS = tuple(name for name in _BEHIND if name != "xtc")


def order_of(sampling: Sampling) -> tuple[str, ...]:
    """The samplers of `ORDER` that a job may use, in the requested order."""
    if sampling.samplers:
        return _listed(sampling.samplers)
    if sampling.temperature_last:
        return (*(name for name in ORDER if name != "temperature"), "temperature")
    return ORDER


def _listed(names: Sequence[str]) -> tuple[str, ...]:
    order = [name for name in dict.fromkeys(names) if name in FIELDS]
    for name in _BEHIND:
        if name in _ELSEWHERE and name not in order:
            order.insert(_place(name, order), name)
    return tuple(order)


def _place(name: str, order: Sequence[str]) -> int:
    """Of a truncation that a list can't mean: behind those listed that stand before it in `ORDER`,
    else before the others listed.
    """
    earlier = _BEHIND[: _BEHIND.index(name)]
    behind = [place + 1 for place, one in enumerate(order) if one in earlier]
    others = [place for place, one in enumerate(order) if one in _BEHIND]
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
        for name in _BEHIND:
            found |= dict.fromkeys(FIELDS[name], "mirostat takes its place")
        found |= dict.fromkeys(("adaptive_target", "skew"), "mirostat takes its place")
    if sampling.samplers and sampling.temperature_last and order_of(sampling)[-1] != "temperature":
        found["temperature_last"] = "samplers gives the order"
    requested = sampling.requested() if found else ()
    return {name: why for name, why in found.items() if name in requested}
