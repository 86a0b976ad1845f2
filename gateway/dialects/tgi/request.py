"""Parses bodies of TGI's and TEI's routes. Knows no model."""

from collections.abc import Mapping, Sequence

import msgspec

from backends.shapes import JsonSchema, Regex, Shape
from gateway.dialects.encoding import (
    EmbeddingExchange,
    further,
    positive,
    read_texts,
    written,
)
from gateway.dialects.fields import Fields, fields_of, read_fields
from gateway.dialects.frames import body
from gateway.dialects.parameters import SamplingWire, read_sampling, read_stop
from gateway.dialects.tgi.wire import (
    EmbedWire,
    GenerateWire,
    GrammarWire,
    InputsWire,
    ParametersWire,
)
from gateway.request import EmbeddingRequest, GenerationParams, TextRequest

_FIELDS = frozenset(GenerateWire.__struct_fields__)
_PARAMETERS = frozenset((*ParametersWire.__struct_fields__, *SamplingWire.__struct_fields__))
_EMBED_FIELDS = frozenset(EmbedWire.__struct_fields__)


class TgiExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A text to go on from, and the form of the answer. `details`: with its tokens; `prompt`: what
    stands before the text; `ignored`: fields without a meaning here.
    """

    request: TextRequest
    stream: bool
    details: bool = False
    prompt: str = ""
    ignored: tuple[str, ...] = ()


def read_generate(content: bytes, *, stream: bool | None = None) -> TgiExchange:
    """What a body of `/generate` means. `stream`: what its path says of that. Raises
    InvalidRequest, which names the field.
    """
    fields = read_fields(content)
    wire = fields.read(GenerateWire)
    given = _parameters(wire.parameters)
    asked = given.read(ParametersWire)
    streamed = wire.stream if stream is None else stream
    ignored = (*fields.beyond(_FIELDS), *given.beyond(_PARAMETERS))
    return TgiExchange(
        request=TextRequest(
            model=wire.model,
            prompts=(wire.inputs,),
            answering=GenerationParams(
                sampling=read_sampling(given),
                max_tokens=asked.max_tokens,
                stop=read_stop(given, asked.stop),
                logprobs=asked.top_n_tokens if asked.details or asked.top_n_tokens else None,
                shape=_shape(asked.grammar) if asked.grammar is not None else None,
                streamed=streamed,
                spelled=given.otherwise(),
                unread=ignored,
            ),
        ),
        stream=streamed,
        details=asked.details,
        prompt=wire.inputs if asked.return_full_text else "",
        ignored=ignored,
    )


def _parameters(wire: Mapping[str, object]) -> Fields:
    """`do_sample: false` is the likeliest token each time."""
    fields = fields_of(wire, "parameters.")
    if fields.values.get("do_sample") is not False:
        return fields
    values = {**fields.values, "temperature": 0}
    return Fields(values, {**fields.spelled, "temperature": "do_sample"}, fields.prefix)


def _shape(wire: GrammarWire) -> Shape:
    field, value = "parameters.grammar.value", wire.value
    if wire.type == "regex":
        return Regex(pattern=str(value), field=field)
    if wire.type == "json_schema" and isinstance(value, dict) and "schema" in value:
        value = value["schema"]
    schema = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    return JsonSchema(schema=schema, field=field)


def read_inputs(content: bytes) -> bool | None:
    """Whether a body sent to `/` wants vectors; None where only the models there are say it. Raises
    InvalidRequest.
    """
    wire = read_fields(content).read(InputsWire)
    if not isinstance(wire.inputs, str):
        return True
    return None if wire.parameters is None and wire.stream is None else False


def read_embed(content: bytes) -> EmbeddingExchange:
    """What a body of `/embed` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(EmbedWire)
    unnormalized = () if wire.normalize else ("normalize",)
    return EmbeddingExchange(
        request=EmbeddingRequest(
            model=wire.model,
            field="inputs",
            inputs=read_texts(fields, "inputs", wire.inputs),
            dimensions=positive(fields, "dimensions", wire.dimensions),
            prompt=wire.prompt_name,
            truncate=wire.truncate,
            further=further(fields, _EMBED_FIELDS, "truncate"),
        ),
        base64=wire.encoding_format == "base64",
        ignored=(*fields.beyond(_EMBED_FIELDS), *unnormalized),
    )


def embed_body(exchange: EmbeddingExchange, vectors: Sequence[bytes]) -> bytes:
    """The JSON body of `vectors`."""
    return body([written(vector, base64=exchange.base64) for vector in vectors])
