"""One configured upstream: its connections, its replicas, and the models it offers."""

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

import anyio
import httpx
import msgspec
from msgspec.structs import replace

from backends.contract.encoder import EncoderContainer
from backends.contract.errors import UpstreamError
from backends.contract.protocol import Leasable, Modality, ModelContainer, ModelInfo
from backends.contract.remote import (
    HOPS,
    Caller,
    RemoteChanges,
    RemoteChat,
    RemoteEmbedding,
    RemoteEncoding,
    RemoteEvents,
    RemoteRequest,
    RemoteRerank,
    RemoteStanding,
    RemoteTarget,
    RemoteText,
    RemoteVectors,
)
from backends.contract.samplers import SAMPLERS
from backends.places.upstream.http1 import Http1Transport, ResolvedFirst
from backends.places.upstream.lists import NOTHING_KEPT, KeptLists, Lists, Offer
from backends.places.upstream.messages import (
    MessagesReader,
    Signatures,
    count_body,
    messages_body,
    messages_changes,
)
from backends.places.upstream.refusals import Cleaner
from backends.places.upstream.relay import Relay, key_headers, single, with_missing
from backends.places.upstream.replicas import Balance, Replica, beginning, first_part, stable_hash
from backends.places.upstream.vectors import read_scores, read_vectors
from backends.places.upstream.wire import (
    OWNERS,
    Question,
    TokenCalls,
    chat_body,
    chat_changes,
    embedding_body,
    lacking,
    read_count,
    read_spelled,
    read_text,
    read_tokens,
    rerank_body,
    text_body,
)
from config.upstreams import ServerKind, UpstreamConfig
from config.values import alike

T = TypeVar("T")
R = TypeVar("R", bound=RemoteRequest)

AGENT = "roundhouse"
ANTHROPIC_VERSION = "2023-06-01"  # the only one that is documented
KEPT_ALIVE = 256  # idle connections
_NO_VECTORS = "it supports no embeddings or reranking"
IDLE = 30.0  # seconds until one is closed; servers commonly close theirs after 60 or more


class Upstream:
    """All its models share connections and replicas."""

    def __init__(
        self, config: UpstreamConfig, client: httpx.AsyncClient, kept: KeptLists = NOTHING_KEPT
    ) -> None:
        self.config = config
        self.client = client
        weights = config.weights or (1.0,) * len(config.urls)
        keys = config.keys or ("",) * len(config.urls)
        replicas = [
            Replica(url=url, weight=weight, headers=key_headers(config, key) if key else {})
            for url, weight, key in zip(config.urls, weights, keys, strict=True)
        ]
        self.balance = Balance(replicas, config.failures)
        self.cleaner = Cleaner(config.urls, _secrets(config))
        self.lists = Lists(config, client, self.balance, self.cleaner, kept)
        self.relay = Relay(config, client, self.balance, self.cleaner)
        self.signatures = Signatures()
        self._users = 0
        self._unused: anyio.Event | None = None

    def follow(self, before: "Upstream") -> None:
        """Take the place of one of the same name: drained replicas stay drained, and its servers'
        last lists count until they are requested again.
        """
        drained = {one.url for one in before.balance.replicas if one.draining}
        for replica in self.balance.replicas:
            replica.draining = replica.url in drained
        self.lists.remember(before.lists)
        self.signatures = before.signatures

    def standing(self, model: str) -> RemoteStanding | None:
        """A model's standing where it is nearest to an answer, the requests of all replicas
        together; None where no Roundhouse reports it.
        """
        found = [
            (one.distance(model), one.standings[model])
            for one in self.balance.replicas
            if one.state != "resting" and one.standings and model in one.standings
        ]
        if not found:
            return None
        _, best = min(found, key=itemgetter(0))
        return replace(
            best,
            in_use=sum(standing.in_use for _, standing in found),
            waiting=sum(standing.waiting for _, standing in found),
        )

    def target(self, model: str) -> RemoteTarget:
        """What is known of one of its models now; the configuration knows best."""
        offers = self.lists.offers or {}
        return target_of(self.config, offers.get(model) or Offer(id=model))

    def server(self, model: str) -> ServerKind | None:
        """What kind of server has the model, as configured or by its list; None: unknown."""
        offer = (self.lists.offers or {}).get(model)
        return self.config.server or (OWNERS.get(offer.owner) if offer is not None else None)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Its connections are needed as long as the context lasts."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._unused is not None and not self._users:
                self._unused.set()

    async def retire(self) -> None:
        """Close the connections once they are not in use; at once where it is cancelled."""
        self._unused = anyio.Event()
        try:
            if self._users:
                await self._unused.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await self.client.aclose()


