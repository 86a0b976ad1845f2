"""llama-server's own `/embedding`: every text's vector in a list of vectors, since where nothing is
pooled there is one for each token. Knows no model.
"""

from collections.abc import Sequence

import msgspec

from gateway.dialects.encoding import EmbeddingExchange, Input, further, read_texts, written
from gateway.dialects.fields import read_fields
from gateway.dialects.frames import body
from gateway.errors import InvalidRequest
from gateway.request import EmbeddingRequest

EUCLIDEAN = 2  # the length of a vector that models are normalized by


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """Texts, or token ids, under either of two names."""

    content: Input | None = None
    input: Input | None = None
    model: str = ""
    embd_normalize: int = EUCLIDEAN


class EmbeddedWire(msgspec.Struct, frozen=True, kw_only=True):
    """One text's vector."""

    index: int
    embedding: Sequence[list[float] | str]


_FIELDS = frozenset(EmbeddingBody.__struct_fields__)


def read_embedding(content: bytes) -> EmbeddingExchange:
    """What a body of `/embedding` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(EmbeddingBody)
    if wire.embd_normalize != EUCLIDEAN:
        text = "embd_normalize: Vectors are normalized by their Euclidean length (2) alone."
        raise InvalidRequest(text, param="embd_normalize")
    field = "content" if wire.content is not None else "input"
    texts = wire.input if wire.content is None else wire.content
    if texts is None:
        raise fields.wrong("content", "This field is required.")
    return EmbeddingExchange(
        request=EmbeddingRequest(
            model=wire.model,
            field=field,
            inputs=read_texts(fields, field, texts),
            further=further(fields, _FIELDS),
        ),
        ignored=fields.beyond(_FIELDS),
    )


def embedding_body(vectors: Sequence[bytes]) -> bytes:
    """The JSON body of `vectors`."""
    return body(
        [
            EmbeddedWire(index=at, embedding=[written(vector, base64=False)])
            for at, vector in enumerate(vectors)
        ]
    )


def asks_own_form(content: bytes) -> bool:
    """Whether a body sent to `/embeddings`, which OpenAI's clients call too where they leave out
    `/v1`, has llama-server's field. Raises InvalidRequest.
    """
    return "content" in read_fields(content).values
