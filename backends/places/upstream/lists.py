"""The model lists of one upstream's servers: requested, parsed and kept.

Each is requested by itself, and one that was silent when it was last asked is not waited for. The
last lists are kept on disk: after a start, an upstream that is down has the models it had, so that
requests for them get its fallbacks.
"""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import httpx
import msgspec
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup
from msgspec import Meta
from msgspec.structs import replace

from backends.contract.errors import LoadFailed, UpstreamError
from backends.contract.remote import (
    MAX_NAME,
    RemoteFacts,
    RemoteOrigin,
    RemoteStanding,
    RemoteState,
)
from backends.machine.paths import replace_file
from backends.places.upstream.faults import Fault, converted, decoded, kind_of, late, warn
from backends.places.upstream.refusals import Cleaner
from backends.places.upstream.relay import httpx_errors, plain, read_body, refused
from backends.places.upstream.replicas import Balance, Replica
from config.upstreams import UpstreamConfig
from config.values import alike

log = structlog.get_logger(__name__)

MOST_MODELS = 10_000
ROUNDHOUSE = "roundhouse"  # what our own lists have as `owned_by`


class _Meta(msgspec.Struct, frozen=True):
    """llama-server's."""

    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _Card(msgspec.Struct, frozen=True):
    """One model, with what several kinds of servers add."""

    id: str
    owned_by: str | None = None
    max_model_len: int | None = None  # vLLM, SGLang
    context_length: int | None = None  # OpenRouter, Roundhouse
    max_input_tokens: int | None = None  # Anthropic
    meta: _Meta | None = None
    capabilities: Any = None
    modalities: Any = None
    origin: Any = None  # `RemoteOrigin`, Roundhouse


Count = Annotated[int, Meta(ge=0, le=2**62)]


class _Status(msgspec.Struct, frozen=True):
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None


class _Standing(msgspec.Struct, frozen=True):
    """What of a Roundhouse's card changes while it runs."""

    state: RemoteState
    status: _Status = _Status()
    why_failed: str | None = None
    memory: str | None = None
    missing_bytes: Count | None = None
    in_use: Count = 0
    waiting: Count = 0


class _List(msgspec.Struct, frozen=True):
    data: list[Any]


class Offer(RemoteFacts, frozen=True, kw_only=True):
    """A model that another server has, as far as its list describes it."""

    id: str
    owner: str = ""  # `owned_by`, which identifies some kinds of servers


class ServerModels(msgspec.Struct, frozen=True):
    """One server's list. `standings`: a Roundhouse's, by its own names; None: it is none."""

    offers: tuple[Offer, ...]
    standings: dict[str, RemoteStanding] | None


def read_list(body: bytes) -> ServerModels:
    """The models of a list; invalid entries are passed over. Raises Unhealthy."""
    cards = decoded(body, _List, "no list of models").data[:MOST_MODELS]
    found = {offer.id: (offer, card) for card in cards if (offer := _offer(card)) is not None}
    ours = {name: card for name, (offer, card) in found.items() if offer.roundhouse}
    standings = dict(_standings(ours)) if ours else None
    return ServerModels(tuple(offer for offer, _ in found.values()), standings)


def _standings(cards: dict[str, Any]) -> Iterator[tuple[str, RemoteStanding]]:
    for name, card in cards.items():
        if (standing := converted(card, _Standing)) is not None:
            found = alike(RemoteStanding, standing)(
                percent=standing.status.percent,
                memory=standing.memory or "",
                missing=standing.missing_bytes or 0,
            )
            yield name, found


def _offer(data: Any) -> Offer | None:
    card = converted(data, _Card)
    if card is None or not 0 < len(card.id) <= MAX_NAME or not card.id.isprintable():
        return None
    ours = card.owned_by == ROUNDHOUSE
    return Offer(
        id=card.id,
        context_length=_length(card),
        capabilities=_capabilities(card) if ours else None,
        roundhouse=ours,
        owner=(card.owned_by or "")[:MAX_NAME],
        origin=_origin(card) if ours else None,
    )


