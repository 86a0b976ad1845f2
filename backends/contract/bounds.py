"""The bounds of a job: one for every field of `Generation`, in one table; those of its sampling
stand in the rows of `backends.contract.samplers`. Knows no engine.

Engines hand numbers, texts and lists on to native code, which wraps, allocates or ends the process
where Python would raise. So each field has a bound that fits the type and the cost of what it
becomes there, the same for every engine: `bounded` is called before any engine gets a job.

What lies outside is an error that names the field, except where a smaller number means exactly the
same: a `top_k` beyond the vocabulary, a range beyond the context.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar

import msgspec

from backends.contract.encoder import EncoderInput
from backends.contract.errors import InputTooLong, InvalidJob, PromptTooLong
from backends.contract.protocol import (
    AdapterScale,
    Constraint,
    Generation,
    Image,
    ModelInfo,
    ThinkingBudget,
)
from backends.contract.samplers import (
    DEFAULTS,
    FLAG,
    OF_CONTEXT,
    ROWS,
    Bound,
    Number,
    Sampling,
    Sizes,
    Texts,
    TokenIds,
    is_half,
    unknown,
)

LABEL = Bound[object]()  # only compared, and never handed to an engine's library
NESTED = Bound[object]()  # a struct with a table of its own, which `bounded` checks


class Places(Bound[object], frozen=True):
    """At most so many places in the prompt. They are hints: one that isn't there means nothing."""

    most: int

    def fault(self, value: tuple[int, ...]) -> str | None:
        if len(value) > self.most:
            return f"Expected at most {self.most} places, got {len(value)}."
        return None


class PromptIds(TokenIds, frozen=True):
    """At least one token. `bounded` checks how many fit."""

    def fault(self, value: tuple[int, ...]) -> str | None:
        return None if value else "The prompt is empty."

    def fault_for(self, value: tuple[int, ...], info: Sizes) -> str | None:
        return unknown(value, info)


class Images(Bound[object], frozen=True):
    """At most `count` pictures with at most `pixels` together, each with the bytes it says."""

    count: int
    pixels: int

    def fault(self, value: tuple[Image, ...]) -> str | None:
        if len(value) > self.count:
            return f"Expected at most {self.count} images, got {len(value)}."
        if any(_odd(image) for image in value):
            return "An image is empty, or its size doesn't match its data."
        if sum(image.width * image.height for image in value) > self.pixels:
            return f"The images have more than {self.pixels:,} pixels together."
        return None


class GrammarText(Bound[ModelInfo], frozen=True):
    """A constraint, whose text has at most `size` bytes."""

    size: int

    def fault(self, value: Constraint | None) -> str | None:
        if value is None:
            return None
        if is_half(value.grammar):
            return "The grammar contains an unpaired surrogate."
        if (size := len(value.grammar.encode())) > self.size:
            return f"Expected a grammar of at most {self.size:,} bytes, got {size:,}."
        return None

    def fault_for(self, value: Constraint | None, info: ModelInfo) -> str | None:
        if value is None or info.constrains:
            return None
        return f"{info.backend} can't be held to a grammar."


def _odd(image: Image) -> bool:
    whole = image.width * image.height * 3 == len(image.rgb)
    return not (image.width > 0 and image.height > 0 and whole)


# Below this temperature sampling is greedy, on every engine (vLLM's `_SAMPLING_EPS`): a logit
# divided by much less overflows single precision. Dynamic temperature doesn't fall below it.
GREEDY_BELOW = 1e-5
# Of banned strings: how many tokens are tried at one place of an answer, and how many tokens of it
# are taken back beyond two for each that stays. Then the string ends the answer.
MOST_TRIES = 64
SPARE_REWINDS = 512

S = TypeVar("S", bound=msgspec.Struct)


class Budget(Bound[ModelInfo], frozen=True):
    """A thinking budget: its own fields are bounded by `BUDGET`."""

    def fault(self, value: ThinkingBudget | None) -> str | None:
        faults = _faults(_named(BUDGET, value)) if value is not None else iter(())
        return next((fault for _, fault in faults), None)

    def fault_for(self, value: ThinkingBudget | None, info: ModelInfo) -> str | None:
        return None if value is None else unknown(value.closing, info)

    def fitted(self, value: ThinkingBudget | None, info: ModelInfo) -> object:
        return value if value is None else _fitted(value, _named(BUDGET, value), info)


class SlotNumber(Bound[ModelInfo], frozen=True):
    """One of the slots of a model that lets a job choose."""

    def fault_for(self, value: int | None, info: ModelInfo) -> str | None:
        if value is None or (info.keeps_slots and 0 <= value < info.max_concurrent):
            return None
        if not info.keeps_slots:
            return f"{info.backend} chooses the slot itself."
        return f"The model has the slots 0 to {info.max_concurrent - 1}, not {value}."


