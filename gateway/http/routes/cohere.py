"""Cohere's routes: conversations, vectors and tokens."""

from functools import partial

from litestar import post
from litestar.types import ASGIApp

from gateway.answers.tokenizers import TextToEncode, TokensToDecode
from gateway.dialects import cohere
from gateway.dialects.cohere.request import (
    ChatAnswer,
    ChatWire,
    Detokenized,
    DetokenizeWire,
    Embedded,
    EmbedWire,
    StreamEvent,
    Tokenized,
    TokenizeWire,
)
from gateway.dialects.parameters import SamplingWire
from gateway.http.auth import AnyRequest
from gateway.http.exchange import Exchange
from gateway.http.openapi import TOOL, USER, Described, body_type
from gateway.http.request_log import record_of
from gateway.http.routing import Routes
from gateway.http.services import Services, call_of

api = Routes()


@api(post, "/v2/chat", access="user")
async def chat(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the next message of a conversation."""
    asked = await services.read(cohere.read_chat, await request.body())
    request_id = record_of(request).id
    wants_logprobs = asked.answering.logprobs is not None
    return Exchange(
        services.asking(request, "cohere", asked),
        services.chat,
        lambda _answer: cohere.CohereReply(id=request_id, logprobs=wants_logprobs),
        cohere.error_event,
    )


@api(post, "/v2/embed", access="user")
async def embed(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute embeddings of texts."""
    read, embed = cohere.read_embed, services.encoders.embed
    write = partial(cohere.embed_body, id=record_of(request).id)
    return await services.encoding(request, "cohere", read, embed, write)


@api(post, "/v1/tokenize", access="user", examples={"A text": {"text": "Hi"}})
async def tokenize(request: AnyRequest, services: Services, content: TokenizeWire) -> Tokenized:
    """Tokenize a text."""
    text = TextToEncode(model=content.model, text=content.text, special=False, add_bos=False)
    tokens, pieces = await services.tokenizers.spell(call_of(request, text))
    return Tokenized(tokens, [piece.decode(errors="replace") for piece in pieces])


@api(post, "/v1/detokenize", access="user", examples={"Tokens": {"tokens": [5, 6]}})
async def detokenize(
    request: AnyRequest, services: Services, content: DetokenizeWire
) -> Detokenized:
    """Convert tokens to text."""
    tokens = TokensToDecode(content.model, content.tokens)
    return Detokenized(await services.tokenizers.decode(call_of(request, tokens)))


COHERE = body_type(
    "ChatRequest",
    "A conversation to continue, in Cohere's format.",
    (ChatWire, SamplingWire),
    names={"stop": ("stop_sequences",), "top_p": ("p",), "top_k": ("k",)},
)

api[chat] = Described(
    takes=COHERE,
    gives=(ChatAnswer,),
    events=(StreamEvent,),
    examples={
        "A question": {"messages": USER, "max_tokens": 8},
        "A tool": {"messages": USER, "tools": [TOOL], "max_tokens": 8},
    },
)
api[embed] = Described(
    takes=EmbedWire,
    gives=(Embedded,),
    examples={"Texts": {"texts": ["One.", "Two."], "input_type": "search_query"}},
)
