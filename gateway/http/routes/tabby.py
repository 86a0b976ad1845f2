"""TabbyAPI's routes for loading models, embedding models too, and asking about them: what its
clients call besides completions.

Users may ask, administrators may change. Errors carry OpenAI's `error` and TabbyAPI's `detail`.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio import to_thread
from litestar import get, post
from litestar.types import ASGIApp

from gateway.answers.interpreter import Chosen, OverridePreset, preset
from gateway.answers.tokenizers import TextToEncode, TokensToDecode
from gateway.dialects import openai, tabby
from gateway.dialects.dialect import body
from gateway.dialects.fields import read_given
from gateway.dialects.models import ModelCard, ModelList
from gateway.dialects.tabby import (
    EmbeddingLoad,
    Encode,
    OverrideSwitch,
    TabbyTokens,
    TemplateSwitch,
    TemplateUnload,
    Translation,
    engine_options,
)
from gateway.http.auth import AnyRequest
from gateway.http.exchange import ignoring
from gateway.http.openapi import DEFAULT, NAMED, Described
from gateway.http.request_log import audit
from gateway.http.routes import hub
from gateway.http.routing import Routes
from gateway.http.services import Services, call_of, current_card
from gateway.http.sse import EventStream, Plain, attended
from gateway.keys.access import Access
from gateway.registry import ModelEntry, UnloadReport, Waiting, require_task
from gateway.terms.errors import (
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    ShuttingDown,
    UpstreamFailed,
)
from gateway.terms.request import all_unapplied

TOKENS = {"Tokens": {"tokens": [5, 6]}}
OVERRIDE = {"A temperature": {"overrides": {"temperature": {"override": 0.7}}}}

api = Routes(read_given)


@api(get, "/v1/model/embedding/list", access="user")
async def embedding_list(request: AnyRequest, services: Services) -> ModelList:
    """List the embedding models that the caller may use."""
    statuses = [one for one in services.usable(request.auth) if one.task == "embed"]
    return ModelList(await services.cards(statuses))


@api(get, "/v1/model/embedding", access="user")
async def current_embedding(request: AnyRequest, services: Services) -> ModelCard:
    """Get the loaded embedding model that was used last. If none is loaded, the first one is
    returned, with its `state`; 503 if there is none.
    """
    statuses = [one for one in services.usable(request.auth) if one.task == "embed"]
    in_use = services.registry.in_use(request.auth, "embed")
    status = next((one for one in statuses if in_use and one.id == in_use.name), None)
    status = status or next(iter(statuses), None)
    if status is None:
        raise ModelUnavailable("No embedding model is available to this key.")
    return await services.card(status)


@api(post, "/v1/model/embedding/load", access="admin", gives=(tabby.TabbyLoadEvent,))
async def embedding_load(request: AnyRequest, services: Services, order: EmbeddingLoad) -> ASGIApp:
    """Load an embedding model. The response is sent when it is loaded."""
    entry = await services.registry.find(order.embedding_model_name, request.auth)
    require_task(entry, "embed")
    audit(request, "load", model=entry.name)
    given = order.embeddings_device not in (None, "auto")
    unapplied = all_unapplied("embeddings_device") if given else ()
    async with attended(request):
        await services.registry.load(entry.name)
    return Plain(body(tabby.EMBEDDING_LOADED), headers=ignoring(unapplied))


@api(post, "/v1/model/embedding/unload", access="admin")
async def embedding_unload(request: AnyRequest, services: Services) -> None:
    """Unload all embedding models after their running requests have ended."""
    audit(request, "unload", task="embed")
    async with attended(request):
        for one in services.usable(request.auth):
            if one.task == "embed" and one.state in ("loading", "loaded"):
                await services.registry.unload(one.id)


@api(get, ["/v1/model/list", "/v1/model/draft/list"], access="user")
async def model_list(request: AnyRequest, services: Services) -> ModelList:
    """List the models that the caller may use."""
    return ModelList(await services.cards(services.usable(request.auth)))


@api(get, "/v1/model", access="user")
async def current_model(request: AnyRequest, services: Services) -> tabby.CurrentModel:
    """Get the loaded model that was used last. If none is loaded, the default model is returned,
    with its `state` and null `parameters`; 503 if there is no default.
    """
    status = await services.answering(request.auth)
    known = await services.capabilities.of(status)
    template = services.templates.chosen(status.id)
    return current_card(status, known, services.facts(status), template)


@api(post, "/v1/model/load", access="admin")
async def load(request: AnyRequest, services: Services) -> ASGIApp:
    """Load a model and stream the progress. With `Accept: application/json`, one response is sent
    at the end.
    """
    order = tabby.read_load(await request.body())
    entry = await services.registry.find(order.model, request.auth)
    template = order.template and await _template(services, order.template, "prompt_template")
    options = _options(order, entry, services, request.auth) or None
    audit(request, "load", model=entry.name)

    @asynccontextmanager
    async def loading() -> AsyncIterator[AsyncIterable[Waiting]]:
        async with services.registry.loading(entry.name, options=options) as news:
            if template:  # only now, since nothing was wrong with the order
                services.templates.switch(entry.name, template)
            yield news

    if wants_json(request.headers):
        async with attended(request), loading() as news:
            async for _ in news:
                pass
        return Plain(body(tabby.LOADED))

    async def send_events(events: EventStream) -> bytes:
        load_reply = tabby.LoadReply()
        async with loading() as news:  # comments while it waits in line
            async for waiting in news:
                if waiting.progress is None:
                    events.wait(waiting)
                else:
                    await events.write(load_reply.progress(waiting.progress))
            return load_reply.loaded()

    return services.progress(request.auth, send_events, openai.error_event)


def _options(
    order: tabby.LoadRequest, entry: ModelEntry, services: Services, access: Access
) -> Mapping[str, Any]:
    """The options to load with. Raises InvalidRequest for what it doesn't know."""
    files = entry.files
    if order.backend not in (None, files.backend):
        text = f"{entry.name} is a model for {files.backend}, not for {order.backend}"
        raise InvalidRequest.at("backend", text)
    if files.elsewhere is not None:
        if order.asked or order.draft is not None:
            raise InvalidRequest(f"{entry.name} runs on another server, which has its own options")
        return {}
    own = services.catalog[files.backend].files.LOAD_OPTIONS
    options = engine_options(order.asked, files.backend, own, services.catalog.configured_only)
    options |= _vision(order, entry, own)
    if order.draft is None:
        return options
    if "draft_model" not in own:
        raise InvalidRequest.at("draft_model", f"{files.backend} has no draft models")
    try:
        draft = services.registry.resolve(order.draft, access)  # a name as any other: no path
    except ModelNotFound as error:
        raise ModelNotFound.at("draft_model", error.message) from None
    return tabby.joined(options, own["draft_model"](str(draft.files.path)))