class Adapters(Bound[ModelInfo], frozen=True):
    """Adapters of the model, each once, whose scales are at most `most` either way."""

    count: int
    most: float

    def fault(self, value: tuple[AdapterScale, ...] | None) -> str | None:
        if value is None:
            return None
        if len(value) > self.count:
            return f"Expected at most {self.count} adapters, got {len(value)}."
        if any(not abs(each.scale) <= self.most for each in value):
            return f"Expected scales from -{self.most:g} to {self.most:g}."
        return None

    def fault_for(self, value: tuple[AdapterScale, ...] | None, info: ModelInfo) -> str | None:
        if value is None:
            return None
        if value and not info.chooses_adapters:
            return f"{info.backend} can't choose adapters for a request."
        return _unknown_adapter(value, info) or _twice(value, info)


def _unknown_adapter(chosen: Sequence[AdapterScale], info: ModelInfo) -> str | None:
    for each in chosen:
        if info.adapter_number(each.adapter) is None:
            known = ", ".join(f"{n} ({one.name})" for n, one in enumerate(info.adapters))
            return f"The model has no adapter {each.adapter!r:.80}; it has {known or 'none'}."
    return None


def _twice(chosen: Sequence[AdapterScale], info: ModelInfo) -> str | None:
    numbers = [info.adapter_number(each.adapter) for each in chosen]
    again = next((number for number in numbers if numbers.count(number) > 1), None)
    return None if again is None else f"Adapter {again} is named twice."


SAMPLING: Mapping[str, Bound[ModelInfo]] = {name: row.bound for name, row in ROWS.items()}
MARKERS = Texts(64, 1_000)

GENERATION: Mapping[str, Bound[ModelInfo]] = {
    "prompt": PromptIds(),
    "sampling": NESTED,
    "max_tokens": OF_CONTEXT,
    "min_tokens": OF_CONTEXT,
    "stop": Texts(1_024, 1_000),  # compared with the end of the text at every token
    "logprobs": Number(low=0, high=1_000),  # so many objects at every token
    "prompt_logprobs": Number(low=0, high=1_000),
    "thinking": Budget(),
    "constraint": GrammarText(256 << 10),  # the compiler recurses, and costs time by its size
    "images": Images(1_024, 1 << 30),
    "request": LABEL,
    "owner": LABEL,
    "slot": SlotNumber(),
    "marks": Places(8),
    "reports_progress": FLAG,
    "after_samplers": FLAG,
    "cached_for": LABEL,
    "conversation": LABEL,
    "drafts": Number(low=0, high=2**31 - 1),
    "adapters": Adapters(64, 1_000),
}
BUDGET: Mapping[str, Bound[ModelInfo]] = {
    "tokens": OF_CONTEXT,
    "closing": TokenIds(),
    "opens": MARKERS,
    "closes": MARKERS,
    "anywhere": FLAG,
    "is_open": FLAG,
}
ENCODER_INPUT: Mapping[str, Bound[ModelInfo]] = {
    "tokens": PromptIds(),  # `check_inputs` checks how many
    "second": OF_CONTEXT,
    "cut": LABEL,
}
# What a request may bring to be embedded or ranked: so many texts, of so many characters each, and
# all together; and tokens of all together. A tokenizer's time is linear in the characters, the
# device's in the tokens.
ENCODED_TEXTS = Texts(2_048, 1 << 20, total=1 << 24)
ENCODED_TOKENS = 1 << 20
# The request's field that a client knows, where it is not our own.
PARAMS = {
    "thinking": "thinking_budget",
    "images": "messages",
    "constraint": "response_format",
    "slot": "id_slot",
    "adapters": "lora",
}


def faults(sampling: Sampling) -> Iterator[tuple[str, str]]:
    """The fields that no model can have so, and why."""
    return _faults(_named(SAMPLING, sampling))


def recommended(named: Mapping[str, Any]) -> Sampling:
    """What the makers of a model say, but for values with a fault. Temperature and truncation are
    one choice: where they say nothing of it, it is that of `DEFAULTS`.
    """
    wrong = dict(faults(Sampling(**named)))
    said = {name: value for name, value in named.items() if name not in wrong}
    chosen = said.keys() & DEFAULTS.requested()
    return msgspec.structs.replace(Sampling() if chosen else DEFAULTS, **said)


