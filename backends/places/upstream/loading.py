"""Loads and unloads a model of a Roundhouse by that server's own calls.

`POST /load_model` loads as a request would, with a user's key and place in line, and streams its
progress; `POST /unload` is for administrators' keys.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

import anyio
import httpx
import msgspec
from msgspec import Meta

from backends.contract.errors import LoadFailed, UpstreamError
from backends.contract.protocol import Progress, Report
from backends.places.upstream.events import EventReader
from backends.places.upstream.faults import cut, decoded, late
from backends.places.upstream.relay import body_of, httpx_errors, plain, refused
from backends.places.upstream.replicas import Replica
from backends.places.upstream.upstream import Upstream
from config.upstreams import UpstreamConfig

# No right to load, or no such call or model: the requests to come get that error.
_NOT_LOADABLE = frozenset({403, 404, 405})


class _Progress(msgspec.Struct, frozen=True):
    current: Annotated[int, Meta(ge=0, le=2**62)]
    total: Annotated[int, Meta(ge=0, le=2**62)]


class _LoadEvent(msgspec.Struct, frozen=True):
    """One event of a load; `status`: loading, ready, error."""

    status: str
    stage: Annotated[str, Meta(max_length=64)] = "load"
    progress: _Progress | None = None
    message: str = "the load failed"


async def bring(upstream: Upstream, model: str, report: Report) -> None:
    """Return when `model` is loaded where it is nearest to an answer, or, if it can't be there, at
    the next replica. Raises LoadFailed with every one's reason.
    """
    tried: list[Replica] = []
    reasons: list[str] = []
    while (replica := upstream.balance.choose(None, tried, model)) is not None:
        tried.append(replica)
        replica.expect(model)
        try:
            await _loaded(upstream, replica, model, report)
        except UpstreamError as error:
            reasons.append(upstream.cleaner.clean(str(error)))
        else:
            return
    if reasons:
        raise LoadFailed("; ".join(dict.fromkeys(reasons)))
    await upstream.lists.alive()


async def send_away(upstream: Upstream, model: str, *, force: bool) -> bool:
    """Unload `model` wherever it may be; `force` cuts its answers off. Whether it was anywhere, as
    far as that is known. Raises UpstreamError for the first server that refused, all asked.
    """
    errors: list[UpstreamError] = []

    async def unload(replica: Replica) -> None:
        body, within = {"model": model, "force": force}, upstream.config.total_timeout
        try:
            async with _posted(upstream, replica, "/unload", body, within) as response:
                if not (response.is_success or response.status_code == httpx.codes.NOT_FOUND):
                    raise await refused(response)
        except UpstreamError as error:
            errors.append(error)

    standing = upstream.standing(model)
    async with anyio.create_task_group() as tasks:
        for replica in upstream.balance.replicas:
            if replica.state != "resting" and model in (replica.standings or ()):
                tasks.start_soon(unload, replica)
    if errors:
        raise upstream.cleaner.cleaned(errors[0])
    return standing is not None and standing.state not in ("unloaded", "failed")


async def _loaded(upstream: Upstream, replica: Replica, model: str, report: Report) -> None:
    body, within = {"model": model}, upstream.config.first_byte_timeout
    async with _posted(upstream, replica, "/load_model", body, within) as response:
        if response.status_code in _NOT_LOADABLE:
            return
        if response.status_code != httpx.codes.OK:
            raise await refused(response)
        plain(response)
        await _followed(upstream.config, response, report)


async def _followed(config: UpstreamConfig, response: httpx.Response, report: Report) -> None:
    """Return when it says that the model is ready."""
    events = EventReader(max_line=config.max_line, max_total=config.max_total)
    now, stall = asyncio.get_running_loop().time, config.stall_timeout
    try:
        async with asyncio.timeout(stall) as limit:
            async for part in body_of(response):
                limit.reschedule(now() + stall)
                if any(_is_ready(payload, report) for payload in events.feed(part)):
                    return
    except TimeoutError:
        raise late("report load progress", stall) from None
    raise cut()


def _is_ready(payload: bytes, report: Report) -> bool:
    event = decoded(payload, _LoadEvent, "invalid load progress")
    if event.status == "error":
        raise UpstreamError(event.message)
    if (progress := event.progress) is not None:
        report(Progress(event.stage, progress.current, progress.total))
    return event.status == "ready"


@asynccontextmanager
async def _posted(
    upstream: Upstream, replica: Replica, path: str, body: dict[str, Any], within: float
) -> AsyncIterator[httpx.Response]:
    """The response to a call beside `/v1`, begun `within` seconds. Raises UpstreamError."""
    config, client = upstream.config, upstream.client
    url = replica.url.removesuffix("/v1") + path
    with httpx_errors(config):
        async with AsyncExitStack() as held:
            streamed = client.stream("POST", url, json=body, headers=replica.headers)
            try:
                async with asyncio.timeout(within):
                    response = await held.enter_async_context(streamed)
            except TimeoutError:
                raise late("answer", within) from None
            yield response
