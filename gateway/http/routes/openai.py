"""OpenAI's routes: chat, completions, models. The same without `/v1`, because some clients leave it
out.
"""

import time
from functools import partial

from litestar import get, head, post
from litestar.types import ASGIApp
from msgspec import UNSET

from backends.contract.remote import HOPS
from config.settings import Config
from config.values import alike
from gateway.answers.answer import Answer
from gateway.answers.interpreter import Known
from gateway.dialects import anthropic, openai
from gateway.dialects.anthropic.reply import ModelPage, ModelWire
from gateway.dialects.llamaserver.request import asks_own_form
from gateway.dialects.models import ModelCard, ModelList
from gateway.dialects.openai.chat_reply import ChatChunk, ChatCompletion
from gateway.dialects.openai.embeddings import EmbeddingList, EmbeddingsWire, PooledList
from gateway.dialects.openai.request import TextWire
from gateway.dialects.openai.text_reply import TextCompletion
from gateway.dialects.parameters import SamplingWire
from gateway.http.auth import AnyRequest
from gateway.http.detached import DetachedAnswer, DetachedResponse
from gateway.http.exchange import Exchange
from gateway.http.metrics import CONTENT_TYPE
from gateway.http.openapi import CHAT, DEFAULT, SHAPES, TOOL, USER, Described, body_type
from gateway.http.request_log import record_of
from gateway.http.routes.llamaserver import checked_conversation, embedded
from gateway.http.routing import Routes
from gateway.http.services import Services, card, placed
from gateway.http.sse import Plain
from gateway.registry import ModelStatus
from gateway.terms.errors import Forbidden

CONVERSATION = "x-conversation-id"  # of a chat stream that is kept when its client leaves

api = Routes()
server_api = Routes()  # of no API


