"""The services that routes use, with the entries of the model lists: the registry's state as the
dialects' cards. Built once in `gateway.serving.app` and passed to every handler.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from litestar.di import Provide
from litestar.types import ASGIApp

from backends.contract.catalog import Catalog, LoadFacts
from backends.contract.remote import RemoteOrigin
from config.engines import EngineOptions
from config.settings import Config
from config.shape import is_path, mapping_item, options
from config.values import alike
from gateway.answers.answer import Answer
from gateway.answers.call import Call
from gateway.answers.encoding import Encoded, Encoders
from gateway.answers.interpreter import Capabilities, Known, SamplingOverrides, Templates
from gateway.answers.pipeline import Pipeline
from gateway.answers.tokenizers import Tokenizers
from gateway.dialects.llamaserver.request import NO_MODEL
from gateway.dialects.models import OutputFormat
from gateway.dialects.ollama import Presets
from gateway.dialects.openai import ModelCard, StatusWire
from gateway.dialects.tabby import CurrentModel, LoadedParameters
from gateway.http.auth import AnyRequest, Authenticator, Refusals, caller
from gateway.http.books import Asking, Books
from gateway.http.detached import (
    BackgroundAnswer,
    DetachedAnswer,
    DetachedAnswers,
    PolledAnswers,
)
from gateway.http.exchange import EncodingResponse
from gateway.http.feed import Feed
from gateway.http.gauges import GaugeHistory, GaugeSampler
from gateway.http.metrics import Metrics
from gateway.http.request_log import record_of
from gateway.http.request_record import RequestRecord
from gateway.http.sockets import Sockets
from gateway.http.sse import SSE, EventStream, Framing, ProgressStream
from gateway.hub.downloads import Downloads
from gateway.hub.hub import Hub, Uploads
from gateway.keys.access import Access
from gateway.keys.store import Store
from gateway.keys.usage import UsageBook
from gateway.mcp.rounds import Shown, ToolRounds
from gateway.mcp.servers import McpServers
from gateway.reconfiguring.joining import Announcements
from gateway.reconfiguring.reloading import Reloader
from gateway.registry import ModelStatus, Registry
from gateway.terms.errors import GatewayError, ModelNotFound, ModelUnavailable
from gateway.terms.logs import LogLines
from gateway.terms.request import ChatRequest
from gateway.terms.tasks import WorkerThreads

T = TypeVar("T")


class OfModel(Protocol):
    """A request that names a model."""

    @property
    def model(self) -> str: ...


class OfEncoding(Protocol):
    """A request for vectors or scores, and the form of its answer."""

    @property
    def request(self) -> OfModel: ...


Asked = TypeVar("Asked", bound=OfModel)
Written = TypeVar("Written", bound=OfEncoding)

# What clients call conversations in: llama-server's, Codex', OpenCode's and Claude Code's.
CONVERSATION_HEADERS = (
    "x-conversation-id",
    "session_id",
    "x-session-id",
    "x-claude-code-session-id",
)
LONGEST_CONVERSATION = 256  # characters
LONG_BODY = 64 << 10  # bytes; read in about a millisecond


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The packages below, as the routes use them."""

    reloader: Reloader
    announcements: Announcements
    registry: Registry
    pipeline: Pipeline
    mcp: McpServers
    rounds: ToolRounds
    encoders: Encoders
    authenticator: Authenticator
    refusals: Refusals
    tokenizers: Tokenizers
    templates: Templates
    presets: SamplingOverrides
    capabilities: Capabilities
    hub: Hub
    metrics: Metrics
    bodies: WorkerThreads
    threads: WorkerThreads  # for prompts and grammars, as the pipeline has them
    store: Store
    usage: UsageBook
    books: Books
    background: DetachedAnswers[BackgroundAnswer]
    streams: DetachedAnswers[DetachedAnswer]
    polled: PolledAnswers = msgspec.field(default_factory=PolledAnswers)
    feed: Feed
    sampler: GaugeSampler
    history: GaugeHistory = msgspec.field(default_factory=GaugeHistory)
    catalog: Catalog
    lines: LogLines
    sockets: Sockets
    made_models: Presets = msgspec.field(default_factory=Presets)
    downloads: Downloads = msgspec.field(default_factory=Downloads)
    uploads: Uploads

    @property
    def config(self) -> Config:
        """What is in force now."""
        return self.reloader.config

    def visible(self, access: Access, only: Collection[str] | None = None) -> list[ModelStatus]:
        """The states of the models the caller may use, or of those of them that `only` names, as
        the caller may see them. A model that has replicas is one.
        """
        statuses = [one for one in self.registry.statuses(only) if not one.is_replica]
        return [self._seen(status, access) for status in statuses if access.allows(status.id)]

    def usable(self, access: Access) -> list[ModelStatus]:
        """As `visible`, without what no request could use."""
        return [status for status in self.visible(access) if status.entry is not None]

    async def answering(self, access: Access) -> ModelStatus:
        """The model for requests that name none: the one in use, else the default.

        Raises ModelUnavailable where there is none.
        """
        try:
            return await self.found("", access)
        except ModelNotFound:
            text = "No model is loaded, and there is no default for this key."
            raise ModelUnavailable(text) from None

    async def meant(self, name: str, access: Access) -> ModelStatus:
        """The model of a request whose query names one, or none, as llama-server's clients do."""
        if name in NO_MODEL:
            return await self.answering(access)
        return await self.found(name, access)

    async def found(self, name: str, access: Access) -> ModelStatus:
        """The state of the model called `name`. Raises as `Registry.find`."""
        return self.status((await self.registry.find(name, access)).name, access)

    def status(self, name: str, access: Access) -> ModelStatus:
        """The state of one model, as the caller may see it. Raises as `Registry.resolve`."""
        return self._seen(self.registry.status(name, access), access)

    def facts(self, status: ModelStatus) -> LoadFacts | None:
        """What a model is loaded with, or would be, in its engine's words."""
        if status.files is None or status.options is None or status.files.remote is not None:
            return None
        engine = self.catalog[status.files.backend]
        facts = engine.files.facts(status.options)
        loaded = status.info and status.info.library  # by now the next load may have another
        library = loaded or engine.library(status.files, status.options)
        return facts if library is None else msgspec.structs.replace(facts, library=str(library))

    async def card(self, status: ModelStatus) -> ModelCard:
        """All that is known of a model."""
        return card(status, await self.capabilities.of(status), self.facts(status))

    async def cards(self, statuses: Sequence[ModelStatus]) -> list[ModelCard]:
        """All that is known of each."""
        known = await self.capabilities.of_all(statuses)
        return [card(one, known.get(one.id), self.facts(one)) for one in statuses]

    async def id_of(self, name: str, access: Access) -> str:
        """The id of a model, which may be one that can't be used. Raises ModelNotFound."""
        try:
            return (await self.registry.find(name, access)).name
        except ModelUnavailable:
            for status in self.visible(access):
                if name in (status.id, *status.aliases):
                    return status.id
            raise

    def redacted(self, error: GatewayError, access: Access) -> GatewayError:
        """`error` as the caller may read it."""
        message = self._without_paths(error.message, access)
        if message == error.message:
            return error
        copied = copy(error)
        copied.message = message
        return copied

    def progress(
        self,
        access: Access,
        run: Callable[[EventStream], Awaitable[bytes]],
        failed: Callable[[GatewayError], bytes],
        framing: Framing = SSE,
    ) -> ProgressStream:
        """A stream that `run` writes, and ends; `failed` is its last event, if it breaks."""
        return ProgressStream(
            run,
            lambda error: failed(self.redacted(error, access)),
            quiet=self.config.server.comment_after,
            framing=framing,
        )

    def _seen(self, status: ModelStatus, access: Access) -> ModelStatus:
        """A load's victims are names of other models."""
        why = status.why_failed and self._without_paths(status.why_failed, access)
        arithmetic = "" if access.models else status.arithmetic
        devices = {} if access.models else status.devices
        return msgspec.structs.replace(
            status, why_failed=why, arithmetic=arithmetic, devices=devices
        )

    def _without_paths(self, text: str, access: Access) -> str:
        """Administrators learn where files lie; for others the model's id stands there."""
        return text if access.role == "admin" else self.without_paths(text)

    def without_paths(self, text: str) -> str:
        """`text` as those may read it who are no administrators."""
        if "/" not in text:
            return text
        places = dict(self._places())
        for place in sorted(places, key=len, reverse=True):
            text = text.replace(place, places[place])
        return text

    def _places(self) -> Iterator[tuple[str, str]]:
        """Every path that an error may name, and what is written instead."""
        config = self.config
        for root in (*config.model_dirs, config.hub.folder, config.hub.cache, "~"):
            if root is not None:
                yield from _spellings(Path(root).expanduser(), "…")
        for status in self.registry.statuses():
            if status.files is not None:
                for path in (status.files.path, status.files.projector, *status.files.parts):
                    if path is not None:
                        yield from _spellings(path.parent, "…")
                        yield from _spellings(path, status.id)
            if status.unusable is not None:
                yield from _spellings(status.unusable, status.id)
            for text in _paths_in(status.options):
                yield from _spellings(Path(text).expanduser(), status.id)
        for model in filter(lambda model: model.path, config.models):
            yield from _spellings(Path(model.path).expanduser(), model.name)

    def chat(
        self, call: Call[ChatRequest], shown: Shown = "nothing", *, can_approve: bool = False
    ) -> AbstractAsyncContextManager[Answer]:
        """The answer to a conversation; see `ToolRounds.chat`."""
        request = call.request
        if not (request.served or request.approved or request.call_limit or self.config.mcp):
            return self.pipeline.chat(call)
        return self.rounds.chat(call, shown, can_approve=can_approve)

    async def count_tokens(self, call: Call[ChatRequest], *, can_approve: bool = False) -> int:
        """How many tokens the prompt has, with the tools that the server adds to it. Raises as
        `ToolRounds.chat`, and InvalidRequest.
        """
        request = await self.rounds.shown(call, can_approve=can_approve)
        return await self.tokenizers.count_chat(call.of(request))

    def reports_loading(self, access: Access, *, asked: bool | None) -> bool:
        """Whether a stream reports its model's load as reasoning: the first that is set of the
        request, the key, the configuration.
        """
        settings = (asked, access.loading_text, self.config.server.loading_text)
        return next(one for one in settings if one is not None)

    async def read(self, read: Callable[[bytes], T], body: bytes) -> T:
        """What a request's body means, a long one read beside the event loop. Raises as `read`."""
        return await self.bodies.run(lambda _wanted: read(body), is_long=len(body) >= LONG_BODY)

    async def encoding(
        self,
        request: AnyRequest,
        api: str,
        read: Callable[[bytes], Written],
        encode: Callable[[Call[Any]], Awaitable[Encoded]],
        write: Callable[[Written, Encoded], bytes],
    ) -> ASGIApp:
        """The answer to a request for vectors or scores: what `read` makes of its body, carried out
        by `encode`, as `write` has it.
        """
        exchange = await self.read(read, await request.body())
        asking = self.asking(request, api, exchange.request)
        return EncodingResponse(asking, encode, lambda encoded: write(exchange, encoded))

    def asking(self, request: AnyRequest, api: str, asked: Asked) -> Asking[Asked]:
        """`asked`, as `request` wants it by `api`."""
        return self.asking_by(call_of(request, asked), api, record_of(request))

    def asking_by(self, call: Call[Asked], api: str, record: RequestRecord) -> Asking[Asked]:
        """`call`, from now on in the books. Only names that exist for its caller are counted by."""
        model, access = call.request.model, call.access
        try:
            name = self.registry.resolve(self.registry.named(model, access), access).name
        except GatewayError:
            name = ""
        recording, shows_prompt = self.books.inspector.recording(), self.config.log.prompts
        record.asks(api, model, name, access, recording=recording, shows_prompt=shows_prompt)
        return Asking(
            call=call,
            books=self.books,
            record=record,
            readable=lambda error: self.redacted(error, access),
            quiet=self.config.server.comment_after,
            threads=self.bodies,
        )


