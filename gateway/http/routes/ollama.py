"""Ollama's routes: chat and generate, and the models as its clients list, load and fetch them.

A name may carry the tag `:latest`, which its clients put behind every name without one.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from time import perf_counter, time

from litestar import delete, get, head, post
from litestar.types import ASGIApp
from msgspec.structs import replace

from gateway.answers.answer import Answer
from gateway.answers.call import Call, OnWait
from gateway.answers.encoding import Encoded
from gateway.answers.interpreter import Known
from gateway.dialects import ollama
from gateway.dialects.encoding import EmbeddingExchange
from gateway.dialects.ollama import reply as wires
from gateway.dialects.ollama.request import (
    ChatWire,
    CopyWire,
    CreateWire,
    GenerateWire,
    NamedModel,
    OptionsWire,
)
from gateway.dialects.parameters import SamplingWire
from gateway.http.auth import AnyRequest
from gateway.http.exchange import EncodingResponse, Exchange
from gateway.http.openapi import DEFAULT, NAMED, USER, Described, body_type
from gateway.http.request_log import audit
from gateway.http.routes.hub import delete_audited, fetched, fetched_with_progress, to_fetch
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import NDJSON, EventStream, Plain, attended
from gateway.keys.access import Access
from gateway.prompt import DEFAULT_TEMPLATE
from gateway.registry import ModelStatus
from gateway.terms.errors import GatewayError, InvalidRequest
from gateway.terms.request import ChatRequest, TextRequest

# A load or an unload is answered by one document even where a stream was asked for: so does
# Ollama, and Open WebUI reads it so. While the load lasts, white space comes before it.
ONE_LINE = replace(NDJSON, media_type="application/json")
TEXT = "text/plain"

api = Routes(lambda content, _shape: ollama.read_named(content))
front = Routes()  # at the same address as the console's page, so one router has both


@api(post, "/api/chat", access="user")
async def chat(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the next message of a conversation. Without messages, the model is loaded or
    unloaded.
    """
    return await _answered(request, services, ollama.read_chat, chat=True)


