"""Hugging Face's routes: TGI's texts and TEI's vectors, as `huggingface_hub` calls them.

Their clients know one model. For texts it is the one in use, else the default; for vectors the
first that makes any.
"""

from functools import partial

from litestar import get, post
from litestar.types import ASGIApp
from msgspec.structs import replace

from config.product import VERSION
from gateway.dialects import tgi
from gateway.dialects.parameters import MAX_STOPS
from gateway.dialects.tgi import EmbedWire, Generated, GenerateWire, InfoWire, StreamStep
from gateway.http.auth import AnyRequest
from gateway.http.exchange import Exchange
from gateway.http.openapi import Described
from gateway.http.routing import Routes
from gateway.http.services import Services, context_length

TAGS = {"generate": "text-generation", "embed": "feature-extraction", "rank": "text-ranking"}
TEXTS = 2_048  # of one request for vectors

api = Routes()
front = Routes()  # at the same address as the console's page, so one router has both


@front(post, "/", tags=[tgi.DIALECT.tag], access="user")
async def either(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate text or compute embeddings, depending on the body. A body with only inputs gets
    embeddings if an embedding model is available.
    """
    wants_vectors = await services.read(tgi.read_inputs, await request.body())
    if wants_vectors is None:
        wants_vectors = any(status.task == "embed" for status in services.usable(request.auth))
    if wants_vectors:
        return await _embedded(request, services)
    return await _generated(request, services, stream=None, listed=True)


@api(post, "/generate", access="user")
async def generate(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the continuation of a text."""
    return await _generated(request, services, stream=False)


@api(post, "/generate_stream", access="user")
async def generate_stream(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the continuation of a text, as a stream."""
    return await _generated(request, services, stream=True)


async def _generated(
    request: AnyRequest, services: Services, *, stream: bool | None, listed: bool = False
) -> ASGIApp:
    read = partial(tgi.read_generate, stream=stream)
    exchange = await services.read(read, await request.body())
    name = await services.tokenizers.named(exchange.request.model, request.auth)
    asked = replace(exchange.request, model=name)
    return Exchange(
        services.asking(request, "tgi", asked),
        services.pipeline.text,
        lambda _answer: tgi.TgiReply(exchange, listed=listed),
        tgi.error_event,
    )


@api(post, "/embed", access="user")
async def embed(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute embeddings of texts or token ids."""
    return await _embedded(request, services)


async def _embedded(request: AnyRequest, services: Services) -> ASGIApp:
    embed = services.encoders.embed
    return await services.encoding(request, "tgi", tgi.read_embed, embed, tgi.embed_body)


@api(get, "/info", access="user")
async def info(request: AnyRequest, services: Services) -> InfoWire:
    """Get the model that answers requests, and the limits of a request."""
    status = await services.answering(request.auth)
    length = context_length(status) or 0
    return InfoWire(
        model_id=status.id,
        model_pipeline_tag=TAGS[status.task],
        max_input_tokens=max(0, length - 1),
        max_input_length=max(0, length - 1),
        max_total_tokens=length,
        max_stop_sequences=MAX_STOPS,
        max_client_batch_size=TEXTS,
        version=VERSION,
    )


_EXAMPLE = {
    "A text": {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8, "details": True}}
}

front[either] = Described(
    takes=GenerateWire,
    gives=(list[Generated], list[list[float]]),
    events=(StreamStep,),
    examples=_EXAMPLE,
)
api[generate] = Described(takes=GenerateWire, gives=(Generated,), examples=_EXAMPLE)
api[generate_stream] = Described(takes=GenerateWire, events=(StreamStep,), examples=_EXAMPLE)
api[embed] = Described(
    takes=EmbedWire,
    gives=(list[list[float]], list[str]),
    examples={"Texts": {"inputs": ["One.", "Two."]}},
)
