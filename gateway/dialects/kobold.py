"""KoboldAI's dialect, with what KoboldCpp added to it: completions, whole or streamed; polling and
abort. Knows no model and no HTTP.

Pure: bytes in, structs out (`read_generate`); events in, bytes out (`KoboldReply`): events with a
`token`, or `results` at the end.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backends.contract.conversation import Grammar
from config.values import alike
from gateway.dialects.dialect import Dialect, Reply, body, named_frame
from gateway.dialects.encoding import Token
from gateway.dialects.fields import Fields, fields_of, json_object
from gateway.dialects.parameters import SamplingWire, read_keep_alive, read_sampling, read_stop
from gateway.terms.errors import GatewayError
from gateway.terms.events import Delta, Finished, Usage, raw_text
from gateway.terms.request import GenerationParams, TextRequest

Sampler: TypeAlias = Annotated[int, Meta(ge=0, le=6)]
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
    """The key of a generation."""

    genkey: GenerationKey = ""


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a text. `special`: with the model's leading special tokens."""

    prompt: str
    special: bool = True
    model: str = ""


class Detokenize(msgspec.Struct, frozen=True, kw_only=True):
    """The text of tokens."""

    ids: list[Token]
    model: str = ""


class TokenStep(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. The last one contains the finish reason and the usage."""

    token: str
    finish_reason: str | None = None
    prompt_tokens: int | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One of the requested texts. The counts are those of the whole request."""

    text: str
    finish_reason: str | UnsetType = UNSET
    prompt_tokens: int | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET


class Results(msgspec.Struct, frozen=True):
    """An answer, or the part generated so far."""

    results: Sequence[Result]


class TextValue(msgspec.Struct, frozen=True):
    """A name or a version."""

    result: str


class NumberValue(msgspec.Struct, frozen=True):
    """A length in tokens."""

    value: int


class SoftPrompt(msgspec.Struct, frozen=True):
    """The active soft prompt. Always empty."""

    value: str = ""


class SoftPrompts(msgspec.Struct, frozen=True):
    """The available soft prompts."""

    values: Sequence[str] = ()


class TokensWire(msgspec.Struct, frozen=True):
    """Tokens and their number."""

    value: int
    ids: Sequence[int]


class Detokenized(msgspec.Struct, frozen=True):
    """A text."""

    result: str
    success: bool = True


class Aborted(msgspec.Struct, frozen=True):
    """The result of an abort. KoboldCpp writes booleans as texts. `success`: a generation was
    found; `done`: it ends.
    """

    success: Word
    done: Word


class KoboldVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The version of the supported KoboldCpp API, and the available features."""

    result: str = "KoboldCpp"
    version: str = "1.76"
    protected: bool
    vision: bool = False  # its raw texts take no images here
    txt2img: bool = False
    transcribe: bool = False


class Perf(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the caller's last generation and of the server. Times are in seconds.
    `stop_reason`: -1 no generation yet, 0 token limit, 1 end of text, 2 stop sequence.
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


# KoboldAI's numbers of samplers, in our names; KoboldCpp has min_p beside top_p.
SAMPLERS: Mapping[int, tuple[str, ...]] = {
    0: ("top_k",),
    1: ("top_a",),
    2: ("top_p", "min_p"),
    3: ("tfs",),
    4: ("typical_p",),
    5: ("temperature",),
    6: ("penalties",),
}


class KoboldExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A text to go on from, and the form of the answer. `shows_stop`: the stop string that ended
    it is part of the text.
    """

    request: TextRequest
    shows_stop: bool
    genkey: str


def read_generate(body: bytes, *, stream: bool) -> KoboldExchange:
    """What a body of `/api/v1/generate`, or of its stream, means. Raises InvalidRequest, which
    names the field.
    """
    values = json_object(body)
    # KoboldCpp's `banned_tokens` are texts, too; ids are `custom_token_bans`.
    if values.get("banned_strings") is not None:
        values.pop("banned_tokens", None)
    fields = fields_of(values, names={"banned_tokens": "banned_strings"})
    wire = fields.read(GenerateWire)
    if wire.images:
        raise fields.wrong("images", "Raw text can't contain images; use a chat.")
    if stream and wire.n > 1:
        raise fields.wrong("n", "A stream has one text.")
    return KoboldExchange(
        request=TextRequest(
            model=wire.model,
            prompts=(wire.memory + wire.prompt,),
            answering=_answering(fields, wire, stream=stream),
        ),
        shows_stop=not (wire.trim_stop or wire.singleline),
        genkey=wire.genkey,
    )


def _answering(fields: Fields, wire: GenerateWire, *, stream: bool) -> GenerationParams:
    asked = _sampled(fields, wire)
    return alike(GenerationParams, wire)(
        sampling=read_sampling(asked),
        stop=_stop(fields, wire),
        keep_alive=read_keep_alive(fields, wire.keep_alive),
        shape=Grammar(text=wire.grammar) if wire.grammar else None,
        streamed=stream,
        spelled=asked.otherwise(),
        unapplied=fields.unapplied(GenerateWire, SamplingWire, ("gui_settings",)),
    )


def _stop(fields: Fields, wire: GenerateWire) -> tuple[str, ...]:
    texts = [wire.stop] if isinstance(wire.stop, str) else [text or "" for text in wire.stop]
    lines = ("\n",) if wire.singleline else ()
    return (*read_stop(fields, texts), *lines)


def _sampled(fields: Fields, wire: GenerateWire) -> Fields:
    """`fields` with what only KoboldAI calls so under our names."""
    if wire.sampler_order:
        named = (name for number in wire.sampler_order for name in SAMPLERS[number])
        order = ["dry", *named, "xtc"]  # where KoboldCpp has these two
        fields = fields.meaning("samplers", "sampler_order", value=order)
    if wire.use_default_badwordsids and "ban_eos" not in fields.values:
        fields = fields.meaning("ban_eos", "use_default_badwordsids", value=True)
    return fields


class DetailWire(msgspec.Struct, frozen=True, kw_only=True):
    """The error. `param` and `code` are ours."""

    msg: str
    type: str
    param: str | None
    code: str | None


class MessageWire(msgspec.Struct, frozen=True):
    """The same text where frontends read it: SillyTavern, of a stream that never began."""

    message: str


class KoboldError(msgspec.Struct, frozen=True):
    """The body of a failed request, and the last event of a broken stream."""

    detail: DetailWire
    error: MessageWire


def _wire(error: GatewayError) -> KoboldError:
    detail = DetailWire(msg=error.message, type=error.type, param=error.param, code=error.code)
    return KoboldError(detail, MessageWire(error.message))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return named_frame(b"error", _wire(error))


EVENT = b"message"


class Growing(msgspec.Struct, eq=False):
    """One of the texts while it grows. `stop_reason`: see `Perf`."""

    texts: list[str] = []
    finish: Literal["stop", "length"] = "length"  # KoboldCpp's value for an abort, too
    stop_reason: int = 0

    def end(self, event: Finished) -> None:
        """Why it ended."""
        if event.reason != "length":
            self.finish = "stop"
            self.stop_reason = 1 if event.stop is None else 2


class KoboldReply(Reply):
    """The answer to one request, as a stream or whole."""

    results: int
    shows_stop: bool
    _all: list[Growing] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self._all = [Growing() for _ in range(self.results)]

    @property
    def stop_reason(self) -> int:
        """Of the first text, as `Perf` numbers them."""
        return self._all[0].stop_reason

    def texts(self) -> Sequence[str]:
        """What there is of each text now."""
        return ["".join(one.texts) for one in self._all]

    def delta(self, delta: Delta) -> bytes:
        """Some more of the text."""
        text = self.add(delta)
        return named_frame(EVENT, TokenStep(token=text)) if text else b""

    def add(self, delta: Delta) -> str:
        """Keep what `delta` says for `whole`; its text."""
        growing = self._all[delta.choice]
        text, end = raw_text(delta)
        if end is not None:
            growing.end(end)
            text += end.stop if end.stop and self.shows_stop else ""
        growing.texts.append(text)
        return text

    def closing(self, usage: Usage) -> bytes:
        """The last event: why it ended, and what it cost."""
        last = TokenStep(
            token="",
            finish_reason=self._all[0].finish,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )
        return named_frame(EVENT, last)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        results = [
            Result(
                text="".join(one.texts),
                finish_reason=one.finish,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
            )
            for one in self._all
        ]
        return body(Results(results))


DIALECT = Dialect(name="Kobold", tag="KoboldAI", error=_wire)