def _origin(card: _Card) -> RemoteOrigin | None:
    """As far from here as the other server is, and one more. None: an older one doesn't say it."""
    origin = converted(card.origin, RemoteOrigin)
    return replace(origin, hops=origin.hops + 1) if origin is not None else None


def _length(card: _Card) -> int | None:
    meta = card.meta or _Meta()
    said = (card.max_model_len, card.context_length, card.max_input_tokens)
    lengths = (*said, meta.n_ctx, meta.n_ctx_train)
    return next((length for length in lengths if length is not None and length > 0), None)


def _capabilities(card: _Card) -> tuple[str, ...] | None:
    known = card.capabilities
    if not isinstance(known, list):
        return None
    return tuple(word for word in ("tools", "reasoning", "vision") if word in known)


MAX_LIST = 16 << 20  # bytes of a list of models
PROBE_TIMEOUT = 10.0  # seconds for a list of models, or a probe
# Anthropic's has 20 on a page by default.
_PATHS = {"openai": "/models", "anthropic": "/models?limit=1000"}
# Answers of a server that is up and has no list. `transformers serve` fails where it has no cache
# of models to scan, and serves the one it was started with.
_LISTLESS = frozenset((404, 405, 500, 501))


class KeptLists(msgspec.Struct, frozen=True):
    """What servers offered last, on disk: a file for each in `folder`. None: nothing is kept."""

    _folder: Path | None = None

    def read(self, upstream: str, url: str) -> tuple[Offer, ...] | None:
        """None where there is nothing that can be read. Blocks."""
        if (path := self._path(upstream, url)) is None:
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=tuple[Offer, ...])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def write(self, upstream: str, url: str, offers: Sequence[Offer]) -> None:
        """The file is whole, or as it was. Blocks."""
        if (path := self._path(upstream, url)) is None:
            return
        try:
            replace_file(path, msgspec.json.encode(offers))
        except OSError as error:
            log.warning("a list of models is not kept", upstream=upstream, reason=str(error))

    def _path(self, upstream: str, url: str) -> Path | None:
        name = hashlib.sha256(f"{upstream} {url}".encode()).hexdigest()[:32]
        return self._folder / f"{name}.json" if self._folder else None


NOTHING_KEPT = KeptLists()


