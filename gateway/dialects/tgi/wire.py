"""TGI's and TEI's bodies, in and out."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.dialects.encoding import Input

Finish: TypeAlias = Literal["length", "eos_token", "stop_sequence"]

# ----------------------------------------------------------------------------------------------- in


class GenerateWire(msgspec.Struct, frozen=True, kw_only=True):
    """A text to go on from."""

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
    """Texts, or token ids, whose vectors are wanted."""

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
    """One token. Where no details are wanted several may come as one, without id and likelihood."""

    id: int | None = None
    text: str
    logprob: float | None = None
    special: bool = False


class StreamDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a text ended, and what it cost."""

    finish_reason: Finish
    generated_tokens: int
    input_length: int
    seed: int | None = None


class StreamStep(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. The last one has the whole text."""

    index: int
    token: TokenWire
    top_tokens: Sequence[TokenWire] | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """Why a text ended, and of which tokens it is."""

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
    """The model that answers requests, which name none; and limits, in tokens and texts."""

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
