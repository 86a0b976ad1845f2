"""Ollama's answers: lines of JSON, the last one with `done`; embeddings; lists of models, downloads
and errors. Knows no HTTP and no registry.

All times on the wire are nanoseconds.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import starmap
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.dialects.dialect import Reply, body, line
from gateway.dialects.encoding import (
    EmbeddingExchange,
    EncodingWire,
    positive,
    read_encoding,
    read_texts,
    written,
)
from gateway.dialects.fields import Fields, fields_of, read_fields
from gateway.dialects.logprobs import LogprobWire, logprob_wire
from gateway.dialects.ollama.request import CalledWire, CallWire, Presence, Preset, with_tag
from gateway.dialects.parameters import read_keep_alive
from gateway.terms.errors import GatewayError
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
    Usage,
    given_object,
)
from gateway.terms.request import EmbeddingRequest


class ErrorWire(msgspec.Struct, frozen=True, kw_only=True):
    """`param` and `code` are ours."""

    error: str
    param: str | None
    code: str | None


def error_wire(error: GatewayError) -> ErrorWire:
    """The body that answers a request with `error`."""
    return ErrorWire(error=error.message, param=error.param, code=error.code)


def error_line(error: GatewayError) -> bytes:
    """The last line of a broken stream."""
    return line(error_wire(error))


class MessageWire(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the message, or the whole message."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: tuple[CallWire, ...] | UnsetType = UNSET


class ChunkWire(msgspec.Struct, frozen=True, kw_only=True):
    """One line, or the whole body. `message` is chat's, `response` and `thinking` generate's. The
    last one has what it cost: durations are nanoseconds; `prompt_eval_count` has the cached tokens.
    """

    model: str
    created_at: str
    message: MessageWire | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    logprobs: Sequence[LogprobWire] | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaReply(Reply):
    """The answer to one request, as a stream or whole. Calls are sent whole, each in a line of its
    own. `chat`: it is a `message`; else a `response`. `created_at`: RFC 3339.
    """

    model: str
    created_at: str
    chat: bool
    hides_thinking: bool = False
    load_seconds: float = 0.0
    _reason: str = "stop"
    _growing: dict[int, tuple[ToolOpened, list[str]]] = msgspec.field(default_factory=dict)
    _content: list[str] = msgspec.field(default_factory=list)
    _thinking: list[str] = msgspec.field(default_factory=list)
    _calls: list[CallWire] = msgspec.field(default_factory=list)
    _logprobs: list[LogprobWire] = msgspec.field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self._logprobs += map(logprob_wire, delta.logprobs)
        self.delta(delta)

    def delta(self, delta: Delta) -> bytes:
        """Some more of the answer."""
        lines = b"".join([self._lines_of(event) for event in delta.events])
        if delta.logprobs:
            lines += line(self._chunk(logprobs=[*map(logprob_wire, delta.logprobs)]))
        return lines

    def _lines_of(self, event: Event) -> bytes:
        match event:
            case Reasoning() if self.hides_thinking:
                return b""
            case Content(text) if text:
                self._content.append(text)
                return line(self._chunk(content=text))
            case Reasoning(text) if text:
                self._thinking.append(text)
                return line(self._chunk(thinking=text))
        called = self._called(event)
        self._calls += called
        return line(self._chunk(calls=called)) if called else b""

    def _called(self, event: Event) -> tuple[CallWire, ...]:
        """The call that `event` completes; at the end, the one that broke off."""
        match event:
            case ToolOpened(index):
                self._growing[index] = event, []
            case ArgumentsGrown(index, fragment):
                self._growing[index][1].append(fragment)
            case ToolClosed(index):
                return (_whole(*self._growing.pop(index)),)
            case Finished(reason):
                self._reason = "length" if reason == "length" else "stop"
                return tuple(starmap(_whole, self._growing.values()))
        return ()

    def closing(self, usage: Usage) -> bytes:
        """The last line: why it ended, what it cost."""
        return line(self._ended(self._chunk(content=""), usage))

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        chunk = self._chunk(
            content="".join(self._content),
            thinking="".join(self._thinking),
            calls=tuple(self._calls),
            logprobs=tuple(self._logprobs),
        )
        return body(self._ended(chunk, usage))

    def present(self, *, gone: bool) -> bytes:
        """The whole answer to a request that only asks for a model to be there, or to go."""
        chunk = self._chunk(content="")
        reason = "unload" if gone else "load"
        return body(msgspec.structs.replace(chunk, done=True, done_reason=reason))

    def _ended(self, chunk: ChunkWire, usage: Usage) -> ChunkWire:
        load, prefill, decode = self.load_seconds, usage.prefill_seconds, usage.decode_seconds
        return msgspec.structs.replace(
            chunk,
            done=True,
            done_reason=self._reason,
            total_duration=_nanoseconds(usage.queue_seconds + load + prefill + decode),
            load_duration=_nanoseconds(load),
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=_nanoseconds(prefill),
            eval_count=usage.completion_tokens,
            eval_duration=_nanoseconds(decode),
        )

    def _chunk(
        self,
        *,
        content: str = "",
        thinking: str = "",
        calls: tuple[CallWire, ...] = (),
        logprobs: Sequence[LogprobWire] = (),
    ) -> ChunkWire:
        chunk = ChunkWire(model=self.model, created_at=self.created_at, logprobs=logprobs or UNSET)
        if self.chat:
            message = MessageWire(
                content=content, thinking=thinking or UNSET, tool_calls=calls or UNSET
            )
            return msgspec.structs.replace(chunk, message=message)
        return msgspec.structs.replace(chunk, response=content, thinking=thinking or UNSET)


def _whole(opened: ToolOpened, fragments: Sequence[str]) -> CallWire:
    given = given_object("".join(fragments))
    called = CalledWire(index=opened.index, name=opened.name, arguments=given)
    return CallWire(id=opened.id, function=called)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


# The release whose API is spoken: clients refuse to talk to servers that are too old for them.
SPOKEN = "0.12.0"
FOR_GOOD = datetime(2318, 1, 1, tzinfo=UTC)  # the expiry of a model that never expires
CAPABILITIES: Mapping[str, str] = {
    "tools": "tools",
    "reasoning": "thinking",
    "vision": "vision",
    "embedding": "embedding",
}
OTHER_TASKS = frozenset({"embedding", "rerank"})  # of models that complete nothing


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model. Sizes are bytes, `created` is Unix time."""

    name: str
    created: int
    size: int
    format: str
    family: str
    context_length: int
    capabilities: Sequence[str] = ()
    parent: str = ""  # the model that it was made of
    described: Mapping[str, str] = {}


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of model. Empty texts: not known."""

    parent_model: str = ""
    format: str
    family: str
    families: tuple[str, ...]
    parameter_size: str = ""
    quantization_level: str = ""


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model in a list. The last two fields are set if it is in memory."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    expires_at: str | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class Models(msgspec.Struct, frozen=True):
    """Some models."""

    models: Sequence[ListedModel]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The details of one model. Only created models have a modelfile. Licences are not known."""

    modelfile: str = ""
    parameters: str = ""
    template: str
    system: str | UnsetType = UNSET
    license: str = ""
    details: Details
    model_info: Mapping[str, Any]
    capabilities: tuple[str, ...]
    modified_at: str


