"""The model lists of one upstream's servers. Each is requested by itself, and one that was silent
when it was last asked is not waited for.
"""

import time
from collections.abc import Mapping, Sequence

import anyio
import httpx
import structlog
from anyio.abc import TaskGroup
from msgspec.structs import replace

from backends.errors import LoadFailed, UpstreamError
from backends.upstream.discovery import Offer, ServerModels, read_list
from backends.upstream.refusals import Cleaner, refusal
from backends.upstream.relay import httpx_errors, plain, read_body
from backends.upstream.replicas import Balance, Replica
from config.upstreams import UpstreamConfig

MAX_LIST = 16 << 20  # bytes of a list of models
PROBE_TIMEOUT = 10.0  # seconds for a list of models, or a probe
# Anthropic's has 20 on a page by default.
_PATHS = {"openai": "/models", "anthropic": "/models?limit=1000"}
# Answers of a server that is up and has no list. `transformers serve` fails where it has no cache
# of models to scan, and serves the one it was started with.
_LISTLESS = frozenset((404, 405, 500, 501))

log = structlog.get_logger(__name__)


class Lists:
    """`offers`: the last lists, by the servers' names; it is replaced, not changed. None: no server
    has answered yet.
    """

    def __init__(
        self, config: UpstreamConfig, client: httpx.AsyncClient, balance: Balance, cleaner: Cleaner
    ) -> None:
        self.offers: Mapping[str, Offer] | None = None
        self._config = config
        self._client = client
        self._balance = balance
        self._cleaner = cleaner
        self.listed: dict[str, ServerModels] = {}  # by base URL, each one's last list
        self._refreshed: dict[str, float] = {}
        self._refreshing: dict[str, anyio.Event] = {}

    def remember(self, before: "Lists") -> None:
        """The lists of servers of an earlier configuration, until they are asked again."""
        self.listed = {url: before.listed[url] for url in self._config.urls if url in before.listed}
        self._put_together()

    async def refresh(self, replica: Replica, again: float = 0.0) -> None:
        """Ask a server what it has, unless that was done less than `again` seconds ago; callers
        meanwhile wait with the first. A server that doesn't answer is silent from now on, and has
        what it had.
        """
        url = replica.url
        if (pending := self._refreshing.get(url)) is not None:
            await pending.wait()
        elif time.monotonic() - self._refreshed.get(url, -again) >= again:
            self._refreshing[url] = anyio.Event()
            try:
                await self._request(replica)
            finally:
                self._refreshed[url] = time.monotonic()
                self._refreshing.pop(url).set()

    async def _request(self, replica: Replica) -> None:
        try:
            body = await self.probe(replica)
            if body is not None:
                self._note(replica, read_list(body))
        except UpstreamError as error:
            if not replica.silent:
                reason = self._cleaner.clean(str(error))
                log.warning("no list of models", upstream=self._config.name, reason=reason)
            replica.silent = True
        self._put_together()

    def _note(self, replica: Replica, listed: ServerModels) -> None:
        """Roundhouses report why models failed, where addresses may stand."""
        clean = self._cleaner.clean
        replica.listed(
            listed.standings
            and {
                name: replace(one, why_failed=one.why_failed and clean(one.why_failed))
                for name, one in listed.standings.items()
            }
        )
        self.listed[replica.url] = listed

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
        replica.silent = False
        self._balance.probed(replica)
        return body

    async def _asked(self, replica: Replica) -> bytes:
        request = self._client.build_request("GET", replica.url + _PATHS[self._config.protocol])
        with httpx_errors(self._config):
            with anyio.move_on_after(PROBE_TIMEOUT):
                response = await self._client.send(request, stream=True)
                try:
                    plain(response)
                    body = await read_body(response, MAX_LIST)
                finally:
                    await response.aclose()
                if response.status_code != httpx.codes.OK:
                    raise refusal(response.status_code, response.headers, body)
                return body
        raise UpstreamError(f"The upstream didn't answer within {PROBE_TIMEOUT:g} s.", status=504)


def _together(lists: Sequence[ServerModels]) -> dict[str, Offer]:
    """All that Roundhouses have, else what the first has; of equal names the first counts."""
    if all(one.standings is None for one in lists):
        lists = lists[:1]
    found: dict[str, Offer] = {}
    for one in lists:
        for offer in one.offers:
            found.setdefault(offer.id, offer)
    return found