def bounded(job: Generation, info: ModelInfo) -> Generation:
    """The job as engines may see it. Raises InvalidJob, which names the field, or PromptTooLong.

    How long a prompt with pictures is the engine alone knows.
    """
    sampling = job.sampling
    given, sampled = _named(GENERATION, job), _named(SAMPLING, sampling)
    for name, fault in _faults((*given, *sampled)):
        raise InvalidJob(fault, PARAMS.get(name, name))
    if not job.images and len(job.prompt) >= info.context_length:
        raise PromptTooLong(len(job.prompt), info.context_length)
    if job.images and "image" not in info.modalities:
        raise InvalidJob("this model doesn't support images", "messages")
    for name, fault in _faults((*given, *sampled), info):
        raise InvalidJob(fault, PARAMS.get(name, name))
    sampling = _cold(_fitted(sampling, sampled, info))
    return msgspec.structs.replace(_fitted(job, given, info), sampling=sampling)


def check_choice(job: Generation, info: ModelInfo, ends: Callable[[int], bool]) -> None:
    """Raises InvalidJob where the job forbids every token. Costs what its own lists are long."""
    sampling = job.sampling
    banned = {token for token, bias in sampling.logit_bias if bias == -math.inf}
    banned.update(sampling.banned_tokens)
    no_end = sampling.ban_eos or job.min_tokens > 0
    if len(banned) < info.vocab_size // 2 and not sampling.allowed_tokens:
        return  # a vocabulary has more than ends
    left = sampling.allowed_tokens or range(info.vocab_size)
    if all(token in banned or (no_end and ends(token)) for token in left):
        param = "allowed_tokens" if sampling.allowed_tokens else "logit_bias"
        raise InvalidJob("Every token is forbidden: none is left to choose.", param)


def check_inputs(inputs: Sequence[EncoderInput], info: ModelInfo, field: str = "input") -> None:
    """Raises InvalidJob or InputTooLong, which name the text of `field` that is at fault."""
    if len(inputs) > ENCODED_TEXTS.count:
        count = ENCODED_TEXTS.count
        raise InvalidJob(f"Expected at most {count} texts, got {len(inputs)}.", field)
    for index, one in enumerate(inputs):
        place = f"{field}[{index}]"
        fields = _named(ENCODER_INPUT, one)
        for _, fault in (*_faults(fields), *_faults(fields, info)):
            raise InvalidJob(fault, place)
        if one.second >= len(one.tokens):
            raise InvalidJob("The second text of a pair is empty.", place)
        if len(one.tokens) > info.context_length:
            raise InputTooLong(len(one.tokens), info.context_length, place)
    if (whole := sum(len(one.tokens) for one in inputs)) > ENCODED_TOKENS:
        text = f"Expected at most {ENCODED_TOKENS:,} tokens in all texts together, got {whole:,}."
        raise InvalidJob(text, field)


def check_tokens(tokens: Sequence[int], info: ModelInfo, param: str) -> None:
    """Raises InvalidJob for a token that the model doesn't have."""
    if fault := unknown(tokens, info):
        raise InvalidJob(fault, param)


def _cold(sampling: Sampling) -> Sampling:
    """See `GREEDY_BELOW`."""
    low, high = sampling.min_temp, sampling.max_temp
    dynamic = low != high
    if sampling.temperature < GREEDY_BELOW or (dynamic and max(low, high) < GREEDY_BELOW):
        return msgspec.structs.replace(sampling, temperature=0.0)
    if dynamic and low < GREEDY_BELOW:
        return msgspec.structs.replace(sampling, min_temp=GREEDY_BELOW)
    return sampling


# A field's name, its bound, and the value it has.
Field: TypeAlias = tuple[str, Bound[ModelInfo], object]


def _named(table: Mapping[str, Bound[ModelInfo]], struct: msgspec.Struct) -> list[Field]:
    """The fields of `struct` that are not at their defaults. A default is within the bounds of
    every model, and nearly all of a job's sixty fields have it.
    """
    values = zip(struct.__struct_fields__, msgspec.structs.astuple(struct), strict=True)
    defaults = _defaults(type(struct))
    return [(name, table[name], value) for name, value in values if value != defaults[name]]


@cache
def _defaults(struct: type[msgspec.Struct]) -> Mapping[str, object]:
    """`msgspec.NODEFAULT`, which equals no value, for a field that has none."""
    return {field.name: field.default for field in msgspec.structs.fields(struct)}


def _faults(fields: Iterable[Field], info: ModelInfo | None = None) -> Iterator[tuple[str, str]]:
    """The names of `fields` that can't have their values, and why; `info`: in this model."""
    for name, bound, value in fields:
        if fault := bound.fault(value) if info is None else bound.fault_for(value, info):
            yield name, fault


def _fitted(struct: S, fields: Iterable[Field], info: ModelInfo) -> S:
    """With the values of `fields`, some of its own, as they fit."""
    changed = {
        name: fitted
        for name, bound, value in fields
        if (fitted := bound.fitted(value, info)) is not value
    }
    return msgspec.structs.replace(struct, **changed) if changed else struct
