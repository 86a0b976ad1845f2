"""Parses bodies of TGI's and TEI's routes. Knows no model.

TGI's and TEI's bodies, in and out.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backends.protocol import JsonSchema, Regex, Shape
from gateway.dialects.encoding import (
    EmbeddingExchange,
    Input,
    further,
    positive,
    read_texts,
    written,
)
from gateway.dialects.fields import Fields, fields_of, read_fields
from gateway.dialects.frames import body
from gateway.dialects.parameters import SamplingWire, read_sampling, read_stop
from gateway.request import EmbeddingRequest, GenerationParams, TextRequest, all_unapplied

Finish: TypeAlias = Literal["length", "eos_token", "stop_sequence"]

# ----------------------------------------------------------------------------------------------- in


class GenerateWire(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt to continue."""

    inputs: str
    parameters: dict[str, Any] = {}
    stream: bool = False
    model: str = ""  # no client of TGI sends it: it knows one model


class ParametersWire(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of a text, sampling aside, by our names."""

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: list[str] = []
    do_sample: bool | None = None
    details: bool = False
    return_full_text: bool = False
    top_n_tokens: Annotated[int, Meta(ge=0, le=20)] = 0
    grammar: "GrammarWire | None" = None


class GrammarWire(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a text. `value`: a JSON schema, or the text of one; a regex."""

    type: Literal["json", "json_schema", "regex"]
    value: str | dict[str, Any] | bool


class EmbedWire(msgspec.Struct, frozen=True, kw_only=True):
    """Texts or token ids to embed."""

    inputs: Input
    truncate: bool = False
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    model: str = ""


class InputsWire(msgspec.Struct, frozen=True, kw_only=True):
    """A body of TGI's or TEI's."""

    inputs: Input
    parameters: dict[str, Any] | None = None
    stream: bool | None = None


# ---------------------------------------------------------------------------------------------- out


class TokenWire(msgspec.Struct, frozen=True, kw_only=True):
    """One token. Without details, several tokens can be sent as one, without id and log
    probability.
    """

    id: int | None = None
    text: str
    logprob: float | None = None
    special: bool = False


class StreamDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The finish reason of a text, and the usage."""

    finish_reason: Finish
    generated_tokens: int
    input_length: int
    seed: int | None = None


class StreamStep(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. The last one contains the whole text."""

    index: int
    token: TokenWire
    top_tokens: Sequence[TokenWire] | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """The finish reason of a text, and its tokens."""

    finish_reason: Finish
    generated_tokens: int
    seed: int | None = None
    prefill: Sequence[TokenWire] = ()
    tokens: Sequence[TokenWire] = ()
    top_tokens: Sequence[Sequence[TokenWire]] | UnsetType = UNSET


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    generated_text: str
    details: Details | UnsetType = UNSET


class InfoWire(msgspec.Struct, frozen=True, kw_only=True):
    """The model that answers requests, because they don't name one, and the limits, in tokens and
    texts.
    """

    model_id: str
    model_sha: str | None = None
    model_dtype: str | None = None
    model_device_type: str | None = None
    model_pipeline_tag: str
    max_input_tokens: int
    max_input_length: int
    max_total_tokens: int
    max_best_of: int = 1
    max_stop_sequences: int
    max_client_batch_size: int
    router: str = "roundhouse"
    version: str


_FIELDS = frozenset(GenerateWire.__struct_fields__)
_PARAMETERS = frozenset((*ParametersWire.__struct_fields__, *SamplingWire.__struct_fields__))
_EMBED_FIELDS = frozenset(EmbedWire.__struct_fields__)


class TgiExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A text to go on from, and the form of the answer. `details`: with its tokens; `prompt`: what
    stands before the text.
    """

    request: TextRequest
    stream: bool
    details: bool = False
    prompt: str = ""


def read_generate(content: bytes, *, stream: bool | None = None) -> TgiExchange:
    """What a body of `/generate` means. `stream`: what its path says of that. Raises
    InvalidRequest, which names the field.
    """
    fields = read_fields(content)
    wire = fields.read(GenerateWire)
    given = _parameters(wire.parameters)
    asked = given.read(ParametersWire)
    streamed = wire.stream if stream is None else stream
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
                unapplied=(*fields.unapplied(_FIELDS), *given.unapplied(_PARAMETERS)),
            ),
        ),
        stream=streamed,
        details=asked.details,
        prompt=wire.inputs if asked.return_full_text else "",
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
    return EmbeddingExchange(
        request=EmbeddingRequest(
            model=wire.model,
            field="inputs",
            inputs=read_texts(fields, "inputs", wire.inputs),
            dimensions=positive(fields, "dimensions", wire.dimensions),
            prompt=wire.prompt_name,
            truncate=wire.truncate,
            further=further(fields, _EMBED_FIELDS, "truncate"),
            unapplied=(
                *fields.unapplied(_EMBED_FIELDS),
                *(() if wire.normalize else all_unapplied("normalize")),
            ),
        ),
        base64=wire.encoding_format == "base64",
    )


def embed_body(exchange: EmbeddingExchange, vectors: Sequence[bytes]) -> bytes:
    """The JSON body of `vectors`."""
    return body([written(vector, base64=exchange.base64) for vector in vectors])
