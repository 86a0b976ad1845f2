"""What a job may hold: a bound for every field of `Sampling` and `Generation`, in one table.

Engines hand numbers, texts and lists on to native code, which wraps, allocates or ends the process
where Python would raise. So each field has a bound that fits the type and the cost of what it
becomes there, the same for every engine: `bounded` is asked before any engine sees a job. It knows
no engine.

What lies outside is an error that names the field, except where a smaller number means exactly the
same: a `top_k` beyond the vocabulary, a range beyond the context.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from backends.errors import InvalidJob, PromptTooLong
from backends.protocol import (
    Constraint,
    Generation,
    Image,
    ModelInfo,
    Sampling,
    ThinkingBudget,
)

# Below this temperature sampling is greedy, on every engine (vLLM's `_SAMPLING_EPS`): a logit
# divided by much less overflows single precision. Dynamic temperature doesn't fall below it.
GREEDY_BELOW = 1e-5
# Of banned strings: how many tokens are tried at one place of an answer, and how many tokens of it
# are taken back beyond two for each that stays. Then the string ends the answer.
MOST_TRIES = 64
SPARE_REWINDS = 512

Extent = Literal["context", "vocabulary"]
S = TypeVar("S", bound=msgspec.Struct)


class Bound(Protocol):
    """What one field may hold."""

    def fault(self, value: object) -> str | None:
        """Why `value` can't be, whatever the model; None where it can."""
        ...

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        """Why this model can't have `value`, which has no other fault."""
        ...

    def fitted(self, value: object, info: ModelInfo) -> object:
        """`value`, or what means the same to this model and is not larger than it needs to be."""
        ...


class _Any(msgspec.Struct, frozen=True):
    def fault(self, value: object) -> str | None:
        return None

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        return None

    def fitted(self, value: object, info: ModelInfo) -> object:
        return value


class Flag(_Any, frozen=True):
    """True or false."""


class Label(_Any, frozen=True):
    """Only compared, and never handed to an engine's library."""


class Number(_Any, frozen=True, kw_only=True):
    """From `low` to `high`, both included; or None, where the field may be. What is above `enough`
    of the model means the same as that.
    """

    low: float
    high: float = math.inf  # infinity only where `enough` is given: then it never arrives
    enough: Extent | None = None

    def fault(self, value: object) -> str | None:
        assert value is None or isinstance(value, int | float)
        if value is None or (self.low <= value <= self.high and value != math.inf):
            return None
        end = "" if self.high == math.inf else f" to {self.high:g}"
        return f"Expected a number from {self.low:g}{end}, got {_short(value)}."

    def fitted(self, value: object, info: ModelInfo) -> object:
        if value is None or self.enough is None:
            return value
        assert isinstance(value, int)
        return min(value, _extent(info, self.enough))


class Texts(_Any, frozen=True):
    """At most `count` texts of at most `size` characters each; or one text alone."""

    count: int
    size: int
    total: int | None = None  # characters of all of them; None: as many as they may have each

    def fault(self, value: object) -> str | None:
        if isinstance(value, str):
            value = (value,)
        assert isinstance(value, tuple)
        if len(value) > self.count:
            return f"Expected at most {self.count} texts, got {len(value)}."
        longest = max(map(len, value), default=0)
        if longest > self.size:
            return f"Expected texts of at most {self.size} characters, one has {longest}."
        if self.total is not None and sum(map(len, value)) > self.total:
            return f"Expected at most {self.total} characters in all texts together."
        if any(map(_halved, value)):
            return "A text has half a surrogate pair, which is no character."
        return None


class TokenIds(_Any, frozen=True):
    """Token ids of the vocabulary; no more of them than it has."""

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        assert isinstance(value, tuple)
        return _wrong(value, info)


class Biases(_Any, frozen=True):
    """Pairs of a token id of the vocabulary and what is added to its logit: from `-high` to `high`,
    or minus infinity, which bans it.
    """

    high: float

    def fault(self, value: object) -> str | None:
        assert isinstance(value, tuple)
        for _, bias in value:
            if not (-self.high <= bias <= self.high or bias == -math.inf):
                least, most = -self.high, self.high
                return f"Expected a bias from {least:g} to {most:g}, got {_short(bias)}."
        return None

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        assert isinstance(value, tuple)
        return _wrong([token for token, _ in value], info)