class Version(msgspec.Struct, frozen=True):
    """The version of the supported API."""

    version: str = SPOKEN


class Status(msgspec.Struct, frozen=True):
    """One step of a download. Sizes are in bytes."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


def listed(seen: Seen) -> ListedModel:
    """A model in a list."""
    return ListedModel(
        name=with_tag(seen.name),
        model=with_tag(seen.name),
        modified_at=moment(datetime.fromtimestamp(seen.created, UTC)),
        size=seen.size,
        digest=sha256(f"{seen.name} {seen.size} {seen.created}".encode()).hexdigest(),
        details=_details(seen),
    )


def resident(seen: Seen, *, expires: datetime | None, size: int | None) -> ListedModel:
    """A model in memory. `expires`: when it is unloaded if not used; None: never. `size`: bytes it
    takes there; None: those on disk.
    """
    return msgspec.structs.replace(
        listed(seen),
        size=seen.size if size is None else size,
        expires_at=moment(expires or FOR_GOOD),
        context_length=seen.context_length,
    )


def shown(seen: Seen, *, template: str, preset: Preset | None = None) -> Shown:
    """One model; of a made one with what its `preset` says."""
    if preset is not None:
        seen = msgspec.structs.replace(seen, parent=preset.base)
    able = [CAPABILITIES[name] for name in seen.capabilities if name in CAPABILITIES]
    writes = not OTHER_TASKS & set(seen.capabilities)
    return Shown(
        template=template,
        modelfile=preset.modelfile if preset else "",
        parameters=preset.parameters if preset else "",
        system=preset.system if preset and preset.system else UNSET,
        details=_details(seen),
        model_info={
            "general.architecture": seen.family,
            "general.basename": seen.name,
            f"{seen.family}.context_length": seen.context_length,
        },
        capabilities=("completion", *able) if writes else tuple(able),
        modified_at=moment(datetime.fromtimestamp(seen.created, UTC)),
    )


def pulling(file: str, done: int, total: int) -> bytes:
    """The line of a step of a download."""
    return line(Status(f"pulling {file}", digest=file, total=total, completed=done))


def status_line(status: str) -> bytes:
    """The line of a step that has no size; the last is "success"."""
    return line(Status(status))


def moment(time: datetime) -> str:
    """RFC 3339, in UTC."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _details(seen: Seen) -> Details:
    return Details(
        parent_model=seen.parent,
        format=seen.format,
        family=seen.family,
        families=(seen.family,),
        parameter_size=seen.described.get("parameter_size", ""),
        quantization_level=seen.described.get("quantization_level", ""),
    )


