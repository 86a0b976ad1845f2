"""Hugging Face's servers: Text Generation Inference, with texts whole or streamed, and Text
Embeddings Inference, with vectors. Their rerank stands with the other reranking APIs.

Pure: bytes in, structs out (`read_generate`, `read_embed`); events in, bytes out (`TgiReply`): an
event for each token, or the whole text at the end. Knows no model and no HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from backends.contract.protocol import Candidate, TokenLogprob
from gateway.dialects.dialect import Dialect, Reply, body, frame
from gateway.dialects.encoding import (
    EmbeddingExchange,
    EncodingWire,
    Input,
    positive,
    read_encoding,
    read_texts,
    written,
)
from gateway.dialects.fields import Fields, fields_of, read_fields
from gateway.dialects.parameters import Alternatives, SamplingWire, read_sampling, read_stop
from gateway.dialects.shapes import SHAPE_FIELDS, read_shape
from gateway.terms.errors import GatewayError
from gateway.terms.events import Delta, Encodings, Usage, raw_text
from gateway.terms.request import EmbeddingRequest, GenerationParams, TextRequest, all_unapplied

Finish: TypeAlias = Literal["length", "eos_token", "stop_sequence"]


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
    top_n_tokens: Alternatives = 0
    grammar: Any = None


class EmbedWire(EncodingWire, frozen=True, kw_only=True):
    """Texts or token ids to embed."""

    inputs: Input
    truncate: bool = False
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"


class InputsWire(msgspec.Struct, frozen=True, kw_only=True):
    """A body of TGI's or TEI's."""

    inputs: Input
    parameters: dict[str, Any] | None = None
    stream: bool | None = None


class TokenWire(msgspec.Struct, frozen=True, kw_only=True):
    """One token. Without details, several tokens can be sent as one, without id and log
    probability.
    """

    id: int | None = None
    text: str
    logprob: float | None = None
    special: bool = False


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """The finish reason of a text, and the usage; of a whole one its tokens."""

    finish_reason: Finish
    generated_tokens: int
    input_length: int | UnsetType = UNSET
    seed: int | None = None
    prefill: Sequence[TokenWire] | UnsetType = UNSET
    tokens: Sequence[TokenWire] | UnsetType = UNSET
    top_tokens: Sequence[Sequence[TokenWire]] | UnsetType = UNSET


class StreamStep(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. The last one contains the whole text."""

    index: int
    token: TokenWire
    top_tokens: Sequence[TokenWire] | UnsetType = UNSET
    generated_text: str | None = None
    details: Details | None = None


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


class TgiExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A text to go on from, and the form of the answer. `details`: with its tokens; `prompt`: what
    stands before the text.
    """

    request: TextRequest
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
    return TgiExchange(
        request=TextRequest(
            model=wire.model,
            prompts=(wire.inputs,),
            answering=GenerationParams(
                sampling=read_sampling(given),
                max_tokens=asked.max_tokens,
                stop=read_stop(given, asked.stop),
                logprobs=asked.top_n_tokens if asked.details or asked.top_n_tokens else None,
                shape=read_shape(given),
                streamed=wire.stream if stream is None else stream,
                spelled=given.otherwise(),
                unapplied=(
                    *fields.unapplied(GenerateWire),
                    *given.unapplied(ParametersWire, SamplingWire, SHAPE_FIELDS),
                ),
            ),
        ),
        details=asked.details,
        prompt=wire.inputs if asked.return_full_text else "",
    )


def _parameters(wire: Mapping[str, object]) -> Fields:
    """`do_sample: false` is the likeliest token each time."""
    fields = fields_of(wire, "parameters.")
    if fields.values.get("do_sample") is not False:
        return fields
    return fields.meaning("temperature", "do_sample", value=0)


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
    other = () if wire.normalize else all_unapplied("normalize")
    return EmbeddingExchange(
        request=read_encoding(
            EmbeddingRequest, fields, wire, "inputs", "truncate", unapplied=other
        )(
            inputs=read_texts(fields, "inputs", wire.inputs),
            dimensions=positive(fields, "dimensions", wire.dimensions),
            prompt=wire.prompt_name,
            truncate=wire.truncate,
        ),
        base64=wire.encoding_format == "base64",
    )


def embed_body(exchange: EmbeddingExchange, encoded: Encodings) -> bytes:
    """The JSON body of vectors."""
    return body([written(vector, base64=exchange.base64) for vector in encoded.vectors])


class TgiError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a failed request, and the last event of a broken stream. Clients choose an
    exception by `error_type`. `param` and `code` are ours.
    """

    error: str
    error_type: Literal["validation", "overloaded", "generation"]
    param: str | None
    code: str | None