def call_of(request: AnyRequest, asked: T, conversation: str = "") -> Call[T]:
    """What `request` wants done: `asked`, with its caller's rights. `conversation`: which one it
    belongs to, where its headers name none.
    """
    by = caller(request.headers, record_of(request).id)
    conversation = conversation_of(request.headers) or conversation
    return Call(request=asked, access=request.auth, caller=by, conversation=conversation)


def conversation_of(headers: Mapping[str, str]) -> str:
    """What the client calls the conversation that its request belongs to; "" where it doesn't."""
    named = (headers.get(name, "") for name in CONVERSATION_HEADERS)
    return next(filter(None, named), "")[:LONGEST_CONVERSATION]


def given(services: Services) -> Provide:
    """How Litestar gives them to each handler."""
    return Provide(lambda: services, sync_to_thread=False)


def _paths_in(chosen: EngineOptions | None) -> Iterator[str]:
    """The files and folders that a model's options name."""
    for name, kind in options(type(chosen)).items() if chosen is not None else ():
        value = getattr(chosen, name)
        if is_path(kind) and value is not None:
            yield value
        elif (item := mapping_item(kind)) is not None and is_path(item):
            yield from value.values()


def _spellings(path: Path, instead: str) -> Iterator[tuple[str, str]]:
    """A path as it is written, and as it is with its links followed. Never the root alone."""
    for one in (path, path.resolve()):
        if len(one.parts) > 1 and one.is_absolute():
            yield str(one), instead


