"""Choices that another server left out: one that ignores `n` is asked for the rest one by one."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from msgspec.structs import replace

from backends.remote import RemoteDelta, RemoteEvent, RemoteEvents, RemoteRequest, RemoteUsage

R = TypeVar("R", bound=RemoteRequest)
Ask = Callable[[int], AbstractAsyncContextManager[RemoteEvents]]


@asynccontextmanager
async def with_missing(events: RemoteEvents, count: int, ask: Ask) -> AsyncIterator[RemoteEvents]:
    """`events`, then those of each of `count` choices that had none. `ask`: for one choice, by its
    index; its answer is choice 0 of another request. Leaving closes that request.
    """
    async with AsyncExitStack() as held:
        yield _all(events, count, ask, held)


async def _all(
    events: RemoteEvents, count: int, ask: Ask, held: AsyncExitStack
) -> AsyncIterator[Sequence[RemoteEvent]]:
    seen: set[int] = set()
    usage = RemoteUsage()
    async for batch in events:
        seen.update(event.choice for event in batch if isinstance(event, RemoteDelta))
        usage = next((event for event in batch if isinstance(event, RemoteUsage)), usage)
        yield batch
    for index in sorted(set(range(count)) - seen):
        request = await held.enter_async_context(AsyncExitStack())
        async for batch in await request.enter_async_context(ask(index)):
            usage = _sum(usage, batch)
            yield [_as_choice(event, index, usage) for event in batch]
        await request.aclose()


def _sum(usage: RemoteUsage, batch: Sequence[RemoteEvent]) -> RemoteUsage:
    """`usage` with the counts of `batch`: those of the prompt once."""
    for event in batch:
        if isinstance(event, RemoteUsage):
            usage = replace(
                usage,
                prompt_tokens=usage.prompt_tokens or event.prompt_tokens,
                completion_tokens=usage.completion_tokens + event.completion_tokens,
                reasoning_tokens=usage.reasoning_tokens + event.reasoning_tokens,
            )
    return usage


def _as_choice(event: RemoteEvent, index: int, usage: RemoteUsage) -> RemoteEvent:
    return replace(event, choice=index) if isinstance(event, RemoteDelta) else usage


def single(request: R, index: int) -> R:
    """`request` for one choice alone; a seed counts on, or all choices would be the same."""
    seed = request.parameters.get("seed")
    own = {"seed": seed + index} if isinstance(seed, int) else {}
    return replace(request, n=1, parameters={**request.parameters, **own})