def _vision(
    order: tabby.LoadRequest, entry: ModelEntry, own: Mapping[str, Translation]
) -> Mapping[str, Any]:
    """Images are on where a model takes them; some engines can load it without."""
    sees = "image" in entry.files.modalities
    if order.vision in (None, sees):
        return {}
    if sees and "vision" in own:
        return own["vision"](order.vision)
    problem = "takes images, and can't be loaded without" if sees else "takes no images"
    raise InvalidRequest.at("vision", f"{entry.name} {problem}")


@api(post, "/v1/model/unload", access="admin", examples=NAMED)
async def unload(request: AnyRequest, services: Services, order: tabby.UnloadRequest) -> None:
    """Unload the named model, or all models. `force` aborts running answers."""
    audit(request, "unload", model=order.model)
    async with attended(request):
        if not await unload_models(services, order.model, request.auth, force=order.force):
            raise ModelUnavailable("No model is loaded.")


async def unload_models(
    services: Services, model: str | None, access: Access, *, force: bool
) -> tuple[UnloadReport, ...]:
    """Unload one model, or all that are loaded, on their way, or waited for; what was done."""
    wanted = await services.id_of(model, access) if model else None
    there = ("loading", "loaded", "draining")
    names = dict.fromkeys(
        one.entry.base.name if one.entry else one.id  # a preset's model is unloaded once
        for one in services.visible(access)
        if (one.state in there or one.waiting) and wanted in (None, one.id)
    )
    reports: list[UnloadReport] = []
    errors: list[GatewayError] = []  # other servers may refuse

    async def unload_one(name: str) -> None:
        with suppress(ModelNotFound, ShuttingDown):  # it is gone already, or about to go
            try:
                reports.append(await services.registry.unload(name, force=force))
            except UpstreamFailed as error:
                errors.append(error)

    async with anyio.create_task_group() as tasks:  # each waits for its own answers to end
        for name in names:
            tasks.start_soon(unload_one, name)
    if errors:
        raise errors[0]
    return tuple(reports)


@api(get, "/v1/auth/permission", access="user")
async def permission(request: AnyRequest) -> tabby.Permission:
    """Get the permissions of the caller's key."""
    return tabby.Permission("admin" if request.auth.role == "admin" else "api")


@api(post, "/v1/token/encode", access="user")
async def encode(request: AnyRequest, services: Services, content: Encode) -> TabbyTokens:
    """Tokenize a text, or the prompt of a conversation."""
    if isinstance(content.text, str):
        text = TextToEncode(
            model=content.model,
            text=content.text,
            special=content.encode_special_tokens,
            add_bos=content.add_bos_token,
        )
        tokens = await services.tokenizers.encode(call_of(request, text))
    else:
        data = await request.body()
        chat = await services.read(lambda body: openai.read_chat(tabby.as_chat(body)), data)
        tokens = await services.tokenizers.encode_chat(call_of(request, chat.request))
    return TabbyTokens(tokens, len(tokens))