NO_FACTS = LoadFacts()


def card(status: ModelStatus, known: Known | None, facts: LoadFacts | None) -> ModelCard:
    """What is known now; of a loaded model, from its container. `facts`: of the options in force,
    if any.
    """
    files, entry, facts = status.files, status.entry, facts or NO_FACTS
    found = known.recognised if known else None
    return alike(ModelCard, status)(
        created=entry.created if entry else 0,
        status=status_wire(status),
        parent=entry.of.name if entry and entry.of else msgspec.UNSET,
        backend=files.backend if files else None,
        format=files.format if files else None,
        context_length=context_length(status),
        size_bytes=files.size_bytes if files else None,
        capabilities=known.capabilities if known else None,
        output_format=OutputFormat(found.format.id, found.why) if found else None,
        sampling=entry.sampling_from if entry else None,
        memory=status.arithmetic or None,
        devices=status.devices or None,
        missing_bytes=status.missing,
        remaining_time_seconds=status.remaining_seconds,
        adapters=tuple(adapter.name for adapter in facts.adapters),
        library=facts.library,
    )


def placed(card: ModelCard, status: ModelStatus, server: str) -> ModelCard:
    """The card with the model's origin; `server`: this server's id."""
    remote = status.files.remote if status.files else None
    origin = remote.origin if remote is not None else None
    return msgspec.structs.replace(card, origin=origin or RemoteOrigin(server, card.id))


