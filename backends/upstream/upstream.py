"""One configured upstream: its connections, its replicas, and the models it offers."""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from operator import itemgetter

import anyio
import httpx
import structlog
from msgspec.structs import replace

from backends.conversation import Message
from backends.errors import LoadFailed, UpstreamError
from backends.protocol import SAMPLERS, Modality, ModelInfo
from backends.remote import (
    RemoteChat,
    RemoteContainer,
    RemoteEvents,
    RemoteStanding,
    RemoteTarget,
    RemoteText,
)
from backends.upstream.discovery import Offer, ServerModels, read_list
from backends.upstream.http1 import Http1Transport
from backends.upstream.refusals import Cleaner, refusal
from backends.upstream.relay import Question, Relay, plain, read_body, told
from backends.upstream.replicas import Balance, Replica
from backends.upstream.wire import chat_body, text_body
from config.upstreams import UpstreamConfig

AGENT = "roundhouse"
MAX_LIST = 16 << 20  # bytes of a list of models
PROBE_TIMEOUT = 10.0  # seconds for a list of models, or a sign of life
KEPT_ALIVE = 256  # idle connections
IDLE = 30.0  # seconds until one is closed; servers commonly close theirs after 60 or more
PREFIX = 4_096  # characters by which a conversation is known

log = structlog.get_logger(__name__)


class Upstream:
    """All its models share connections and replicas."""

    def __init__(self, config: UpstreamConfig, client: httpx.AsyncClient) -> None:
        self.config = config
        self.client = client
        weights = config.weights or (1.0,) * len(config.urls)
        replicas = [Replica(url=url, weight=w) for url, w in zip(config.urls, weights, strict=True)]
        self.balance = Balance(replicas, config.failures)
        self._told: dict[str, ServerModels] = {}  # by base URL, what was last heard from there
        self.cleaner = Cleaner(config.urls, _secrets(config))
        self.relay = Relay(config, client, self.balance, self.cleaner)

    async def offers(self) -> tuple[Offer, ...]:
        """What `/models` lists: of the first replica that tells; Roundhouses may have different
        models, and all count, also of one that is silent now. Replicas learn how their models do.
        Raises UpstreamError.
        """
        told: dict[str, ServerModels] = {}
        errors: list[UpstreamError] = []
        awake = [one for one in self.balance.replicas if one.state != "resting"]

        async def look(replica: Replica) -> None:
            try:
                told[replica.url] = self._noted(replica, read_list(await self._list(replica)))
            except UpstreamError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for replica in awake or self.balance.replicas:
                tasks.start_soon(look, replica)
        self._told |= told
        if any(one.standings is not None for one in self._told.values()):
            for silent in self.balance.replicas:
                silent.standings = silent.standings if silent.url in told else {}
        if not told:
            raise self.cleaner.cleaned(errors[0])
        order = sorted(self.config.urls, key=lambda url: url not in told)
        return _together([self._told[url] for url in order if url in self._told])

    def _noted(self, replica: Replica, listed: ServerModels) -> ServerModels:
        """Roundhouses tell why models failed, where addresses may stand."""
        clean = self.cleaner.clean
        replica.standings = listed.standings and {
            name: replace(one, why_failed=one.why_failed and clean(one.why_failed))
            for name, one in listed.standings.items()
        }
        return listed

    def standing(self, model: str) -> RemoteStanding | None:
        """How a model does where it is nearest to an answer, the requests of all replicas
        together; None where no Roundhouse tells.
        """
        telling = [
            (one.distance(model), one.standings[model])
            for one in self.balance.replicas
            if one.state != "resting" and one.standings and model in one.standings
        ]
        if not telling:
            return None
        _, best = min(telling, key=itemgetter(0))
        return replace(
            best,
            in_use=sum(standing.in_use for _, standing in telling),
            waiting=sum(standing.waiting for _, standing in telling),
        )

    async def alive(self) -> None:
        """Return when a replica gave a sign of life. Raises LoadFailed with every one's reason."""
        reasons: list[str] = []
        for replica in self.balance.replicas:
            try:
                await self.probe(replica)
            except UpstreamError as error:
                reasons.append(self.cleaner.clean(str(error)))
            else:
                return
        raise LoadFailed("; ".join(dict.fromkeys(reasons)))

    async def probe(self, replica: Replica) -> None:
        """A sign of life: an answer to GET /models, if only that there is no such route. Raises
        UpstreamError.
        """
        try:
            await self._list(replica)
        except UpstreamError as error:
            if error.status not in (404, 405):
                raise
        self.balance.probed(replica)

    async def _list(self, replica: Replica) -> bytes:
        request = self.client.build_request("GET", f"{replica.url}/models")
        with told(self.config):
            with anyio.move_on_after(PROBE_TIMEOUT):
                response = await self.client.send(request, stream=True)
                try:
                    plain(response)
                    body = await read_body(response, MAX_LIST)
                finally:
                    await response.aclose()
                if response.status_code != httpx.codes.OK:
                    raise refusal(response.status_code, response.headers, body)
                return body
        raise UpstreamError(f"The upstream didn't answer within {PROBE_TIMEOUT:g} s.", status=504)