@api(post, "/v1/token/decode", access="user", examples=TOKENS)
async def decode(request: AnyRequest, services: Services, content: tabby.Decode) -> tabby.TabbyText:
    """Convert tokens to text."""
    tokens = TokensToDecode(content.model, content.tokens, content.decode_special_tokens)
    return tabby.TabbyText(await services.tokenizers.decode(call_of(request, tokens)))


@api(get, ["/v1/templates", "/v1/template/list"], access="user")
async def template_list(request: AnyRequest, services: Services) -> tabby.Names:
    """List the available templates. Users see only the active ones."""
    if request.auth.role == "admin":
        return tabby.Names(services.templates.names())
    chosen = (services.templates.chosen(one.id) for one in services.visible(request.auth))
    return tabby.Names(tuple(sorted({name for name in chosen if name})))


@api(post, "/v1/template/switch", access="admin")
async def template_switch(request: AnyRequest, services: Services, order: TemplateSwitch) -> None:
    """Switch the template of one model, by default of the loaded model in use."""
    chosen = await _template(services, order.prompt_template_name, "prompt_template_name")
    name = await services.tokenizers.named(order.model, request.auth)
    audit(request, "switch template", model=name, template=order.prompt_template_name)
    services.templates.switch(name, chosen)


async def _template(services: Services, name: str, param: str) -> Chosen:
    """Off the event loop, because it is tried out. Raises InvalidRequest."""
    return await to_thread.run_sync(services.templates.read, name, param)


@api(post, "/v1/template/unload", access="admin", examples=NAMED)
async def template_unload(request: AnyRequest, services: Services, order: TemplateUnload) -> None:
    """Restore the model's own template."""
    name = await services.tokenizers.named(order.model, request.auth)
    audit(request, "unload template", model=name)
    services.templates.unload(name)


@api(get, ["/v1/sampling/overrides", "/v1/sampling/override/list"], access="user")
async def overrides(request: AnyRequest, services: Services) -> tabby.Overrides:
    """Get the active sampling overrides. Administrators also get the available presets."""
    current = services.presets.current
    names = services.presets.names() if request.auth.role == "admin" else ()
    return tabby.Overrides(selected_preset=current.name, overrides=current.overrides, presets=names)


@api(post, "/v1/sampling/override/switch", access="admin", examples=OVERRIDE)
async def override_switch(request: AnyRequest, services: Services, order: OverrideSwitch) -> None:
    """Activate a preset by name, or the overrides in the body."""
    audit(request, "switch sampling overrides", preset=order.preset)
    if order.preset:
        services.presets.current = await to_thread.run_sync(services.presets.read, order.preset)
    elif order.overrides:
        services.presets.current = preset(order.overrides)
    else:
        raise InvalidRequest("Name a preset, or send the overrides.", param="preset")


@api(post, "/v1/sampling/override/unload", access="admin")
async def override_unload(request: AnyRequest, services: Services) -> None:
    """Remove the sampling overrides."""
    audit(request, "unload sampling overrides")
    services.presets.current = OverridePreset()


@api(get, ["/v1/loras", "/v1/lora/list", "/v1/lora"], access="user")
async def loras(request: AnyRequest, services: Services) -> tabby.Names:
    """List the adapters of the model in use, otherwise of the default, with the scales that count
    where a request names none.
    """
    status = await services.answering(request.auth)
    facts = services.facts(status)
    adapters = facts.adapters if facts is not None else ()
    return tabby.Names(tuple(tabby.LoraCard(one.name, one.scale) for one in adapters))


@api(post, ["/v1/lora/load", "/v1/lora/unload"], access="admin", takes=tabby.LoraLoad)
async def lora_load() -> ASGIApp:
    """Not supported. The error describes how adapters are configured."""
    raise InvalidRequest(
        "No engine here loads adapters into a loaded model. Name them in the model's options "
        "(adapters) and load it again; requests choose of them (lora).",
        param="loras",
    )


@api(get, "/.well-known/serviceinfo", access="open")
async def service_info(services: Services) -> tabby.ServiceInfo:
    """Describe this server and the APIs it supports."""
    apis = services.config.apis
    return tabby.service_info(openai=apis.openai, koboldai=apis.kobold)


def wants_json(headers: Mapping[str, str]) -> bool:
    """One JSON answer instead of a stream; a client that accepts both gets the stream."""
    accepted = headers.get("accept", "")
    return "application/json" in accepted and "text/event-stream" not in accepted


api[load] = Described(
    takes=tabby.LoadWire,
    gives=(tabby.TabbyLoadEvent,),
    events=(tabby.TabbyLoadEvent,),
    examples={"A model": {"model_name": DEFAULT}},
)
api[encode] = Described(
    takes=Encode,
    gives=(TabbyTokens,),
    examples={
        "A text": {"text": "Hello"},
        "A conversation": {"text": [{"role": "user", "content": "Hello"}]},
    },
)
api.update(hub.tabby_api)
