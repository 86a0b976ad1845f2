"""Text to tokens and back, without an answer: a leased model's own tokenizer and template."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from backends.protocol import ModelContainer
from gateway.access import Access
from gateway.answers.tokens import Tokens
from gateway.errors import InvalidRequest
from gateway.registry import Lease, ModelStatus, Registry
from gateway.request import ChatRequest


def foremost(statuses: Sequence[ModelStatus]) -> ModelStatus | None:
    """The loaded model that a request without a name means, of `statuses` in the registry's order:
    one in use, else the least idle.
    """
    return next((status for status in statuses if status.info is not None), None)


class Encoding:
    """Reads and writes tokens with the model that is named, or with the one in use."""

    def __init__(self, registry: Registry, tokens: Tokens) -> None:
        self._registry = registry
        self._tokens = tokens

    async def encode(
        self, model: str | None, text: str, access: Access, *, special: bool, add_bos: bool
    ) -> tuple[int, ...]:
        """The tokens of `text`. `special`: texts of control tokens become them. `add_bos`: where it
        is usual.
        """
        async with self.leased(model, access) as lease:
            return await self._tokens.of(
                lease.container,
                text,
                special=special,
                add_bos=None if add_bos else False,
                param="text",
            )

    async def encode_chat(
        self, model: str | None, request: ChatRequest, access: Access
    ) -> tuple[int, ...]:
        """The prompt that an answer to `request` would be generated from. Raises InvalidRequest."""
        async with self.leased(model, access) as lease:
            return (await self._tokens.chat(request, lease)).tokens

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
        """The named model, loaded if it must be; without a name the loaded one that is in use, else
        the default.

        Raises as `Registry.lease`.
        """
        name = await self.named(model, access)
        async with self._registry.lease(name, access=access) as lease:
            yield lease

    async def named(self, model: str | None, access: Access) -> str:
        """The id of the model a request means. Raises ModelNotFound."""
        allowed = [one for one in self._registry.statuses() if access.allows(one.id)]
        if not model and (status := foremost(allowed)) is not None:
            return status.id
        return (await self._registry.find(model or "", access)).name


def _without_control(container: ModelContainer, tokens: Sequence[int]) -> tuple[int, ...]:
    control = {container.tokenize(text, special=True) for text in container.info.special.control}
    return tuple(token for token in tokens if (token,) not in control)