def client_of(config: UpstreamConfig, server: str = "") -> httpx.AsyncClient:
    """Connections as configured; `server`: this server's id, for other Roundhouses. Reads
    certificates, which blocks for some milliseconds.

    Redirects are not followed, and nothing is taken from the environment: a .netrc could send its
    passwords along. Raises OSError, ssl.SSLError for certificates that can't be read.
    """
    headers = {"user-agent": AGENT, "accept-encoding": "identity"}
    if config.protocol == "anthropic":
        headers["anthropic-version"] = ANTHROPIC_VERSION
    if server:
        headers[HOPS] = server
    headers |= config.headers
    if config.key is not None:
        headers |= key_headers(config, config.key)
    trusted = _trusted(config)
    options: dict[str, Any] = {
        "trust_env": False,
        "follow_redirects": False,
        # One user's cookies are not another's.
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),
        "headers": headers,
        "timeout": httpx.Timeout(None, connect=config.connect_timeout),
    }
    if not config.http2 and config.proxy is None:
        direct = Http1Transport(trusted, most=KEPT_ALIVE, idle=IDLE)
        return httpx.AsyncClient(transport=direct, **options)
    transport = httpx.AsyncHTTPTransport(
        verify=trusted or False,  # without TLS there is nothing to verify
        http2=config.http2,
        proxy=config.proxy,
        limits=httpx.Limits(max_keepalive_connections=KEPT_ALIVE, keepalive_expiry=IDLE),
        trust_env=False,
    )
    return httpx.AsyncClient(transport=ResolvedFirst(transport, config.proxy), **options)


def _trusted(config: UpstreamConfig) -> ssl.SSLContext | None:
    """None where nothing is encrypted."""
    if all(url.startswith("http:") for url in (*config.urls, config.proxy or "http:")):
        return None
    return ssl.create_default_context(cafile=config.ca_file)


def _secrets(config: UpstreamConfig) -> Iterator[str]:
    """Secrets that no client may read: the key, and headers that are likely to hold one."""
    yield config.key or ""
    yield from config.keys
    for name, value in config.headers.items():
        if any(word in name.lower() for word in ("key", "token", "auth", "secret", "cookie")):
            yield from (value, value.rpartition(" ")[2])