class PromptIds(TokenIds, frozen=True):
    """At least one token. How many fit is seen to by `bounded`."""

    def fault(self, value: object) -> str | None:
        return None if value else "The prompt is empty."

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        assert isinstance(value, tuple)
        return _unknown(value, info)


class Images(_Any, frozen=True):
    """At most `count` pictures with at most `pixels` together, each with the bytes it says."""

    count: int
    pixels: int

    def fault(self, value: object) -> str | None:
        assert isinstance(value, tuple)
        if len(value) > self.count:
            return f"Expected at most {self.count} images, got {len(value)}."
        if any(_odd(image) for image in value):
            return "An image is empty, or not as large as it says."
        if sum(image.width * image.height for image in value) > self.pixels:
            return f"The images have more than {self.pixels:,} pixels together."
        return None


class Budget(_Any, frozen=True):
    """A thinking budget: its own fields are bounded by `BUDGET`."""

    def fault(self, value: object) -> str | None:
        assert value is None or isinstance(value, ThinkingBudget)
        faults = _faults(BUDGET, value) if value is not None else iter(())
        return next((fault for _, fault in faults), None)

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        assert value is None or isinstance(value, ThinkingBudget)
        return None if value is None else _unknown(value.closing, info)

    def fitted(self, value: object, info: ModelInfo) -> object:
        assert value is None or isinstance(value, ThinkingBudget)
        return value if value is None else _fitted(BUDGET, value, info)


class Grammar(_Any, frozen=True):
    """A constraint, whose text has at most `size` bytes."""

    size: int

    def fault(self, value: object) -> str | None:
        assert value is None or isinstance(value, Constraint)
        if value is None:
            return None
        if _halved(value.grammar):
            return "The grammar has half a surrogate pair, which is no character."
        if (size := len(value.grammar.encode())) > self.size:
            return f"Expected a grammar of at most {self.size:,} bytes, got {size:,}."
        return None

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        if value is None or info.constrains:
            return None
        return f"{info.backend} can't be held to a grammar."


class Nested(_Any, frozen=True):
    """A struct with a table of its own, that `bounded` looks at."""


SHARE = Number(low=0, high=1)
SOME = Number(low=0, high=100)
OF_CONTEXT = Number(low=0, enough="context")
RANGE = Number(low=-1, enough="context")  # -1: the whole context
MARKER = Texts(1, 1_000)

SAMPLING: Mapping[str, Bound] = {
    "seed": Number(low=-(2**63), high=2**64 - 1),  # engines take of it what they can
    "temperature": SOME,
    "temperature_last": Flag(),
    "min_temp": SOME,
    "max_temp": SOME,
    "temp_exponent": SOME,
    "smoothing_factor": SOME,
    "smoothing_curve": SOME,
    "top_k": Number(low=0, enough="vocabulary"),
    "top_p": SHARE,
    "min_p": SHARE,
    "top_a": SOME,
    "tfs": SHARE,
    "typical_p": SHARE,
    "skew": Number(low=-100, high=100),
    "top_n_sigma": Number(low=0, high=1e6),
    "xtc_probability": SHARE,
    "xtc_threshold": SHARE,
    "repetition_penalty": Number(low=0.01, high=100),  # a divisor of logits
    "frequency_penalty": Number(low=-100, high=100),
    "presence_penalty": Number(low=-100, high=100),
    "penalty_range": RANGE,  # memory is taken for so many tokens
    "repetition_decay": OF_CONTEXT,
    "dry_multiplier": SOME,
    "dry_base": SOME,  # raised to powers of up to the length of a repetition
    "dry_allowed_length": OF_CONTEXT,
    "dry_range": RANGE,
    # Each is looked for in the text of every token; llama.cpp cuts longer ones off.
    "dry_sequence_breakers": Texts(64, 40),
    "mirostat_mode": Number(low=0, high=2),
    "mirostat_tau": SOME,
    "mirostat_eta": SOME,
    "adaptive_target": Number(low=-100, high=1),
    "adaptive_decay": SHARE,  # llama.cpp takes 0.99 for all above
    "samplers": Texts(64, 40),
    "logit_bias": Biases(1e4),
    "banned_tokens": TokenIds(),
    "allowed_tokens": TokenIds(),
    "banned_strings": Texts(1_024, 1_000, total=32_768),  # each character is a node of a tree
    "ban_eos": Flag(),
}
GENERATION: Mapping[str, Bound] = {
    "prompt": PromptIds(),
    "sampling": Nested(),
    "max_tokens": OF_CONTEXT,
    "min_tokens": OF_CONTEXT,
    "stop": Texts(1_024, 1_000),  # compared with the end of the text at every token
    "logprobs": Number(low=0, high=1_000),  # so many objects at every token
    "prompt_logprobs": Number(low=0, high=1_000),
    "thinking": Budget(),
    "constraint": Grammar(256 << 10),  # the compiler recurses, and costs time by its size
    "images": Images(1_024, 1 << 30),
    "request": Label(),
}
BUDGET: Mapping[str, Bound] = {
    "tokens": OF_CONTEXT,
    "closing": TokenIds(),
    "open": MARKER,
    "close": MARKER,
    "is_open": Flag(),
}
# The request's field that a client knows, where it is not our own.
PARAMS = {"thinking": "thinking_budget", "images": "messages", "constraint": "response_format"}


