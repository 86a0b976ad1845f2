"""Cohere's routes: conversations, vectors and tokens."""

from litestar import post
from litestar.types import ASGIApp

from gateway.answers.tokenizers import TextToEncode, TokensToDecode
from gateway.dialects import cohere
from gateway.dialects.cohere.request import (
    CallDelta,
    CallEnd,
    CallStart,
    ChatAnswer,
    ChatWire,
    ContentDelta,
    ContentEnd,
    ContentStart,
    Detokenized,
    DetokenizeWire,
    Embedded,
    EmbedWire,
    MessageEnd,
    MessageStart,
    Tokenized,
    TokenizeWire,
)
from gateway.dialects.dialect import body
from gateway.dialects.fields import read_fields
from gateway.dialects.parameters import SamplingWire
from gateway.http.auth import AnyRequest
from gateway.http.exchange import EncodingResponse, Exchange
from gateway.http.openapi import TOOL, USER, Body, Described, Routes
from gateway.http.request_log import record_of
from gateway.http.services import Services, call_of
from gateway.http.sse import Plain


@post("/v2/chat", access="user")
async def chat(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the next message of a conversation."""
    exchange = await services.read(cohere.read_chat, await request.body())
    request_id = record_of(request).id
    wants_logprobs = exchange.request.answering.logprobs is not None
    return Exchange(
        services.asking(request, "cohere", exchange.request),
        services.chat,
        lambda _answer: cohere.CohereReply(id=request_id, logprobs=wants_logprobs),
        cohere.error_event,
        exchange.stream,
    )


@post("/v2/embed", access="user")
async def embed(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute embeddings of texts."""
    exchange = await services.read(cohere.read_embed, await request.body())
    request_id = record_of(request).id
    return EncodingResponse(
        services.asking(request, "cohere", exchange.request),
        services.encoders.embed,
        lambda encoded: cohere.embed_body(
            exchange, request_id, encoded.vectors, encoded.prompt_tokens
        ),
    )


@post("/v1/tokenize", access="user")
async def tokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """Tokenize a text."""
    asked = read_fields(await request.body()).read(TokenizeWire)
    text = TextToEncode(model=asked.model, text=asked.text, special=False, add_bos=False)
    tokens, pieces = await services.tokenizers.spell(call_of(request, text))
    texts = [piece.decode(errors="replace") for piece in pieces]
    return Plain(body(Tokenized(tokens, texts)))


@post("/v1/detokenize", access="user")
async def detokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """Convert tokens to text."""
    asked = read_fields(await request.body()).read(DetokenizeWire)
    tokens = TokensToDecode(asked.model, asked.tokens)
    return Plain(body(Detokenized(await services.tokenizers.decode(call_of(request, tokens)))))


COHERE = Body(
    name="CohereChatRequest",
    about="A conversation to continue, in Cohere's format.",
    shapes=(ChatWire, SamplingWire),
    names={"stop": ("stop_sequences",), "top_p": ("p",), "top_k": ("k",)},
)

ROUTES: Routes = {
    chat: Described(
        takes=COHERE,
        gives=(ChatAnswer,),
        events=(
            MessageStart,
            ContentStart,
            ContentDelta,
            ContentEnd,
            CallStart,
            CallDelta,
            CallEnd,
            MessageEnd,
        ),
        examples={
            "A question": {"messages": USER, "max_tokens": 8},
            "A tool": {"messages": USER, "tools": [TOOL], "max_tokens": 8},
        },
    ),
    embed: Described(
        takes=EmbedWire,
        gives=(Embedded,),
        examples={"Texts": {"texts": ["One.", "Two."], "input_type": "search_query"}},
    ),
    tokenize: Described(
        takes=TokenizeWire, gives=(Tokenized,), examples={"A text": {"text": "Hi"}}
    ),
    detokenize: Described(
        takes=DetokenizeWire, gives=(Detokenized,), examples={"Tokens": {"tokens": [5, 6]}}
    ),
}
