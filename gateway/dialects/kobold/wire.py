"""KoboldAI's and KoboldCpp's bodies, in and out."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

Sampler: TypeAlias = Annotated[int, Meta(ge=0, le=6)]
Token: TypeAlias = Annotated[int, Meta(ge=0)]
Word: TypeAlias = Literal["true", "false"]
GenerationKey: TypeAlias = Annotated[str, Meta(max_length=256)]

MAX_LENGTH = 512  # tokens of an answer where the request doesn't say it; KoboldCpp has 400 to 768
MOST_RESULTS = 5  # KoboldAI's own limit


class GenerateWire(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a generation that no other struct reads, by our names."""

    prompt: str
    memory: str = ""
    model: str = ""  # no client of KoboldAI sends it: it knows one model
    max_tokens: Annotated[int, Meta(ge=1)] = MAX_LENGTH
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    stop: str | list[str | None] = []
    trim_stop: bool = False
    singleline: bool = False
    n: Annotated[int, Meta(ge=1, le=MOST_RESULTS)] = 1
    genkey: GenerationKey = ""
    grammar: str = ""
    images: list[str] = []
    sampler_order: Annotated[list[Sampler], Meta(max_length=7)] = []
    use_default_badwordsids: bool = False
    keep_alive: float | str | None = None


class Keyed(msgspec.Struct, frozen=True, kw_only=True):
    """Which generation is meant."""

    genkey: GenerationKey = ""


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a text. `special`: with what the model wants in front."""

    prompt: str
    special: bool = True
    model: str = ""


class Detokenize(msgspec.Struct, frozen=True, kw_only=True):
    """The text of tokens."""

    ids: list[Token]
    model: str = ""


class TokenStep(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. The last one has why it ended, and the usage."""

    token: str
    finish_reason: str | None = None
    prompt_tokens: int | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One of the texts that were asked for; the counts are of the whole request."""

    text: str
    finish_reason: str | UnsetType = UNSET
    prompt_tokens: int | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET


class Results(msgspec.Struct, frozen=True):
    """An answer, or what there is of it."""

    results: Sequence[Result]


class TextValue(msgspec.Struct, frozen=True):
    """A name or a version."""

    result: str


class NumberValue(msgspec.Struct, frozen=True):
    """A length in tokens."""

    value: int


class SoftPrompt(msgspec.Struct, frozen=True):
    """The soft prompt in use: none, nothing here has any."""

    value: str = ""


class SoftPrompts(msgspec.Struct, frozen=True):
    """The soft prompts to choose from."""

    values: Sequence[str] = ()


class TokensWire(msgspec.Struct, frozen=True):
    """Tokens, and how many they are."""

    value: int
    ids: Sequence[int]


class Detokenized(msgspec.Struct, frozen=True):
    """A text."""

    result: str
    success: bool = True


class Aborted(msgspec.Struct, frozen=True):
    """KoboldCpp's words for booleans are texts. `success`: an answer was found; `done`: it ends."""

    success: Word
    done: Word


class KoboldVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Which of KoboldCpp's APIs is spoken, and what of it there is."""

    result: str = "KoboldCpp"
    version: str = "1.76"
    protected: bool
    vision: bool = False  # its raw texts take no images here
    txt2img: bool = False
    transcribe: bool = False


class Perf(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's last generation, and the server. Times are seconds.

    `stop_reason`: -1 there was none yet, 0 out of tokens, 1 the model ended, 2 a stop sequence.
    """

    last_process: float
    last_eval: float
    last_token_count: int
    last_input_count: int
    last_seed: int = -1  # not reported by the engines
    total_gens: int
    stop_reason: int
    queue: int
    idle: int
    uptime: float