@api(post, "/api/generate", access="user")
async def generate(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the answer to a prompt. Without a prompt, the model is loaded or unloaded."""
    return await _answered(request, services, ollama.read_generate, chat=False)


async def _answered(
    request: AnyRequest,
    services: Services,
    read: Callable[[bytes], ollama.Asked],
    *,
    chat: bool,
) -> ASGIApp:
    made = services.made_models  # a made model's preset is said in the body
    asked = await services.read(lambda sent: read(made.filled(sent)), await request.body())
    asked = replace(asked, model=_known_name(services, asked.model, request.auth))
    created_at = wires.moment(datetime.now(UTC))
    if isinstance(asked, ollama.Presence):
        reply = ollama.OllamaReply(model=asked.model, created_at=created_at, chat=chat)
        body = reply.present(gone=asked.keep_alive == 0)
        return await _presence(request, services, asked, body)
    hides = isinstance(asked, ChatRequest) and asked.thinking.shown == "hidden"
    return Exchange(
        services.asking(request, "ollama", asked),
        partial(_opened, services),
        lambda answer: ollama.OllamaReply(
            model=answer.model,
            created_at=created_at,
            chat=chat,
            hides_thinking=hides,
            load_seconds=answer.load_seconds,
        ),
        ollama.error_line,
        framing=NDJSON,
    )


def _opened(
    services: Services, call: Call[ChatRequest | TextRequest]
) -> AbstractAsyncContextManager[Answer]:
    match call.request:
        case ChatRequest() as chat:
            return services.chat(call.of(chat))
        case text:
            return services.pipeline.text(call.of(text))


def _known_name(services: Services, name: str, access: Access) -> str:
    """`name`, without a tag that no model of that name has; of a made model its base's."""
    if (preset := services.made_models.find(name)) is not None:
        return preset.base
    try:
        return services.registry.resolve(name, access).name
    except GatewayError:
        return ollama.without_latest(name)


async def _presence(
    request: AnyRequest,
    services: Services,
    asked: ollama.Presence,
    body: bytes,
) -> ASGIApp:
    """A lease, given back at once; of a model that is to go and isn't there, none. Then `body`."""
    access, gone = request.auth, asked.keep_alive == 0
    audit(request, "unload" if gone else "load", model=asked.model)

    async def be_present(on_wait: OnWait | None = None) -> None:
        name = (await services.registry.find(asked.model, access)).name
        if not gone or services.registry.status(name).state in ("loading", "loaded"):
            async with services.registry.lease(
                name, keep_alive=asked.keep_alive, on_wait=on_wait, access=access
            ):
                pass

    async def send_lines(events: EventStream) -> bytes:
        await be_present(events.wait)
        return body + b"\n"

    if asked.stream:
        return services.progress(access, send_lines, ollama.error_line, ONE_LINE)
    async with attended(request):
        await be_present()
    return Plain(body)


@api(post, "/api/embed", access="user")
async def embed(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute embeddings of texts. Without texts, the model is loaded or unloaded."""
    read = await services.read(ollama.read_embed, await request.body())
    return await _embedded(request, services, read, old=False)


@api(post, "/api/embeddings", access="user")
async def embeddings(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute the embedding of one text, in the format that preceded `/api/embed`."""
    read = await services.read(ollama.read_old_embed, await request.body())
    return await _embedded(request, services, read, old=True)


async def _embedded(
    request: AnyRequest, services: Services, read: EmbeddingExchange | ollama.Presence, *, old: bool
) -> ASGIApp:
    began = perf_counter()

    def written(model: str, done: Encoded | None = None) -> bytes:
        vectors = done.vectors if done else ()
        if old:
            return ollama.old_embed_body(vectors[0] if vectors else b"")
        tokens, load_seconds = (done.prompt_tokens, done.load_seconds) if done else (0, 0.0)
        seconds = perf_counter() - began
        return ollama.embed_body(model, vectors, tokens, seconds=seconds, load_seconds=load_seconds)

    if isinstance(read, ollama.Presence):
        named = replace(read, model=_known_name(services, read.model, request.auth))
        return await _presence(request, services, named, written(named.model))
    name = read.request.model and _known_name(services, read.request.model, request.auth)
    return EncodingResponse(
        services.asking(request, "ollama", replace(read.request, model=name)),
        services.encoders.embed,
        lambda done: written(done.model, done),
    )


@front(head, "/", tags=[ollama.DIALECT.tag], access="open")
async def alive() -> None:
    """Check health, for Ollama's command line."""


@api(get, "/api/version", access="user")
async def version() -> wires.Version:
    """Get the version of the supported Ollama API."""
    return wires.Version()


@api(get, "/api/tags", access="user")
async def tags(request: AnyRequest, services: Services) -> wires.Models:
    """List the models that the caller may use."""
    seen = {one.id: _seen(one) for one in services.usable(request.auth)}
    made = [
        replace(seen[one.base], name=one.name, parent=one.base, created=one.created)
        for one in services.made_models.all()
        if one.base in seen
    ]
    return wires.Models([wires.listed(one) for one in (*seen.values(), *made)])


@api(get, "/api/ps", access="user")
async def ps(request: AnyRequest, services: Services) -> wires.Models:
    """List the models in memory and when they expire."""
    there = [one for one in services.usable(request.auth) if one.info is not None]
    return wires.Models([_resident(one) for one in there])


def _resident(status: ModelStatus) -> wires.ListedModel:
    left = status.remaining_seconds
    expires = None if left is None else datetime.now(UTC) + timedelta(seconds=left)
    size = status.need.total if status.need else None
    return wires.resident(_seen(status), expires=expires, size=size)


@api(post, "/api/show", access="user", examples=NAMED)
async def show(request: AnyRequest, services: Services, order: NamedModel) -> wires.Shown:
    """Get the details of one model."""
    name = _known_name(services, order.model, request.auth)
    status = await services.found(name, request.auth)
    known = await services.capabilities.of(status)
    template = known.template if known else DEFAULT_TEMPLATE
    preset = services.made_models.find(order.model)
    return wires.shown(_seen(status, known), template=template, preset=preset)


def _seen(status: ModelStatus, known: Known | None = None) -> wires.Seen:
    files, entry = status.files, status.entry
    assert files is not None, "a usable model has its files"
    assert entry is not None, "a usable model has its files"
    return wires.Seen(
        name=status.id,
        created=entry.created,
        size=files.size_bytes,
        format=files.format,
        family=files.architecture,
        context_length=status.info.context_length if status.info else files.context_length,
        capabilities=(known.capabilities or ()) if known else (),
        described=files.described,
    )


@api(post, "/api/create", status_code=200, access="admin")
async def create(request: AnyRequest, services: Services) -> ASGIApp:
    """Create a model from another one, with its own name, system prompt and parameters."""
    asked = ollama.read_create(await request.body())
    preset = await _made_of(services, request.auth, asked.base, asked.model)
    options = {**preset.options, **asked.parameters}
    system = asked.system or preset.system
    services.made_models.keep(replace(preset, system=system, options=options))
    audit(request, "create", model=asked.model)
    kind = NDJSON.media_type if asked.stream else "application/json"
    return Plain(wires.status_line("success"), media_type=kind.encode())


@api(post, "/api/copy", status_code=200, access="admin", takes=CopyWire, text=TEXT)
async def copy(request: AnyRequest, services: Services) -> ASGIApp:
    """Add another name for a model."""
    asked = ollama.read_copy(await request.body())
    services.made_models.keep(
        await _made_of(services, request.auth, asked.source, asked.destination, "destination")
    )
    audit(request, "copy", model=asked.source, name=asked.destination)
    return Plain(b"")


async def _made_of(
    services: Services, access: Access, base: str, name: str, field: str = "model"
) -> ollama.Preset:
    """A preset called `name` that says what that of `base` says, if it has one. Raises
    InvalidRequest where the name is a model's, ModelNotFound.
    """
    if services.made_models.find(name) is None and _is_here(services, name, access):
        raise InvalidRequest.at(field, f"{name!r} is a model of this server.")
    entry = await services.registry.find(_known_name(services, base, access), access)
    given = services.made_models.find(base) or ollama.Preset(name=name, base=entry.name)
    return replace(given, name=name, created=int(time()))


@api(post, "/api/pull", access="admin")
async def pull(request: AnyRequest, services: Services, order: NamedModel) -> ASGIApp:
    """Download a model from the hub: `hf.co/owner/name:quantization`. A model that is already
    downloaded is not an error.
    """
    is_here = _is_here(services, order.model, request.auth)
    wanted = None if is_here else ollama.hub_name(order.model)
    if wanted is not None:
        audit(request, "download", repository=wanted)

    async def send_lines(events: EventStream) -> bytes:
        if wanted is not None:
            await fetched_with_progress(
                events,
                services,
                to_fetch(wanted),
                lambda step: wires.pulling(step.file, step.done, step.total),
            )
        return wires.status_line("success")

    if order.stream:
        return services.progress(request.auth, send_lines, ollama.error_line, NDJSON)
    if wanted is not None:
        async with attended(request):
            await fetched(services, to_fetch(wanted))
    return Plain(wires.status_line("success"))


def _is_here(services: Services, name: str, access: Access) -> bool:
    try:
        services.registry.resolve(_known_name(services, name, access), access)
    except GatewayError:
        return False
    return True


@api(delete, "/api/delete", status_code=200, access="admin", text=TEXT)
async def remove(request: AnyRequest, services: Services, order: NamedModel) -> ASGIApp:
    """Unload a model and delete its files, if the configuration allows deletion."""
    if services.made_models.find(order.model) is not None:
        services.made_models.remove(order.model)
        audit(request, "delete", model=order.model)
        return Plain(b"")
    await delete_audited(request, services, _known_name(services, order.model, request.auth))
    return Plain(b"")


OPTIONS = body_type(
    "Options",
    "Sampling parameters and limits, by Ollama's names or any other supported ones.",
    (OptionsWire, SamplingWire),
    names={
        "max_tokens": ("num_predict",),
        "repetition_penalty": ("repeat_penalty",),
        "penalty_range": ("repeat_last_n",),
    },
)
OLLAMA_CHAT = body_type(
    "ChatRequest",
    "A conversation to continue. Without messages, the model is loaded or unloaded.",
    (ChatWire,),
    further={"options": OPTIONS},
)
OLLAMA_GENERATE = body_type(
    "GenerateRequest",
    "A prompt to answer. Without a prompt, the model is loaded or unloaded.",
    (GenerateWire,),
    further={"options": OPTIONS},
)

api[chat] = Described(
    takes=OLLAMA_CHAT,
    gives=(wires.ChunkWire,),
    events=(wires.ChunkWire,),
    lines=True,
    examples={
        "A conversation": {
            "model": DEFAULT,
            "messages": USER,
            "stream": False,
            "options": {"num_predict": 8},
        },
        "A stream": {"model": DEFAULT, "messages": USER, "options": {"num_predict": 8}},
        "A load": {"model": DEFAULT, "keep_alive": "5m"},
    },
)
api[generate] = replace(
    api[chat],
    takes=OLLAMA_GENERATE,
    examples={
        "A prompt": {
            "model": DEFAULT,
            "prompt": "Say hello.",
            "stream": False,
            "options": {"num_predict": 8},
        }
    },
)
api[embed] = Described(
    takes=wires.EmbedWire,
    gives=(wires.Embedded,),
    examples={"Texts": {"input": ["One.", "Two."]}},
)
api[embeddings] = Described(
    takes=wires.OldEmbedWire,
    gives=(wires.OldEmbedded,),
    examples={"A text": {"prompt": "A man is eating."}},
)
api[pull] = Described(
    takes=NamedModel,
    gives=(wires.Status,),
    events=(wires.Status,),
    lines=True,
    examples=NAMED,  # one that is here is no error
)
api[create] = replace(
    api[pull],
    takes=CreateWire,
    examples={
        "A pirate": {
            "model": "pirate",
            "from": DEFAULT,
            "system": "Say arr.",
            "stream": False,
            "parameters": {"temperature": 0.5},
        }
    },
)
