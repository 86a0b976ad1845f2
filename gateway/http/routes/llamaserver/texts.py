"""Texts, tokens and prompts: what a model would read, without an answer."""

from collections.abc import Sequence
from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.dialects import openai
from gateway.dialects.frames import body
from gateway.dialects.llamaserver import wire
from gateway.http.cards import card
from gateway.http.exchange import ignoring
from gateway.http.plain import Plain
from gateway.http.services import Services
from gateway.http.sse import WholeErrand

AnyRequest = Request[Any, Any, Any]


@post("/tokenize")
async def tokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """The tokens of a text, as llama-server and as vLLM tell them."""
    access = services.doorman.admit(request.headers)
    data = await request.body()
    order, left = wire.read(data, wire.Tokenize), wire.unread(data, wire.Tokenize)
    text, name = order.text, await services.wording.named(order.model, access)
    tokens = await services.wording.encode(
        name,
        text,
        access,
        special=order.parse_special,
        add_bos=order.add_bos,
        param=order.field,
    )
    shown: Sequence[int | wire.PieceWire] = tokens
    if order.with_pieces:
        pieces = await services.wording.pieces(name, tokens, access)
        shown = [wire.piece_wire(*one) for one in zip(tokens, pieces, strict=True)]
    length = card(services.registry.status(name), None, None).context_length or 0
    told = wire.LlamaTokens(tokens=shown, count=len(tokens), max_model_len=length)
    return Plain(body(told), headers=ignoring(left))


@post("/detokenize")
async def detokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """The text of tokens."""
    access = services.doorman.admit(request.headers)
    data = await request.body()
    order, left = wire.read(data, wire.Detokenize), wire.unread(data, wire.Detokenize)
    text = await services.wording.decode(order.model, order.tokens, access)
    return Plain(body(wire.LlamaText(text, text)), headers=ignoring(left))


@post("/apply-template")
async def apply_template(request: AnyRequest, services: Services) -> ASGIApp:
    """The text that a conversation becomes for its model."""
    access = services.doorman.admit(request.headers)
    asked = (await services.read(openai.read_chat, await request.body())).request

    async def whole() -> bytes:
        text = await services.wording.render_chat(asked.model, asked, access)
        return body(wire.Rendered(text))

    return WholeErrand(whole)


@post(["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
async def input_tokens(request: AnyRequest, services: Services) -> ASGIApp:
    """How many tokens a conversation has, its pictures left out."""
    access = services.doorman.admit(request.headers)
    asked = (await services.read(openai.read_chat, await request.body())).request

    async def whole() -> bytes:
        tokens = await services.wording.encode_chat(asked.model, asked, access)
        return body(wire.InputTokens(len(tokens)))

    return WholeErrand(whole)


ROUTES = (tokenize, detokenize, apply_template, input_tokens)
