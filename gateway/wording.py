"""Text to tokens and back, without an answer: a leased model's own tokenizer and template."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from anyio import to_thread

from backends.protocol import ModelContainer
from gateway.access import Access
from gateway.errors import InvalidRequest, ModelUnavailable
from gateway.interpreter import Interpreters
from gateway.registry import Lease, ModelStatus, Registry
from gateway.request import ChatRequest

NONE_LOADED = "No model is loaded, and the request names none."


def foremost(statuses: Sequence[ModelStatus]) -> ModelStatus | None:
    """The loaded model that a request without a name means: one in use, else the least idle."""
    loaded = [status for status in statuses if status.info is not None]
    return min(loaded, key=lambda status: status.idle_seconds or 0.0, default=None)


class Wording:
    """Reads and writes tokens with the model that is named, or with the one in use."""

    def __init__(self, registry: Registry, interpreters: Interpreters) -> None:
        self._registry = registry
        self._interpreters = interpreters

    async def encode(
        self, model: str | None, text: str, access: Access, *, special: bool, add_bos: bool
    ) -> tuple[int, ...]:
        """The tokens of `text`. `special`: texts of control tokens become them. `add_bos`: where it
        is usual.
        """
        async with self.leased(model, access) as lease:
            info = lease.container.info
            tokens = await _tokens(lease.container, text, special=special)
            if not (add_bos and info.adds_bos and info.special.bos):
                return tokens
            bos = lease.container.tokenize(info.special.bos, special=True)
            return tokens if tokens[: len(bos)] == bos else bos + tokens

    async def encode_chat(
        self, model: str | None, request: ChatRequest, access: Access
    ) -> tuple[int, ...]:
        """The prompt that an answer to `request` would be generated from. Raises InvalidRequest."""
        async with self.leased(model, access) as lease:
            interpreter = await self._interpreters.of(lease.container, lease.entry)
            text = interpreter.render(request, lease.container).text
            return await _tokens(lease.container, text, special=True)

    async def decode(
        self, model: str | None, tokens: Sequence[int], access: Access, *, special: bool = True
    ) -> str:
        """The text of `tokens`; without `special`, control tokens leave none. Raises
        InvalidRequest.
        """
        async with self.leased(model, access) as lease:
            container = lease.container
            if tokens and max(tokens) >= container.info.vocab_size:
                size = container.info.vocab_size
                raise InvalidRequest(f"The model has {size} tokens, from 0 on.", param="tokens")
            kept = tokens if special else _without_control(container, tokens)
            return container.detokenize(kept)

    @asynccontextmanager
    async def leased(self, model: str | None, access: Access) -> AsyncIterator[Lease]:
        """The named model, loaded if it must be; without a name the loaded one that is in use.

        Raises as `Registry.lease`, and ModelUnavailable where there is no name and nothing loaded.
        """
        name = self.named(model, access)
        async with self._registry.lease(name, access=access) as lease:
            yield lease

    def named(self, model: str | None, access: Access) -> str:
        """The id of the model a request means. Raises ModelNotFound, ModelUnavailable."""
        if model:
            return self._registry.resolve(model, access).name
        allowed = [one for one in self._registry.statuses() if access.allows(one.id)]
        status = foremost(allowed)
        if status is None:
            raise ModelUnavailable(NONE_LOADED, param="model")
        return status.id


async def _tokens(container: ModelContainer, text: str, *, special: bool) -> tuple[int, ...]:
    """Off the event loop, because a text may be a whole book."""
    return await to_thread.run_sync(lambda: container.tokenize(text, special=special))


def _without_control(container: ModelContainer, tokens: Sequence[int]) -> tuple[int, ...]:
    control = {container.tokenize(text, special=True) for text in container.info.special.control}
    return tuple(token for token in tokens if (token,) not in control)
