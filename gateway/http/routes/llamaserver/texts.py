"""Tokenizing, detokenizing and rendering of prompts, without an answer."""

from collections.abc import Sequence
from typing import Any

from litestar import Request, get, post
from litestar.types import ASGIApp
from msgspec import UNSET
from msgspec.structs import replace

from backends.protocol import ModelInfo
from gateway.access import Access
from gateway.dialects import openai
from gateway.dialects.frames import body
from gateway.dialects.llamaserver import wire
from gateway.http.cards import card
from gateway.http.exchange import ignoring
from gateway.http.plain import Plain
from gateway.http.services import Services
from gateway.http.sse import WholeErrand
from gateway.request import ChatRequest

AnyRequest = Request[Any, Any, Any]
UNOPENED = "add_generation_prompt"  # ignored where it is false and an answer is wanted


@post("/tokenize")
async def tokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """The tokens of a text, as llama-server and vLLM return them; or of a conversation, as vLLM."""
    access = services.authenticator.admit(request.headers)
    data = await request.body()
    left: Sequence[str]
    order, left = await services.read(lambda data: wire.read_text(data, wire.Tokenize), data)
    name = await services.wording.named(order.model, access)
    if order.is_chat:
        tokens, left = await _of_conversation(services, access, name, data)
    else:
        tokens = await _of_text(services, access, name, order)
    pieces: Sequence[bytes] = ()
    if order.with_pieces or order.return_token_strs:
        pieces = await services.wording.pieces(name, tokens, access)
    found = wire.LlamaTokens(
        tokens=[*map(wire.piece_wire, tokens, pieces)] if order.with_pieces else tokens,
        count=len(tokens),
        max_model_len=card(services.registry.status(name), None, None).context_length or 0,
        token_strs=[one.decode(errors="replace") for one in pieces]
        if order.return_token_strs
        else UNSET,
    )
    return Plain(body(found), headers=ignoring(left))


async def _of_text(
    services: Services, access: Access, name: str, order: wire.Tokenize
) -> Sequence[int]:
    return await services.wording.encode(
        name,
        order.text,
        access,
        special=order.parse_special,
        add_bos=order.add_bos,
        param=order.field,
    )


async def _of_conversation(
    services: Services, access: Access, name: str, data: bytes
) -> tuple[Sequence[int], Sequence[str]]:
    """The tokens, and what of the body says nothing to them."""
    request, ignored = await _conversation(services, data)
    left = [one for one in ignored if one not in wire.OF_CONVERSATIONS]
    return await services.wording.encode_chat(name, request, access), left


async def _conversation(services: Services, data: bytes) -> tuple[ChatRequest, Sequence[str]]:
    """The conversation, and the fields without a meaning. A prompt that isn't to be answered may
    end before the model's turn (`add_generation_prompt`), which an answer can't.
    """
    read = await services.read(openai.read_chat, data)
    if UNOPENED not in read.ignored:
        return read.request, read.ignored
    left = [name for name in read.ignored if name != UNOPENED]
    return replace(read.request, opens_turn=False), left


@post("/detokenize")
async def detokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """The text of tokens."""
    access = services.authenticator.admit(request.headers)
    order, left = await services.read(
        lambda data: wire.read_text(data, wire.Detokenize), await request.body()
    )
    text = await services.wording.decode(order.model, order.tokens, access)
    return Plain(body(wire.LlamaText(text, text)), headers=ignoring(left))


@get("/tokenizer_info")
async def tokenizer_info(request: AnyRequest, services: Services, model: str = "") -> ASGIApp:
    """The special tokens and the template of a model, as vLLM has it: of the named one, the one in
    use, or the default. Nothing is loaded for it: the tokens are told of a model in memory.
    """
    access = services.authenticator.admit(request.headers)
    if model in wire.NO_MODEL:
        status = await services.answering(access)
    else:
        status = services.status((await services.find(model, access)).name, access)
    entry = status.entry
    assert entry is not None, "a name that resolves has its files"
    known = await services.capabilities.of(status)
    length = card(status, known, None).context_length or entry.files.context_length
    info = status.info or ModelInfo(
        backend=entry.files.backend,
        format=entry.files.format,
        architecture=entry.files.architecture,
        context_length=length,
        max_concurrent=entry.options.max_concurrent,
        vocab_size=entry.files.vocab_size,
        size_bytes=entry.files.size_bytes,
        chat_template=known.template if known else None,
    )
    return Plain(body(wire.tokenizer_info(info)))


@post("/apply-template")
async def apply_template(request: AnyRequest, services: Services) -> ASGIApp:
    """The text that a conversation becomes for its model."""
    access = services.authenticator.admit(request.headers)
    asked, left = await _conversation(services, await request.body())

    async def whole() -> bytes:
        text = await services.wording.render_chat(asked.model, asked, access)
        return body(wire.Rendered(text))

    return WholeErrand(whole, ignoring(left))


@post(["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
async def input_tokens(request: AnyRequest, services: Services) -> ASGIApp:
    """How many tokens a conversation has, its pictures left out."""
    access = services.authenticator.admit(request.headers)
    asked, left = await _conversation(services, await request.body())

    async def whole() -> bytes:
        tokens = await services.wording.encode_chat(asked.model, asked, access)
        return body(wire.InputTokens(len(tokens)))

    return WholeErrand(whole, ignoring(left))


ROUTES = (tokenize, detokenize, tokenizer_info, apply_template, input_tokens)