def faults(sampling: Sampling) -> Iterator[tuple[str, str]]:
    """The fields that no model can have so, and why."""
    return _faults(SAMPLING, sampling)


def sound(sampling: Sampling) -> Sampling:
    """With the neutral value in place of each that has a fault: for what a model's file says."""
    neutral = Sampling()
    wrong = {name: getattr(neutral, name) for name, _ in faults(sampling)}
    return msgspec.structs.replace(sampling, **wrong)


def bounded(job: Generation, info: ModelInfo) -> Generation:
    """The job as engines may see it. Raises InvalidJob, which names the field, or PromptTooLong.

    How long a prompt with pictures is the engine alone knows.
    """
    for name, fault in (*_faults(GENERATION, job), *_faults(SAMPLING, job.sampling)):
        raise InvalidJob(fault, PARAMS.get(name, name))
    if not job.images and len(job.prompt) >= info.context_length:
        raise PromptTooLong(len(job.prompt), info.context_length)
    if job.images and "image" not in info.modalities:
        raise InvalidJob("this model can't see images", "messages")
    for name, fault in (
        *_faults_for(GENERATION, job, info),
        *_faults_for(SAMPLING, job.sampling, info),
    ):
        raise InvalidJob(fault, PARAMS.get(name, name))
    sampling = _cold(_fitted(SAMPLING, job.sampling, info))
    return msgspec.structs.replace(_fitted(GENERATION, job, info), sampling=sampling)


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


def check_tokens(tokens: Sequence[int], info: ModelInfo, param: str) -> None:
    """Raises InvalidJob for a token that the model doesn't have."""
    if fault := _unknown(tokens, info):
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


def _faults(table: Mapping[str, Bound], struct: msgspec.Struct) -> Iterator[tuple[str, str]]:
    for name, bound in table.items():
        if fault := bound.fault(getattr(struct, name)):
            yield name, fault


def _faults_for(
    table: Mapping[str, Bound], struct: msgspec.Struct, info: ModelInfo
) -> Iterator[tuple[str, str]]:
    for name, bound in table.items():
        if fault := bound.fault_for(getattr(struct, name), info):
            yield name, fault


def _fitted(table: Mapping[str, Bound], struct: S, info: ModelInfo) -> S:
    values = ((name, getattr(struct, name), bound) for name, bound in table.items())
    fitted = ((name, value, bound.fitted(value, info)) for name, value, bound in values)
    changed = {name: after for name, before, after in fitted if after != before}
    return msgspec.structs.replace(struct, **changed) if changed else struct


def _extent(info: ModelInfo, extent: Extent) -> int:
    return info.context_length if extent == "context" else info.vocab_size


def _wrong(tokens: Sequence[int], info: ModelInfo) -> str | None:
    if len(tokens) > info.vocab_size:
        return f"Expected at most {info.vocab_size} tokens, got {len(tokens)}."
    return _unknown(tokens, info)


def _unknown(tokens: Sequence[int], info: ModelInfo) -> str | None:
    """The ends first: this is done for every token of every prompt."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < info.vocab_size):
        return None
    wrong = next(token for token in tokens if not 0 <= token < info.vocab_size)
    return f"token {_short(wrong)} is not in the vocabulary"


def _odd(image: Image) -> bool:
    whole = image.width * image.height * 3 == len(image.rgb)
    return not (image.width > 0 and image.height > 0 and whole)


def _short(number: float) -> str:
    """Python refuses to write whole numbers of thousands of digits."""
    if isinstance(number, int):
        return str(number) if abs(number) < 2**64 else "one far beyond"
    return f"{number:g}"


def _halved(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
