"""Text to tokens and back, without an answer: by a leased model's own tokenizer and template, or by
the server that runs it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from backends.contract.encoder import EncoderTokenizer
from backends.contract.protocol import ModelContainer
from backends.contract.remote import Caller, RemoteChat, RemoteContainer, RemoteEncoding
from gateway.answers.interpreter import as_configured
from gateway.answers.remote import template_parameters, thinking_of
from gateway.answers.tokens import Tokens, pieces_of, text_of
from gateway.keys.access import Access
from gateway.registry import Lease, Registry
from gateway.terms.errors import InvalidRequest, translated
from gateway.terms.request import ChatRequest
from gateway.terms.tasks import Wanted


class Tokenizers:
    """Reads and writes tokens with the model that is named, or with the one in use."""

    def __init__(self, registry: Registry, tokens: Tokens) -> None:
        self._registry = registry
        self._tokens = tokens

    async def encode(
        self,
        model: str | None,
        text: str,
        access: Access,
        caller: Caller,
        *,
        special: bool,
        add_bos: bool,
        param: str = "text",
    ) -> tuple[int, ...]:
        """The tokens of `text`. `special`: texts of control tokens become them. `add_bos`: where it
        is usual. `param`: the field the text came from.
        """
        async with self.leased(model, access) as lease:
            if isinstance(remote := lease.container, RemoteContainer):
                asked = RemoteEncoding(text=text, special=special, add_bos=add_bos, caller=caller)
                with translated():
                    return await remote.encode(asked)
            return await self._encoded(lease, text, param, special=special, add_bos=add_bos)

    async def spell(
        self,
        model: str | None,
        text: str,
        access: Access,
        caller: Caller,
        *,
        special: bool,
        add_bos: bool,
        param: str = "text",
    ) -> tuple[Sequence[int], Sequence[bytes]]:
        """The tokens of `text`, see `encode`, and the bytes of each."""
        async with self.leased(model, access) as lease:
            if isinstance(remote := lease.container, RemoteContainer):
                asked = RemoteEncoding(text=text, special=special, add_bos=add_bos, caller=caller)
                with translated():
                    return await remote.spell(asked)
            found = await self._encoded(lease, text, param, special=special, add_bos=add_bos)
            return found, await self._pieces(lease.local, found)

    async def _encoded(
        self, lease: Lease, text: str, param: str, *, special: bool, add_bos: bool
    ) -> tuple[int, ...]:
        bos = None if add_bos else False
        tokenizer = lease.tokenizer
        return await self._tokens.of(tokenizer, text, special=special, add_bos=bos, param=param)

    async def pieces(
        self, model: str | None, tokens: Sequence[int], access: Access
    ) -> Sequence[bytes]:
        """The bytes of each token. Raises InvalidRequest."""
        async with self.leased(model, access) as lease:
            return await self._pieces(lease.local, tokens)

    async def _pieces(self, container: ModelContainer, tokens: Sequence[int]) -> Sequence[bytes]:
        return await self._tokens.run(
            lambda wanted: tuple(pieces_of(container, tokens, wanted)), len(tokens)
        )

    async def encode_chat(
        self, model: str | None, request: ChatRequest, access: Access, caller: Caller
    ) -> tuple[int, ...]:
        """The prompt that an answer to `request` would be generated from. Raises InvalidRequest."""
        async with self.leased(model, access) as lease:
            request = as_configured(request, lease.entry)
            if isinstance(remote := lease.container, RemoteContainer):
                with translated():
                    return await remote.encode_chat(_conversation(request, caller))
            return (await self._tokens.chat(request, lease)).tokens

    async def count_chat(
        self, model: str | None, request: ChatRequest, access: Access, caller: Caller
    ) -> int:
        """How many tokens it has. Raises InvalidRequest."""
        async with self.leased(model, access) as lease:
            request = as_configured(request, lease.entry)
            if isinstance(remote := lease.container, RemoteContainer):
                with translated():
                    return await remote.count(_conversation(request, caller))
            return len((await self._tokens.chat(request, lease)).tokens)

    async def render_chat(
        self, model: str | None, request: ChatRequest, access: Access, caller: Caller
    ) -> str:
        """The same prompt as text, special tokens spelled out. Raises InvalidRequest."""
        async with self.leased(model, access) as lease:
            request = as_configured(request, lease.entry)
            if isinstance(remote := lease.container, RemoteContainer):
                with translated():
                    return await remote.render(_conversation(request, caller))
            return (await self._tokens.chat(request, lease)).rendered.text

    async def decode(
        self,
        model: str | None,
        tokens: Sequence[int],
        access: Access,
        caller: Caller,
        *,
        special: bool = True,
    ) -> str:
        """The text of `tokens`; without `special`, control tokens leave none, but where another
        server reads them. Raises InvalidRequest.
        """
        async with self.leased(model, access) as lease:
            if isinstance(remote := lease.container, RemoteContainer):
                with translated():
                    return await remote.decode(tuple(tokens), caller)
            container = lease.tokenizer

            def work(wanted: Wanted) -> str:
                if tokens and max(tokens) >= container.info.vocab_size:
                    size = container.info.vocab_size
                    raise InvalidRequest(f"The model has {size} tokens, from 0 on.", param="tokens")
                kept = tokens if special else _without_control(container, tokens)
                if lease.entry.files.task != "generate":
                    return container.detokenize(kept)
                return text_of(lease.local, kept, wanted)

            return await self._tokens.run(work, len(tokens))

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
        return (await self._registry.find(self._registry.named(model or "", access), access)).name


def _conversation(request: ChatRequest, caller: Caller) -> RemoteChat:
    return RemoteChat(
        messages=request.messages,
        tools=request.callable_tools,
        thinking=thinking_of(request),
        parameters=template_parameters(request),
        caller=caller,
    )


def _without_control(container: EncoderTokenizer, tokens: Sequence[int]) -> tuple[int, ...]:
    control = {container.tokenize(text, special=True) for text in container.info.special.control}
    return tuple(token for token in tokens if (token,) not in control)