class EmbedWire(EncodingWire, frozen=True, kw_only=True):
    """Texts to embed. Without texts, the model is loaded or unloaded."""

    input: str | list[str] = msgspec.field(default_factory=list)
    truncate: bool = True
    dimensions: int | None = None
    keep_alive: float | str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class OldEmbedWire(EncodingWire, frozen=True, kw_only=True):
    """One text to embed. Without it, the model is loaded or unloaded."""

    prompt: str = ""
    keep_alive: float | str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings of all texts, in their order. Durations are in nanoseconds."""

    model: str
    embeddings: Sequence[list[float] | str]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OldEmbedded(msgspec.Struct, frozen=True):
    """One embedding."""

    embedding: list[float] | str


def read_embed(content: bytes) -> EmbeddingExchange | Presence:
    """What a body of `/api/embed` means: texts that are too long are cut, unless `truncate` is
    false. Raises InvalidRequest, which names the field.
    """
    fields = read_fields(content)
    wire = fields.read(EmbedWire)
    size = wire.dimensions
    return _embedding(fields, wire, "input", wire.input, truncate=wire.truncate, dimensions=size)


def read_old_embed(content: bytes) -> EmbeddingExchange | Presence:
    """What a body of `/api/embeddings` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(OldEmbedWire)
    return _embedding(fields, wire, "prompt", wire.prompt)


def _embedding(
    fields: Fields,
    wire: EmbedWire | OldEmbedWire,
    field: str,
    texts: str | list[Any],
    *,
    truncate: bool = True,
    dimensions: int | None = None,
) -> EmbeddingExchange | Presence:
    keep_alive = read_keep_alive(fields, wire.keep_alive)
    if not texts:
        return Presence(model=wire.model, keep_alive=keep_alive)
    other = fields_of(wire.options, "options.").unapplied()  # nothing is generated
    return EmbeddingExchange(
        request=read_encoding(EmbeddingRequest, fields, wire, field, "truncate", unapplied=other)(
            inputs=read_texts(fields, field, texts),
            dimensions=positive(fields, "dimensions", dimensions),
            truncate=truncate,
            keep_alive=keep_alive,
        ),
    )


def embed_body(
    model: str, vectors: Sequence[bytes], tokens: int, *, seconds: float, load_seconds: float
) -> bytes:
    """The JSON body of `vectors`, which cost `tokens`."""
    return body(
        Embedded(
            model=model,
            embeddings=[written(vector, base64=False) for vector in vectors],
            total_duration=int(seconds * 1e9),
            load_duration=int(load_seconds * 1e9),
            prompt_eval_count=tokens,
        )
    )


def old_embed_body(vector: bytes) -> bytes:
    """The JSON body of one vector."""
    return body(OldEmbedded(written(vector, base64=False)))