def _together(lists: Sequence[ServerModels]) -> tuple[Offer, ...]:
    """All that Roundhouses have, else what the first has; who comes first says what it is."""
    if all(one.standings is None for one in lists):
        return lists[0].offers
    found: dict[str, Offer] = {}
    for one in lists:
        for offer in one.offers:
            found.setdefault(offer.id, offer)
    return tuple(found.values())


def client_of(config: UpstreamConfig) -> httpx.AsyncClient:
    """Connections as configured. Reads certificates, which blocks for some milliseconds.

    Redirects are not followed, and nothing is taken from the environment: a .netrc could send its
    passwords along. Raises OSError, ssl.SSLError for certificates that can't be read.
    """
    headers = {"user-agent": AGENT, "accept-encoding": "identity", **config.headers}
    if config.key is not None:
        headers["authorization"] = f"Bearer {config.key}"
    trusted = _trusted(config)
    direct = not config.http2 and config.proxy is None
    return httpx.AsyncClient(
        transport=Http1Transport(trusted, most=KEPT_ALIVE, idle=IDLE) if direct else None,
        verify=trusted or False,  # where nothing is encrypted there is nothing to check
        http2=config.http2,
        proxy=config.proxy,
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # one user's are not another's
        headers=headers,
        limits=httpx.Limits(max_keepalive_connections=KEPT_ALIVE, keepalive_expiry=IDLE),
        timeout=httpx.Timeout(None, connect=config.connect_timeout),
    )


def _trusted(config: UpstreamConfig) -> ssl.SSLContext | None:
    """None where nothing is encrypted."""
    if all(url.startswith("http:") for url in (*config.urls, config.proxy or "http:")):
        return None
    return ssl.create_default_context(cafile=config.ca_file)


def _secrets(config: UpstreamConfig) -> Iterator[str]:
    """What no client may read: the key, and headers that are likely to hold one."""
    yield config.key or ""
    for name, value in config.headers.items():
        if any(word in name.lower() for word in ("key", "token", "auth", "secret", "cookie")):
            yield from (value, value.rpartition(" ")[2])


class UpstreamModel(RemoteContainer):
    """One of an upstream's models, as the gateway leases it."""

    def __init__(self, upstream: Upstream, target: RemoteTarget) -> None:
        self._upstream = upstream
        self._target = target
        config = upstream.config
        self._info = ModelInfo(
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

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def splits(self) -> bool:
        return self._upstream.config.split == "there"

    @property
    def dropped(self) -> frozenset[str]:
        return frozenset(self._upstream.config.drop)

    def chat(self, request: RemoteChat) -> AbstractAsyncContextManager[RemoteEvents]:
        return self._upstream.relay.asked(
            Question(
                path="/chat/completions",
                body=chat_body(request, self._target.model, self._upstream.config),
                choices=request.n,
                caller=request.caller,
                model=self._target.model,
                conversation=self._conversation(*map(_told, request.messages[:2])),
            )
        )

    def complete(self, request: RemoteText) -> AbstractAsyncContextManager[RemoteEvents]:
        first = request.prompts[0]
        return self._upstream.relay.asked(
            Question(
                path="/completions",
                body=text_body(request, self._target.model, self._upstream.config),
                choices=request.n * len(request.prompts),
                caller=request.caller,
                model=self._target.model,
                conversation=self._conversation(first[: PREFIX // 4]),
            )
        )

    def _conversation(self, *parts: str | tuple[int, ...]) -> int | None:
        """What all turns of a conversation begin with; None where there is but one server."""
        if len(self._upstream.balance.replicas) == 1:
            return None
        return hash((self._target.model, *parts))

    async def aclose(self) -> None:
        """The connections are the upstream's, which has other models."""


def _told(message: Message) -> str:
    return f"{message.role}:{message.text[:PREFIX]}"


def modalities(target: RemoteTarget) -> tuple[Modality, ...]:
    """What it takes. Where nobody knows, pictures are handed on: the upstream will say."""
    known = target.capabilities
    return ("text", "image") if known is None or "vision" in known else ("text",)