class UpstreamModel(Leasable):
    """One of an upstream's models, as the gateway leases it: another server, or one of several,
    runs it. `find`: the upstream as it is now, whose configuration may have changed since; it
    raises UpstreamError where there is none now, as all calls do. `model`: by its name there.
    """

    def __init__(self, find: Callable[[], Upstream], model: str) -> None:
        self._find = find
        self._model = model
        self._seen = find()

    @property
    def info(self) -> ModelInfo:
        upstream = self._now()
        return _info(upstream.config, upstream.target(self._model))

    @property
    def splits(self) -> bool:
        """The other server splits answers; else chats are to go over `complete`."""
        return self._now().config.split == "there"

    def changes(self, request: RemoteRequest) -> RemoteChanges:
        """How a request is changed on the way."""
        upstream = self._now()
        if upstream.config.protocol == "anthropic":
            return messages_changes(request, upstream.config)
        return chat_changes(request, upstream.config, upstream.server(self._model))

    def _now(self) -> Upstream:
        """What is gone is as it was: an answer may still be under way."""
        with suppress(UpstreamError):
            self._seen = self._find()
        return self._seen

    def chat(self, request: RemoteChat) -> AbstractAsyncContextManager[RemoteEvents]:
        """Entered when the answer has begun. Raises UpstreamError, also on entry and while
        iterating; an iteration that ends without one is a whole answer.
        """
        return self._answered(self._find(), request, self._question)

    def complete(self, request: RemoteText) -> AbstractAsyncContextManager[RemoteEvents]:
        """As `chat`; all text is content. Choice p * n + i is the i-th answer to prompt p."""
        upstream = self._openai("prompt", "it supports only chats")
        return self._answered(upstream, request, self._text_question)

    @asynccontextmanager
    async def _answered(
        self, upstream: Upstream, request: R, written: Callable[[Upstream, R], Question]
    ) -> AsyncIterator[RemoteEvents]:
        """The answer to all of a request, then to each choice of it that is left out there."""
        question, asked = written(upstream, request), upstream.relay.asked

        def alone(index: int) -> AbstractAsyncContextManager[RemoteEvents]:
            return asked(written(upstream, single(request, index)))

        with upstream.in_use():
            async with (
                asked(question) as events,
                with_missing(events, question.choices, alone) as all_events,
            ):
                yield all_events

    async def embed(self, request: RemoteEmbedding) -> RemoteVectors:
        """The vectors of all texts."""
        body = embedding_body(request, self._model, self._openai("model", _NO_VECTORS).config)
        question = self._asking("/embeddings", body, request.caller)
        return await self._whole(question, partial(read_vectors, count=len(request.inputs)))

    async def rerank(self, request: RemoteRerank) -> RemoteVectors:
        """The scores of all documents."""
        body = rerank_body(request, self._model, self._openai("model", _NO_VECTORS).config)
        question = self._asking("/rerank", body, request.caller)
        return await self._whole(question, partial(read_scores, count=len(request.documents)))

    async def encode(self, request: RemoteEncoding) -> tuple[int, ...]:
        """The tokens of a text. Raises UpstreamError, also where the other server doesn't tell."""
        call = self._calls("prompt", request.caller).encode(request)
        return await self._called(call, read_tokens)

    async def spell(self, request: RemoteEncoding) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """The tokens of a text, and the bytes of each. As `encode`."""
        call = self._calls("text", request.caller).encode(request, pieces=True)
        return await self._called(call, partial(read_spelled, text=request.text))

    async def encode_chat(self, request: RemoteChat) -> tuple[int, ...]:
        """The tokens of a conversation's prompt, as `encode`; of its parameters only those that
        templates read.
        """
        calls = self._calls("messages", request.caller)
        if self._find().server(self._model) == "llama-server":
            text = await self.render(request)
            return await self.encode(RemoteEncoding(text=text, caller=request.caller))
        return await self._called(calls.encode_chat(request), read_tokens)

    async def count(self, request: RemoteChat) -> int:
        """How many they are."""
        upstream = self._find()
        if upstream.config.protocol == "openai":
            return len(await self.encode_chat(request))
        body = msgspec.json.encode(count_body(request, self._model, upstream.signatures))
        call = self._asking("/messages/count_tokens", body, request.caller)
        return await self._called(call, read_count)

    async def render(self, request: RemoteChat) -> str:
        """The same prompt as text."""
        call = self._calls("messages", request.caller, "for prompts").render(request)
        if call is None:
            return await self.decode(await self.encode_chat(request), request.caller)
        return await self._called(call, read_text)

    async def decode(self, tokens: tuple[int, ...], caller: Caller) -> str:
        """The text of tokens, as `encode`."""
        call = self._calls("tokens", caller, "for them").decode(tokens)
        return await self._called(call, read_text)

    def _calls(self, param: str, caller: Caller, what: str = "for tokens") -> TokenCalls:
        upstream, model = self._openai(param, f"it has no call {what}"), self._model
        return TokenCalls(caller, model, upstream.server(model))

    def _openai(self, param: str, why: str) -> Upstream:
        """Raises UpstreamError where the server speaks Anthropic's API."""
        upstream = self._find()
        if upstream.config.protocol != "openai":
            text = f"{param}: The model's server uses Anthropic's API: {why}."
            kind = "invalid_request_error"
            raise UpstreamError(text, status=400, type=kind, code=None, param=param)
        return upstream

    async def _called(self, call: Question, read: Callable[[bytes], T]) -> T:
        try:
            return await self._whole(call, read)
        except UpstreamError as error:
            if error.status in (404, 405) and error.code != "model_not_found":
                raise lacking(call.path) from None
            raise

    def _asking(self, path: str, body: bytes, caller: Caller) -> Question:
        return Question(path=path, body=body, caller=caller, model=self._model)

    async def _whole(self, question: Question, read: Callable[[bytes], T]) -> T:
        """What `read` makes of an answer that is one body."""
        upstream = self._find()
        with upstream.in_use():
            return await upstream.relay.whole(question, read)

    def _question(self, upstream: Upstream, request: RemoteChat) -> Question:
        config, model = upstream.config, self._model
        question = Question(
            path="/chat/completions",
            choices=request.n,
            caller=request.caller,
            model=model,
            conversation=self._conversation(upstream, *beginning(request.messages)),
        )
        if config.protocol == "openai":
            body = chat_body(request, model, config, upstream.server(model))
            return replace(question, body=body)
        return replace(
            question,
            path="/messages",
            body=messages_body(request, model, config, upstream.signatures),
            reader=lambda: MessagesReader(upstream.signatures),
        )

    def _text_question(self, upstream: Upstream, request: RemoteText) -> Question:
        model, first = self._model, request.prompts[0]
        return Question(
            path="/completions",
            body=text_body(request, model, upstream.config, upstream.server(model)),
            choices=request.n * len(request.prompts),
            caller=request.caller,
            model=model,
            conversation=self._conversation(upstream, first_part(first)),
        )

    def _conversation(self, upstream: Upstream, *parts: str | tuple[int | str, ...]) -> int | None:
        """What all turns of a conversation begin with; None where there is but one server."""
        if len(upstream.balance.replicas) == 1:
            return None
        return stable_hash(self._model, *map(str, parts))

    async def aclose(self) -> None:
        """The connections are the upstream's, which has other models."""


Container: TypeAlias = ModelContainer | EncoderContainer | UpstreamModel


def _info(config: UpstreamConfig, target: RemoteTarget) -> ModelInfo:
    return ModelInfo(
        backend="upstream",
        format="remote",
        architecture="",
        context_length=target.context_length or 0,
        max_concurrent=config.max_concurrent,
        vocab_size=0,
        size_bytes=0,
        modalities=modalities(target),
        samplers=frozenset(SAMPLERS),
    )


def target_of(config: UpstreamConfig, offer: Offer) -> RemoteTarget:
    """What is known of a model; the configuration knows best."""
    configured = config.capabilities
    return alike(RemoteTarget, offer)(
        upstream=config.name,
        model=offer.id,
        context_length=config.context_length or offer.context_length,
        capabilities=offer.capabilities if configured is None else configured,
        fallbacks=config.fallbacks,
        fetches_images=not config.fetch_images,
    )


def modalities(target: RemoteTarget) -> tuple[Modality, ...]:
    """What it takes. Where that is unknown, pictures are handed on: the upstream will refuse them
    if it must.
    """
    known = target.capabilities
    return ("text", "image") if known is None or "vision" in known else ("text",)
