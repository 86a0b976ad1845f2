"""Parses bodies of KoboldAI's routes. Knows no model."""

from collections.abc import Mapping
from typing import Any

import msgspec

from backends.shapes import Grammar
from gateway.dialects.fields import Fields, fields_of, json_object, order_object
from gateway.dialects.kobold.wire import GenerateWire, Keyed
from gateway.dialects.parameters import SamplingWire, read_keep_alive, read_sampling, read_stop
from gateway.request import GenerationParams, TextRequest

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
_KNOWN = frozenset(
    {*GenerateWire.__struct_fields__, *SamplingWire.__struct_fields__, "gui_settings"}
)


class KoboldExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A text to go on from, and the form of the answer. `ignored`: fields without a meaning here;
    `shows_stop`: the stop string that ended it is part of the text.
    """

    request: TextRequest
    stream: bool
    shows_stop: bool
    genkey: str
    ignored: tuple[str, ...] = ()


def read_generate(body: bytes, *, stream: bool) -> KoboldExchange:
    """What a body of `/api/v1/generate`, or of its stream, means. Raises InvalidRequest, which
    names the field.
    """
    fields = _fields(json_object(body))
    wire = fields.read(GenerateWire)
    if wire.images:
        raise fields.wrong("images", "A raw text takes no images; send them in a chat.")
    if stream and wire.n > 1:
        raise fields.wrong("n", "A stream has one text.")
    ignored = fields.beyond(_KNOWN)
    return KoboldExchange(
        request=TextRequest(
            model=wire.model,
            prompts=(wire.memory + wire.prompt,),
            answering=_answering(fields, wire, ignored, stream=stream),
        ),
        stream=stream,
        shows_stop=not (wire.trim_stop or wire.singleline),
        genkey=wire.genkey,
        ignored=ignored,
    )


def read_keyed(body: bytes) -> Keyed:
    """Which generation a body names: one without a key, where there is no body. Raises
    InvalidRequest.
    """
    return fields_of(order_object(body) if body.strip() else {}).read(Keyed)


def _answering(
    fields: Fields, wire: GenerateWire, ignored: tuple[str, ...], *, stream: bool
) -> GenerationParams:
    asked = _sampled(fields, wire)
    return GenerationParams(
        sampling=read_sampling(asked),
        max_tokens=wire.max_tokens,
        min_tokens=wire.min_tokens,
        stop=_stop(fields, wire),
        n=wire.n,
        keep_alive=read_keep_alive(fields, wire.keep_alive),
        shape=Grammar(text=wire.grammar) if wire.grammar else None,
        streamed=stream,
        spelled=asked.otherwise(),
        unread=ignored,
    )


def _stop(fields: Fields, wire: GenerateWire) -> tuple[str, ...]:
    texts = [wire.stop] if isinstance(wire.stop, str) else [text or "" for text in wire.stop]
    lines = ("\n",) if wire.singleline else ()
    return (*read_stop(fields, texts), *lines)


def _fields(wire: Mapping[str, Any]) -> Fields:
    """KoboldCpp's `banned_tokens` are texts, and ids are `custom_token_bans`."""
    given = {name: value for name, value in wire.items() if name != "banned_tokens"}
    fields = fields_of(given)
    texts = wire.get("banned_tokens")
    if texts is None or "banned_strings" in fields.values:
        return fields
    values = {**fields.values, "banned_strings": texts}
    return Fields(values, {**fields.spelled, "banned_strings": "banned_tokens"})


def _sampled(fields: Fields, wire: GenerateWire) -> Fields:
    """`fields` with what only KoboldAI calls so under our names."""
    values, spelled = dict(fields.values), dict(fields.spelled)
    if wire.sampler_order:
        named = (name for number in wire.sampler_order for name in SAMPLERS[number])
        values["samplers"] = ["dry", *named, "xtc"]  # where KoboldCpp has these two
        spelled["samplers"] = "sampler_order"
    if wire.use_default_badwordsids and "ban_eos" not in values:
        values["ban_eos"] = True
        spelled["ban_eos"] = "use_default_badwordsids"
    return Fields(values, spelled)