def current_card(
    status: ModelStatus, known: Known | None, facts: LoadFacts | None, template: str | None
) -> CurrentModel:
    """The card of a model, and what it is loaded with, if it is. `template`: the name of one chosen
    for it.
    """
    info, facts = status.info, facts or NO_FACTS
    parameters = (
        None
        if info is None
        else alike(LoadedParameters, facts)(
            max_seq_len=info.context_length,
            max_batch_size=info.max_concurrent,
            cache_size=facts.cache_tokens,
            prompt_template=template,
            prompt_template_content=known.template if known else info.chat_template,
            use_vision="image" in info.modalities,
            draft=facts.draft_model,
        )
    )
    return alike(CurrentModel, card(status, known, facts))(parameters=parameters)


def context_length(status: ModelStatus) -> int | None:
    """None too where another server doesn't report it."""
    if status.info is not None:
        return status.info.context_length or None
    if status.files is None:
        return None
    wanted = status.options.context_length if status.options is not None else None
    length = wanted or status.files.context_length  # which it may exceed, as with scaled positions
    return min(length, status.files.positions or length) or None


def status_wire(status: ModelStatus) -> StatusWire:
    """A draining model counts as loaded, and one that failed as not loaded."""
    value: Literal["unloaded", "loading", "loaded"] = "unloaded"
    if status.state in ("loading", "loaded", "draining"):
        value = "loading" if status.state == "loading" else "loaded"
    progress = status.progress
    percent = 100 * progress.done // progress.total if progress and progress.total > 0 else None
    return StatusWire(value=value, failed=status.state == "failed", percent=percent)
