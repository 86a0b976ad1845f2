"""Text to tokens and back, without an answer: by a leased model's own tokenizer and template, or by
the server that runs it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from backends.contract.protocol import ModelContainer, Tokenizing
from backends.contract.remote import Caller, RemoteChat, RemoteEncoding
from backends.places.upstream.upstream import UpstreamModel
from config.values import alike
from gateway.answers.call import Call
from gateway.answers.interpreter import as_configured
from gateway.answers.remote import template_parameters, thinking_of
from gateway.answers.tokens import Prompt, Tokens, pieces_of, text_of
from gateway.keys.access import Access
from gateway.registry import Lease, Registry
from gateway.terms.errors import InvalidRequest, translated
from gateway.terms.request import ChatRequest
from gateway.terms.tasks import Wanted

T = TypeVar("T")


class TextToEncode(msgspec.Struct, frozen=True, kw_only=True):
    """`special`: texts of control tokens become them. `add_bos`: where it is usual. `param`: the
    field the text came from.
    """

    model: str | None
    text: str
    special: bool
    add_bos: bool
    param: str = "text"


class TokensToDecode(msgspec.Struct, frozen=True):
    """Without `special`, control tokens leave no text, but where another server reads them."""

    model: str | None
    tokens: Sequence[int]
    special: bool = True


class Tokenizers(msgspec.Struct, frozen=True):
    """Reads and writes tokens with the model that is named, or with the one in use."""

    registry: Registry
    tokens: Tokens

    async def encode(self, call: Call[TextToEncode]) -> tuple[int, ...]:
        """The tokens of a text."""
        async with self.leased(call.request.model, call.access) as lease:
            if isinstance(remote := lease.container, UpstreamModel):
                with translated():
                    return await remote.encode(_encoding(call))
            return await self._encoded(lease, call.request)

    async def spell(self, call: Call[TextToEncode]) -> tuple[Sequence[int], Sequence[bytes]]:
        """The tokens of a text, and the bytes of each."""
        async with self.leased(call.request.model, call.access) as lease:
            if isinstance(remote := lease.container, UpstreamModel):
                with translated():
                    return await remote.spell(_encoding(call))
            found = await self._encoded(lease, call.request)
            return found, await self._pieces(lease.local, found)

    async def _encoded(self, lease: Lease, asked: TextToEncode) -> tuple[int, ...]:
        return await self.tokens.of(
            lease.tokenizer,
            asked.text,
            special=asked.special,
            add_bos=None if asked.add_bos else False,
            param=asked.param,
        )

    async def pieces(
        self, model: str | None, tokens: Sequence[int], access: Access
    ) -> Sequence[bytes]:
        """The bytes of each token. Raises InvalidRequest."""
        async with self.leased(model, access) as lease:
            return await self._pieces(lease.local, tokens)

    async def _pieces(self, container: ModelContainer, tokens: Sequence[int]) -> Sequence[bytes]:
        return await self.tokens.run(
            lambda wanted: tuple(pieces_of(container, tokens, wanted)), len(tokens)
        )

    async def encode_chat(self, call: Call[ChatRequest]) -> tuple[int, ...]:
        """The prompt that an answer would be generated from. Raises InvalidRequest."""
        return await self._read(
            call, lambda one, chat: one.encode_chat(chat), lambda one: one.tokens
        )

    async def count_chat(self, call: Call[ChatRequest]) -> int:
        """How many tokens it has. Raises InvalidRequest."""
        return await self._read(
            call, lambda one, chat: one.count(chat), lambda one: len(one.tokens)
        )

    async def render_chat(self, call: Call[ChatRequest]) -> str:
        """The same prompt as text, special tokens spelled out. Raises InvalidRequest."""
        return await self._read(
            call, lambda one, chat: one.render(chat), lambda one: one.rendered.text
        )

    async def _read(
        self,
        call: Call[ChatRequest],
        there: Callable[[UpstreamModel, RemoteChat], Awaitable[T]],
        here: Callable[[Prompt], T],
    ) -> T:
        """Of the prompt, what the server that runs the model says, or what is read of it here."""
        async with self.leased(call.request.model, call.access) as lease:
            request = as_configured(call.request, lease.entry)
            if isinstance(remote := lease.container, UpstreamModel):
                with translated():
                    return await there(remote, _conversation(request, call.caller))
            return here(await self.tokens.chat(request, lease))

    async def decode(self, call: Call[TokensToDecode]) -> str:
        """The text of tokens. Raises InvalidRequest."""
        tokens, special = call.request.tokens, call.request.special
        async with self.leased(call.request.model, call.access) as lease:
            if isinstance(remote := lease.container, UpstreamModel):
                with translated():
                    return await remote.decode(tuple(tokens), call.caller)
            container = lease.tokenizer

            def work(wanted: Wanted) -> str:
                if tokens and max(tokens) >= container.info.vocab_size:
                    size = container.info.vocab_size
                    raise InvalidRequest(f"The model has {size} tokens, from 0 on.", param="tokens")
                kept = tokens if special else _without_control(container, tokens)
                if lease.entry.files.task != "generate":
                    return container.detokenize(kept)
                return text_of(lease.local, kept, wanted)

            return await self.tokens.run(work, len(tokens))

    @asynccontextmanager
    async def leased(self, model: str | None, access: Access) -> AsyncIterator[Lease]:
        """The named model, loaded if it must be; without a name the loaded one that is in use, else
        the default.

        Raises as `Registry.lease`.
        """
        name = await self.named(model, access)
        async with self.registry.lease(name, access=access) as lease:
            yield lease

    async def named(self, model: str | None, access: Access) -> str:
        """The id of the model a request means. Raises ModelNotFound."""
        return (await self.registry.find(self.registry.named(model or "", access), access)).name


def _encoding(call: Call[TextToEncode]) -> RemoteEncoding:
    return alike(RemoteEncoding, call.request)(caller=call.caller)


def _conversation(request: ChatRequest, caller: Caller) -> RemoteChat:
    return RemoteChat(
        messages=request.messages,
        tools=request.callable_tools,
        thinking=thinking_of(request),
        parameters=template_parameters(request),
        caller=caller,
    )


def _without_control(container: Tokenizing, tokens: Sequence[int]) -> tuple[int, ...]:
    control = {container.tokenize(text, special=True) for text in container.info.special.control}
    return tuple(token for token in tokens if (token,) not in control)
