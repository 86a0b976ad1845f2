"""Another server's tokenizer and template, by the calls that its kind has: bodies of requests, and
what is read of their answers. Pure.

vLLM's and llama-server's calls have the same paths, and neither minds the other's fields: a server
of an unknown kind is sent both.
"""

from typing import Any, TypeAlias, TypeVar

import msgspec

from backends.errors import UpstreamError
from backends.remote import RemoteChat, RemoteEncoding
from backends.upstream.faults import broken
from backends.upstream.wire import conversation
from config.upstreams import ServerKind

T = TypeVar("T")
Body: TypeAlias = dict[str, Any]

# What servers of a kind lack. Ollama, OpenAI and their like have none of it.
_NO_TOKENS = frozenset({"ollama", "openai", "tgi"})
_NO_TEMPLATE = _NO_TOKENS | {"koboldcpp", "llama-cpp-python"}
_DETOKENIZES = frozenset({"vllm", "sglang"})  # renders by tokens there and back


class TokenCall(msgspec.Struct, frozen=True):
    """`path`: beside the API's own paths where it is `at_root`."""

    path: str
    body: Body
    at_root: bool = True


class _Id(msgspec.Struct, frozen=True):
    id: int


class _Encoded(msgspec.Struct, frozen=True):
    """`ids`: KoboldCpp's."""

    tokens: list[int | _Id] | None = None
    ids: list[int] | None = None


class _Text(msgspec.Struct, frozen=True):
    """By the names of vLLM, llama-server, TabbyAPI and KoboldCpp."""

    prompt: str | None = None
    content: str | None = None
    text: str | None = None
    result: str | None = None


class _Count(msgspec.Struct, frozen=True):
    input_tokens: int


def encode_call(request: RemoteEncoding, model: str, server: ServerKind | None) -> TokenCall:
    """For the tokens of a text. Raises UpstreamError where the server has no such call."""
    _refuse(server, _NO_TOKENS)
    text, special, bos = request.text, request.special, request.add_bos
    match server:
        case "tabbyapi":
            named = {"text": text, "add_bos_token": bos, "encode_special_tokens": special}
            return TokenCall("/token/encode", named, at_root=False)
        case "koboldcpp":
            return TokenCall("/api/extra/tokencount", {"prompt": text, "special": special})
        case "llama-cpp-python":
            return TokenCall("/extras/tokenize", {"model": model, "input": text})
    llamas = {"content": text, "add_special": bos, "parse_special": special}
    return TokenCall(
        "/tokenize", {"model": model, "prompt": text, "add_special_tokens": bos, **llamas}
    )


def encode_chat_call(request: RemoteChat, model: str, server: ServerKind | None) -> TokenCall:
    """For the tokens of a conversation. As `encode_call`."""
    _refuse(server, _NO_TEMPLATE)
    body = {"model": model, **conversation(request), **request.parameters}
    if server == "tabbyapi":
        return TokenCall("/token/encode", {**body, "text": body["messages"]}, at_root=False)
    return TokenCall("/tokenize", body)


def renders(server: ServerKind | None) -> bool:
    """The server returns a conversation's prompt as text. Raises UpstreamError where it has no
    template; False: its tokens are to be read back.
    """
    _refuse(server, _NO_TEMPLATE)
    return server not in _DETOKENIZES and server != "tabbyapi"


def render_call(request: RemoteChat, model: str) -> TokenCall:
    """For a conversation's prompt as text."""
    return TokenCall(
        "/apply-template", {"model": model, **conversation(request), **request.parameters}
    )


def decode_call(tokens: tuple[int, ...], model: str, server: ServerKind | None) -> TokenCall:
    """For the text of tokens. As `encode_call`."""
    _refuse(server, _NO_TOKENS)
    match server:
        case "tabbyapi":
            return TokenCall("/token/decode", {"tokens": tokens}, at_root=False)
        case "koboldcpp":
            return TokenCall("/api/extra/detokenize", {"ids": tokens})
        case "llama-cpp-python":
            return TokenCall("/extras/detokenize", {"model": model, "tokens": tokens})
    return TokenCall("/detokenize", {"model": model, "tokens": tokens})


def read_tokens(body: bytes) -> tuple[int, ...]:
    """Raises Unhealthy."""
    found = _read(body, _Encoded)
    tokens = found.ids if found.tokens is None else found.tokens
    if tokens is None:
        raise broken("no tokens")
    return tuple(one.id if isinstance(one, _Id) else one for one in tokens)


def read_text(body: bytes) -> str:
    """Raises Unhealthy."""
    found = _read(body, _Text)
    texts = (found.prompt, found.content, found.text, found.result)
    text = next((one for one in texts if one is not None), None)
    if text is None:
        raise broken("no text")
    return text


def read_count(body: bytes) -> int:
    """Raises Unhealthy."""
    return max(0, _read(body, _Count).input_tokens)


def lacking(what: str) -> UpstreamError:
    """The error where a server has no such call."""
    text = f"The model runs on another server, which has no {what}."
    kind = "invalid_request_error"
    return UpstreamError(text, status=400, type=kind, code=None, param="model")


def _refuse(server: ServerKind | None, unable: frozenset[str]) -> None:
    if server in unable:
        raise lacking("tokenizing route" if server in _NO_TOKENS else "route for chat tokens")


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise broken("a body without tokens or text") from None