def _wire(error: GatewayError) -> TgiError:
    overloaded, own = error.status_hint in (429, 503), error.status_hint >= 500
    return TgiError(
        error=error.message,
        error_type="overloaded" if overloaded else "generation" if own else "validation",
        param=error.param,
        code=error.code,
    )


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return frame(_wire(error))


class TgiReply(Reply):
    """The answer to one request, as a stream or whole.

    The stop sequence that ended a text is its end, as with TGI. `listed`: the whole stands in a
    list, as TGI answers at `/`.
    """

    exchange: TgiExchange
    listed: bool = False
    _texts: list[str] = msgspec.field(default_factory=list)
    _waiting: tuple[TokenLogprob, ...] = ()  # of text that is held back
    _tokens: list[TokenWire] = msgspec.field(default_factory=list)
    _top: list[Sequence[TokenWire]] = msgspec.field(default_factory=list)
    _sent: int = 0
    _finish: Finish = "length"

    @property
    def _shows_top(self) -> bool:
        return bool(self.exchange.request.answering.logprobs)

    @property
    def _text(self) -> str:
        return self.exchange.prompt + "".join(self._texts)

    def delta(self, delta: Delta) -> bytes:
        """Some more of the text: an event for each token, or one for all of them."""
        before = len(self._tokens)
        self.add(delta)
        tokens, top = self._tokens[before:], self._top[before:]
        frames = [self._step(token, top[at : at + 1]) for at, token in enumerate(tokens)]
        if not self.exchange.details:
            del self._tokens[:], self._top[:]
        return b"".join(frames)

    def closing(self, usage: Usage) -> bytes:
        """The last event: a token without a text, the whole text, and why it ended."""
        return frame(
            StreamStep(
                index=self._sent + 1,
                token=TokenWire(text="", special=True),
                generated_text=self._text,
                details=self._details(usage, input_length=usage.prompt_tokens),
            )
        )

    def add(self, delta: Delta) -> None:
        """Keep some more of the text for `whole`."""
        text, end = raw_text(delta)
        if end is not None and end.reason != "length":
            self._finish = "eos_token" if end.stop is None else "stop_sequence"
            text += end.stop or ""
        self._waiting += delta.logprobs
        if text:
            self._texts.append(text)
            logprobs, self._waiting = self._waiting, ()
            self._keep(text, logprobs)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        top = self._top if self._shows_top else UNSET
        details = self._details(usage, prefill=(), tokens=self._tokens, top_tokens=top)
        generated = Generated(
            generated_text=self._text, details=details if self.exchange.details else UNSET
        )
        return body([generated] if self.listed else generated)

    def _keep(self, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        """Tokens of their own where the text is theirs, else one for all of it."""
        tokens = [_token(logprob.chosen) for logprob in logprobs]
        if "".join(token.text for token in tokens) != text:
            tokens = [TokenWire(text=text)]
        self._tokens += tokens
        tops = [[_token(candidate) for candidate in logprob.top] for logprob in logprobs]
        self._top += tops if len(tops) == len(tokens) else [()] * len(tokens)

    def _step(self, token: TokenWire, top: Sequence[Sequence[TokenWire]]) -> bytes:
        self._sent += 1
        shown: Sequence[TokenWire] | UnsetType = top[0] if self._shows_top and top else UNSET
        return frame(StreamStep(index=self._sent, token=token, top_tokens=shown))

    def _details(self, usage: Usage, **more: Any) -> Details:
        sampling = self.exchange.request.answering.sampling
        return Details(
            finish_reason=self._finish,
            generated_tokens=usage.completion_tokens,
            seed=sampling.values.seed if "seed" in sampling.named else None,
            **more,
        )


def _token(candidate: Candidate) -> TokenWire:
    text = candidate.text.decode(errors="replace")
    return TokenWire(id=candidate.token, text=text, logprob=candidate.logprob)


DIALECT = Dialect(name="Tgi", tag="TGI and TEI", error=_wire)