@api(post, ["/v1/chat/completions", "/chat/completions"], access="user")
async def chat_completions(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the next message of a conversation."""
    exchange = await services.read(openai.read_chat, await request.body())
    request_id, created = record_of(request).id, int(time.time())
    answered = Exchange(
        services.asking(request, "chat", exchange.request),
        lambda call: services.chat(call, "answers"),
        lambda answer: openai.ChatReply(
            exchange, _facts(answer, f"chatcmpl-{request_id}", created)
        ),
        openai.error_event,
        loading=openai.ChatLoading(
            request=exchange.request, id=f"chatcmpl-{request_id}", created=created
        )
        if services.reports_loading(request.auth, asked=exchange.loading_text)
        else None,
    )
    if (
        not exchange.request.answering.streamed
        or (name := _conversation(request, services.config)) is None
    ):
        return answered
    stream = DetachedAnswer(request.auth.owner, name)
    services.streams.collect(stream, answered)
    return DetachedResponse(stream)


def _facts(answer: Answer, id: str, created: int) -> openai.AnswerFacts:
    parameters = answer.parameters or UNSET
    return alike(openai.AnswerFacts, answer)(id=id, created=created, parameters=parameters)


def _conversation(request: AnyRequest, config: Config) -> str | None:
    """Whose stream a chat is to be; None: it lives as long as its connection. Raises
    InvalidRequest.
    """
    name = request.headers.get(CONVERSATION)
    if not name or not config.apis.llamaserver or not config.llamaserver.stream_seconds:
        return None
    return checked_conversation(name, CONVERSATION)


@api(post, ["/v1/completions", "/completions"], access="user")
async def completions(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the continuation of a text."""
    exchange = await services.read(openai.read_text, await request.body())
    request_id, created = record_of(request).id, int(time.time())
    return Exchange(
        services.asking(request, "text", exchange.request),
        services.pipeline.text,
        lambda answer: openai.TextReply(
            exchange, _facts(answer, f"cmpl-{request_id}", created), echoes=answer.echoes
        ),
        openai.error_event,
        loading=openai.TextLoading(id=f"cmpl-{request_id}", created=created)
        if services.reports_loading(request.auth, asked=exchange.loading_text)
        else None,
    )


@api(post, "/v1/embeddings", access="user")
async def embeddings(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute embeddings of texts or token ids."""
    return await _embedded(request, services)


@api(post, "/embeddings", access="user")
async def bare_embeddings(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute embeddings; with `content` in place of `input`, in llama-server's format."""
    if await services.read(asks_own_form, await request.body()):
        return await embedded(request, services)
    return await _embedded(request, services)


async def _embedded(request: AnyRequest, services: Services) -> ASGIApp:
    read, embed = openai.read_embeddings, services.encoders.embed
    return await services.encoding(request, "embeddings", read, embed, openai.embeddings_body)


@api(post, "/pooling", access="user")
async def pooling(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute embeddings of texts or token ids, in vLLM's format."""
    read, embed = openai.read_embeddings, services.encoders.embed
    write = partial(
        openai.pooled_body, id=f"pool-{record_of(request).id}", created=int(time.time())
    )
    return await services.encoding(request, "embeddings", read, embed, write)


@api(get, "/v1/models", access="user")
async def models(request: AnyRequest, services: Services) -> ModelList | ModelPage:
    """List the models that the caller may use. Anthropic's clients, which use the same path, get
    Anthropic's format.
    """
    statuses = services.usable(request.auth)
    if anthropic.VERSION in request.headers:
        known = await services.capabilities.of_all(statuses)
        wires = [_for_anthropic(one, known.get(one.id)) for one in statuses]
        return anthropic.model_page(wires)
    cards = await services.cards(statuses)
    if HOPS in request.headers:  # another Roundhouse wants to know what it has itself
        own = services.registry.server
        cards = [placed(*pair, own) for pair in zip(cards, statuses, strict=True)]
    return ModelList(cards)


def _for_anthropic(status: ModelStatus, known: Known | None) -> anthropic.ModelWire:
    found, efforts = card(status, known, None), known.efforts if known else ()
    is_here = status.files is not None and status.files.remote is None
    return anthropic.model_wire(found, efforts, keeps_to_schemas=is_here)


@api(get, ["/v1/models/{model_id:path}", "/models/{model_id:path}"], access="user")
async def model(request: AnyRequest, services: Services, model_id: str) -> ModelCard | ModelWire:
    """Get one model. Its id may contain slashes, encoded or not."""
    status = await services.found(str(model_id).removeprefix("/"), request.auth)
    if anthropic.VERSION in request.headers:
        known = await services.capabilities.of(status)
        return _for_anthropic(status, known)
    return await services.card(status)


@server_api(get, ["/health", "/v1/health"], access="open", gives=(dict[str, str],))
async def health(services: Services) -> ASGIApp:
    """Check that the process is running, its event loop responds, and it isn't stopping."""
    if services.registry.is_closing:
        return Plain(b'{"status":"stopping"}', status=503)
    return Plain(b'{"status":"ok"}')


@server_api(head, ["/health", "/v1/health"], access="open")
async def health_head() -> None:
    """Check health, without a response body."""


@server_api(get, "/metrics", access="user", text="text/plain")
async def metrics(request: AnyRequest, services: Services) -> ASGIApp:
    """Get metrics in Prometheus' format. Prometheus sends its key as a bearer token."""
    if request.auth.models:
        raise Forbidden("metrics cover all models, and this key is limited to some")
    if not services.config.llamaserver.metric_names:
        return Plain(services.metrics.text(), media_type=CONTENT_TYPE)
    # As llama-server spells it, whose clients search for it so.
    started = {"Process-Start-Time-Unix": str(services.metrics.started)}
    text = services.metrics.text(llama_names=True)
    return Plain(text, media_type=CONTENT_TYPE, headers=started)


TEXT = body_type(
    "TextRequest",
    "One or more prompts to continue. Null fields are treated as not given.",
    (TextWire, SamplingWire),
    further=SHAPES,
)

api[chat_completions] = Described(
    takes=CHAT,
    gives=(ChatCompletion,),
    events=(ChatChunk,),
    examples={
        "A conversation": {"model": DEFAULT, "messages": USER, "max_tokens": 8},
        "A stream with its usage": {
            "model": DEFAULT,
            "messages": USER,
            "max_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        "A tool": {"model": DEFAULT, "messages": USER, "tools": [TOOL], "max_tokens": 8},
        "A choice": {"model": DEFAULT, "messages": USER, "guided_choice": ["yes", "no"]},
    },
)
api[completions] = Described(
    takes=TEXT,
    gives=(TextCompletion,),
    events=(TextCompletion,),
    examples={"A text": {"model": DEFAULT, "prompt": "Once upon a time", "max_tokens": 8}},
)
api[embeddings] = api[bare_embeddings] = Described(
    takes=EmbeddingsWire,
    gives=(EmbeddingList,),
    examples={
        "A text": {"input": "A man is eating."},
        "Texts, as base64": {"input": ["One.", "Two."], "encoding_format": "base64"},
        "The first values": {"input": "A man is eating.", "dimensions": 64},
        "Tokens": {"input": [[101, 102]]},
    },
)
api[pooling] = Described(
    takes=EmbeddingsWire, gives=(PooledList,), examples={"A text": {"input": "A man is eating."}}
)