class Lists(msgspec.Struct, eq=False):
    """`offers`: the last lists, by the servers' names; it is replaced, not changed. None: no server
    has answered yet, and no list was kept.
    """

    _config: UpstreamConfig
    _client: httpx.AsyncClient
    _balance: Balance
    _cleaner: Cleaner
    _kept: KeptLists = NOTHING_KEPT
    offers: Mapping[str, Offer] | None = None
    listed: dict[str, ServerModels] = {}  # by base URL, each one's last list
    _turns: dict[str, anyio.Lock] = {}  # by base URL
    _asked_at: dict[str, tuple[float, float]] = {}  # by base URL: when that began, its end

    def recall(self) -> None:
        """The lists that were kept, of servers that were not asked yet. Blocks."""
        for url in self._config.urls:
            if url not in self.listed and (offers := self._kept.read(self._config.name, url)):
                are_ours = any(offer.roundhouse for offer in offers)
                self.listed[url] = ServerModels(offers, {} if are_ours else None)
        self._put_together()

    def remember(self, before: "Lists") -> None:
        """The lists of servers of an earlier configuration, until they are asked again."""
        self.listed = {url: before.listed[url] for url in self._config.urls if url in before.listed}
        self._put_together()

    async def refresh(self, replica: Replica, again: float = 0.0) -> None:
        """Ask a server what it has, unless that was done less than `again` seconds ago; callers
        meanwhile wait with the first, but without `again` for a request that is sent after this
        call. A server that doesn't answer is silent from now on, and has what it had.
        """
        url, called = replica.url, time.monotonic()
        async with self._turns.setdefault(url, anyio.Lock()):
            last_began, last_ended = self._asked_at.get(url, (-math.inf, -math.inf))
            began = time.monotonic()
            if last_began >= called or began - last_ended < again:
                return
            try:
                await self._request(replica)
            finally:
                self._asked_at[url] = (began, time.monotonic())

    async def _request(self, replica: Replica) -> None:
        try:
            body = await self.probe(replica)
            if body is not None:
                listed, known = read_list(body), self.listed.get(replica.url)
                self.note(replica, listed)
                if known is None or known.offers != listed.offers:
                    await self._keep(replica.url, listed.offers)
        except UpstreamError as error:
            fault = Fault(kind_of(error), self._cleaner.clean(str(error)))
            warn("no list of models", self._config.name, replica.url, fault, replica.silence)
            replica.silence = fault
            self._put_together()

    async def _keep(self, url: str, offers: tuple[Offer, ...]) -> None:
        """What a Roundhouse knows of others, this one among them, isn't kept: ids change."""
        own = tuple(one for one in offers if one.origin is None or one.origin.hops == 1)
        await to_thread.run_sync(self._kept.write, self._config.name, url, own)

    def note(self, replica: Replica, listed: ServerModels) -> None:
        """What a server listed now. Roundhouses report why models failed, where addresses may
        stand.
        """
        clean = self._cleaner.clean
        replica.listed(
            listed.standings
            and {
                name: replace(one, why_failed=one.why_failed and clean(one.why_failed))
                for name, one in listed.standings.items()
            }
        )
        self.listed[replica.url] = listed
        self._put_together()

    def _put_together(self) -> None:
        """Of the first replica that has a list; Roundhouses may have different models, and all
        count, also of one that is silent now, though its models' standings are no longer known.
        """
        replicas, known = self._balance.replicas, self.listed
        if any(one.standings is not None for one in known.values()):
            for one in replicas:
                if one.silent or one.url not in known:
                    one.standings = {}
        order = sorted(replicas, key=lambda one: one.silent)
        lists = [known[one.url] for one in order if one.url in known]
        found = _together(lists) if lists else None
        if found != self.offers:  # what is equal stays the same object
            self.offers = found

    async def alive(self) -> None:
        """Return when a replica answered a probe. Raises LoadFailed with every one's reason."""
        reasons: list[str] = []

        async def probe(replica: Replica, tasks: TaskGroup) -> None:
            try:
                await self.probe(replica)
            except UpstreamError as error:
                reasons.append(self._cleaner.clean(str(error)))
            else:
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for replica in self._balance.replicas:
                tasks.start_soon(probe, replica, tasks)
        if len(reasons) == len(self._balance.replicas):
            raise LoadFailed("; ".join(dict.fromkeys(reasons)))

    async def probe(self, replica: Replica) -> bytes | None:
        """A probe: an answer to GET /models, if only that there is no such route, or that it is
        broken: None. Raises UpstreamError.
        """
        try:
            body = await self._asked(replica)
        except UpstreamError as error:
            if error.status not in _LISTLESS:
                raise
            body = None
        replica.silence = None
        self._balance.probed(replica)
        return body

    async def _asked(self, replica: Replica) -> bytes:
        url = replica.url + _PATHS[self._config.protocol]
        with httpx_errors(self._config):
            with anyio.move_on_after(PROBE_TIMEOUT):
                async with self._client.stream("GET", url, headers=replica.headers) as response:
                    if response.status_code != httpx.codes.OK:
                        raise await refused(response)
                    plain(response)
                    return await read_body(response, MAX_LIST)
        raise late("answer", PROBE_TIMEOUT)


def _together(lists: Sequence[ServerModels]) -> dict[str, Offer]:
    """All that Roundhouses have, else what the first has; of equal names the first counts."""
    if all(one.standings is None for one in lists):
        lists = lists[:1]
    found: dict[str, Offer] = {}
    for one in lists:
        for offer in one.offers:
            found.setdefault(offer.id, offer)
    return found
