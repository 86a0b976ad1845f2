"""llama-server's routes: text completion, infill and vectors in its own form, tokens without an
answer, chat streams that are taken up again (begun with the header `X-Conversation-Id`, read from
any place by the key that began them), and the slots: what each does, and its prompt cache saved,
restored and erased.

Slots' files lie in the configured folder alone. Orders are for administrators: they write files,
and drop what others have cached. Management of models: `llamaserver_models`.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, get_args

import anyio
import msgspec
from litestar import delete, get, post
from litestar.types import ASGIApp
from msgspec import UNSET, Meta
from msgspec.structs import replace

from backends.contract.errors import BackendError
from backends.contract.protocol import ModelInfo, Slots, SlotState
from backends.machine.paths import replace_file
from config.values import alike
from gateway.answers.tokenizers import TextToEncode, TokensToDecode
from gateway.dialects import openai
from gateway.dialects.dialect import body
from gateway.dialects.llamaserver import completion as wires
from gateway.dialects.llamaserver import request as wire
from gateway.dialects.llamaserver.completion import Completion, CompletionReply
from gateway.dialects.llamaserver.request import (
    CompletionExchange,
    embedding_body,
    read_completion,
    read_embedding,
    read_infill,
)
from gateway.dialects.models import InputTokens
from gateway.dialects.openai.request import AnsweringWire, TextWire
from gateway.dialects.parameters import SamplingWire
from gateway.http.auth import AnyRequest
from gateway.http.detached import DetachedResponse
from gateway.http.exchange import Exchange, ignoring
from gateway.http.openapi import CHAT, DEFAULT, SHAPES, USER, Described, body_type
from gateway.http.request_log import audit
from gateway.http.routes import hub, llamaserver_models, llamaswap
from gateway.http.routing import Routes
from gateway.http.services import Services, call_of, card
from gateway.http.sse import Plain, attended
from gateway.registry import ModelStatus
from gateway.terms.errors import (
    InvalidRequest,
    ModelUnavailable,
    NotFound,
    NotSupported,
    translated,
)
from gateway.terms.paths import within
from gateway.terms.request import ChatRequest, Unapplied

TEXT = "text/event-stream"
TWO = {"Two conversations": {"conversation_ids": ["a", "b"]}}

api = Routes(wire.read)
api.update(llamaserver_models.api)
api.update(llamaswap.api)


@api(post, "/completion", access="user")
async def completion(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the continuation of a text, in llama-server's format."""
    return await _answered(request, services, read_completion, "completion")


@api(post, "/infill", access="user")
async def infill(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the text between a prefix and a suffix."""
    return await _answered(request, services, read_infill, "infill")


async def _answered(
    request: AnyRequest, services: Services, read: Callable[[bytes], CompletionExchange], api: str
) -> ASGIApp:
    exchange = await services.read(read, await request.body())
    return Exchange(
        services.asking(request, api, exchange.request),
        services.pipeline.text,
        lambda answer: CompletionReply(
            exchange, model=answer.model, report=answer.report, parameters=answer.parameters
        ),
        openai.error_event,
    )


@api(post, "/embedding", access="user")
async def embedding(request: AnyRequest, services: Services) -> ASGIApp:
    """Compute embeddings of texts or token ids, each in a list of vectors."""
    return await embedded(request, services)


async def embedded(request: AnyRequest, services: Services) -> ASGIApp:
    """An answer in llama-server's form, whatever the path."""
    embed = services.encoders.embed
    return await services.encoding(request, "embedding", read_embedding, embed, embedding_body)


@api(post, "/tokenize", access="user")
async def tokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """Tokenize a text, in the formats of llama-server and vLLM, or a conversation, in vLLM's."""
    data = await request.body()
    left: Sequence[Unapplied]
    order, left = await services.read(lambda data: wire.read_text(data, wire.Tokenize), data)
    name = await services.tokenizers.named(order.model, request.auth)
    pieces: Sequence[bytes] = ()
    tokens: Sequence[int]
    tokenizers, spelled = services.tokenizers, order.with_pieces or order.return_token_strs
    if order.is_chat:
        asked = await _conversation(services, data)
        unapplied = asked.answering.unapplied
        left = [field for field in unapplied if field.name not in wire.OF_CONVERSATIONS]
        tokens = await tokenizers.encode_chat(call_of(request, asked))
        if spelled:
            pieces = await tokenizers.pieces(name, tokens, request.auth)
    else:
        text = TextToEncode(
            model=name,
            text=order.text,
            special=order.parse_special,
            add_bos=order.add_bos,
            param=order.field,
        )
        call = call_of(request, text)
        if spelled:
            tokens, pieces = await tokenizers.spell(call)
        else:
            tokens = await tokenizers.encode(call)
    found = wire.LlamaTokens(
        tokens=[*map(wire.piece_wire, tokens, pieces)] if order.with_pieces else tokens,
        count=len(tokens),
        max_model_len=card(services.registry.status(name), None, None).context_length or 0,
        token_strs=[one.decode(errors="replace") for one in pieces]
        if order.return_token_strs
        else UNSET,
    )
    return Plain(body(found), headers=ignoring(left))


async def _conversation(services: Services, data: bytes) -> ChatRequest:
    """The conversation. A prompt that isn't to be answered may end before the model's turn
    (`add_generation_prompt`), which an answer can't.
    """
    request = (await services.read(openai.read_chat, data)).request
    answering = request.answering
    left = tuple(field for field in answering.unapplied if field.name != openai.UNOPENED)
    if len(left) == len(answering.unapplied):
        return request
    return replace(request, opens_turn=False, answering=replace(answering, unapplied=left))


@api(post, "/detokenize", access="user")
async def detokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """Convert tokens to text."""
    order, left = await services.read(
        lambda data: wire.read_text(data, wire.Detokenize), await request.body()
    )
    tokens = TokensToDecode(order.model, order.tokens)
    text = await services.tokenizers.decode(call_of(request, tokens))
    return Plain(body(wire.LlamaText(text, text)), headers=ignoring(left))


@api(get, "/tokenizer_info", access="user")
async def tokenizer_info(
    request: AnyRequest, services: Services, model: str = ""
) -> wire.TokenizerInfo:
    """Get a model's special tokens and template, in vLLM's format: of the named model, otherwise
    the one in use, otherwise the default. No model is loaded: the tokens are available for models
    in memory.
    """
    status = await services.meant(model, request.auth)
    entry = status.entry
    assert entry is not None, "a name that resolves has its files"
    known = await services.capabilities.of(status)
    length = card(status, known, None).context_length or entry.files.context_length
    info = status.info or alike(ModelInfo, entry.files)(
        layers={},  # by device: where they lie isn't known
        context_length=length,
        max_concurrent=entry.options.max_concurrent,
        chat_template=known.template if known else None,
    )
    return wire.tokenizer_info(info)


@api(post, "/apply-template", access="user")
async def apply_template(request: AnyRequest, services: Services) -> ASGIApp:
    """Render a conversation with its model's template."""
    asked = await _conversation(services, await request.body())
    async with attended(request):
        text = await services.tokenizers.render_chat(call_of(request, asked))
    return Plain(body(wire.Rendered(text)), headers=ignoring(asked.answering.unapplied))


@api(post, ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"], access="user")
async def input_tokens(request: AnyRequest, services: Services) -> ASGIApp:
    """Count the tokens of a conversation, without images."""
    asked = await _conversation(services, await request.body())
    async with attended(request):
        count = await services.count_tokens(call_of(request, asked))
    return Plain(body(InputTokens(count)), headers=ignoring(asked.answering.unapplied))


MOST_NAMED = 1_000  # conversations in one question
LONGEST = 256  # characters of a conversation's name


class Lookup(msgspec.Struct, frozen=True):
    """The conversations to look up. Unknown conversations can't be listed."""

    conversation_ids: Annotated[list[str], Meta(max_length=MOST_NAMED)]


class StreamWire(msgspec.Struct, frozen=True, kw_only=True):
    """A readable stream. Times are Unix time; 0: not yet."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


def checked_conversation(name: str, param: str) -> str:
    """A conversation's name as a client wrote it. Raises InvalidRequest."""
    if not name:
        raise InvalidRequest.at(param, "This parameter is required.")
    if len(name) > LONGEST or not name.isprintable():
        raise InvalidRequest.at(param, f"Expected at most {LONGEST} characters.")
    return name


def _number(text: str, param: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequest.at(param, "Expected a number from 0 on.")
    return int(text)


@api(get, "/v1/stream", access="user", text=TEXT)
async def resume(request: AnyRequest, services: Services, conv_id: str = "") -> ASGIApp:
    """Read a conversation's stream from byte `from` or event number `from_event` to its end."""
    name = checked_conversation(conv_id, "conv_id")
    stream = services.streams.find(request.auth.owner, name)
    if stream is None:
        raise NotFound("Stream of that conversation not found, or expired.", param="conv_id")
    if stream.start is None:
        raise ModelUnavailable("The stream has not begun.", retry_after=1)
    if (event := request.query_params.get("from_event")) is not None:
        return DetachedResponse(stream, stream.place_of(_number(event, "from_event")))
    place = _number(request.query_params.get("from") or "0", "from")
    stream.check(place)
    return DetachedResponse(stream, place)


@api(delete, "/v1/stream", status_code=204, access="user")
async def stop(request: AnyRequest, services: Services, conv_id: str = "") -> None:
    """Stop and delete a conversation's stream. A missing stream is not an error."""
    services.streams.stop(request.auth.owner, checked_conversation(conv_id, "conv_id"))


@api(post, "/v1/streams/lookup", status_code=200, access="user", examples=TWO)
async def lookup(request: AnyRequest, services: Services, order: Lookup) -> list[StreamWire]:
    """Find which of the listed conversations have a readable stream."""
    wanted = frozenset(order.conversation_ids)
    return [
        StreamWire(
            conversation_id=stream.name,
            is_done=stream.ended.is_set(),
            total_bytes=stream.size,
            started_at=int(stream.began_at),
            completed_at=int(stream.ended_at),
        )
        for stream in services.streams.of(request.auth.owner)
        if wanted & {stream.name, stream.name.partition("::")[0]}  # `name::variant`
    ]


_PROMPT = "A text, a list of texts and token ids, an object with prompt_string, or a list of those."


class _PromptWire(msgspec.Struct):
    """The prompt of a completion, which has more forms than OpenAI's."""

    prompt: Annotated[Any, Meta(description=_PROMPT)]


COMPLETION = body_type(
    "CompletionRequest",
    "One or more prompts to continue, in llama-server's format.",
    (wire.CompletionWire, TextWire, _PromptWire, SamplingWire),
    further=SHAPES,
)
INFILL = body_type(
    "InfillRequest",
    "The texts before and after a gap to fill.",
    (wire.InfillWire, AnsweringWire, SamplingWire),
    further=SHAPES,
)


@api(get, "/slots", access="user")
async def slots(
    request: AnyRequest, services: Services, model: str = "", fail_on_no_slot: str = ""
) -> list[wires.SlotWire]:
    """List the slots of a model and their states: of the named model, otherwise the one in use,
    otherwise the default.
    """
    if not services.config.llamaserver.slots:
        raise NotSupported("The slots are not listed here (llamaserver.slots).")
    status = await services.meant(model, request.auth)
    states = await _states(status)
    if fail_on_no_slot == "1" and all(one.task is not None for one in states):
        raise ModelUnavailable("All slots are busy.", retry_after=1)
    length = card(status, None, None).context_length or 0
    shows = request.auth.role == "admin"
    return [wires.slot_wire(one, context_length=length, shows_params=shows) for one in states]


@api(post, "/slots/{slot:str}", status_code=200, access="admin", takes=wires.SlotOrder)
async def order(
    request: AnyRequest, services: Services, slot: str, action: str = ""
) -> wires.SlotSaved | wires.SlotRestored | wires.SlotErased:
    """Save, restore or erase a slot's prompt cache, by `action`."""
    if action not in get_args(wires.Action):
        message = "Expected save, restore or erase, behind the question mark."
        raise InvalidRequest.at("action", message)
    if not (slot.isascii() and slot.isdigit() and len(slot) < 10):
        raise NotFound(f"Slot {slot!r:.40} not found.", param="id_slot")
    asked = wire.read(await request.body(), wires.SlotOrder)
    path = None if action == "erase" else _file(services, asked.filename)
    audit(request, f"{action} slot", model=asked.model, slot=int(slot))
    async with attended(request), services.tokenizers.leased(asked.model, request.auth) as lease:
        with translated():
            return await _carried_out(lease.local.slots, int(slot), action, path)


async def _states(status: ModelStatus) -> list[SlotState]:
    """All idle where the model is not in memory. Nothing is loaded to know that."""
    entry = status.entry
    assert entry is not None, "a name that resolves has its files"
    if entry.files.remote is not None:
        raise NotSupported(f"{status.id} runs on another server, which has the slots.")
    if entry.files.task != "generate":
        raise NotSupported(f"{status.id} writes no texts and has no slots.")
    if status.slots is not None:
        try:
            return list(await status.slots.states())
        except BackendError:
            pass  # it has just been closed
    return [SlotState(id=number) for number in range(entry.options.max_concurrent)]


def _file(services: Services, name: str) -> Path:
    """Where a slot is saved. Raises NotSupported, InvalidRequest."""
    folder = services.config.llamaserver.slot_save_path
    if folder is None:
        raise NotSupported("Slots can't be saved: llamaserver.slot_save_path is not set.")
    if "/" in name:
        raise InvalidRequest.at("filename", "Expected a name without a folder.")
    if name.endswith(DIGEST):
        raise InvalidRequest.at("filename", f"{DIGEST} ends a digest's name.")
    return within(Path(folder).expanduser(), name, "filename")


async def _carried_out(
    slots: Slots, slot: int, action: str, path: Path | None
) -> wires.SlotSaved | wires.SlotRestored | wires.SlotErased:
    started = time.perf_counter()
    if path is None:
        return wires.SlotErased(id_slot=slot, n_erased=await slots.erase(slot))
    if action == "save":
        saved = await slots.save(slot)
        await anyio.to_thread.run_sync(_save, path, saved.data.data, limiter=_of_files)
        return wires.SlotSaved(
            id_slot=slot,
            filename=path.name,
            n_saved=saved.tokens,
            n_written=len(saved.data),
            timings={"save_ms": _since(started)},
        )
    data, verified = await anyio.to_thread.run_sync(_saved, path, limiter=_of_files)
    return wires.SlotRestored(
        id_slot=slot,
        filename=path.name,
        n_restored=await slots.restore(slot, data),
        n_read=len(data),
        verified=verified,
        timings={"restore_ms": _since(started)},
    )


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


# llama.cpp takes nearly any bytes for cells: of files with one changed byte most were restored, and
# answers went on from them. So a digest is kept beside each, in the form of `sha256sum -c`.

DIGEST = ".sha256"
# One at a time, or a file of one request would lie beside another one's digest. No thread waits.
_of_files = anyio.CapacityLimiter(1)


def _save(path: Path, data: memoryview) -> None:
    """Both files, whole or not at all, and for their owner alone: they hold what people wrote.

    The digest comes first, so that a file that is there without its own is never ours.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(_beside(path), f"{sha256(data).hexdigest()}  {path.name}\n".encode())
        replace_file(path, data)
    except OSError as error:
        message = f"{path.name} can't be written: {error.strerror}."
        raise InvalidRequest.at("filename", message) from error


def _saved(path: Path) -> tuple[bytes, bool]:
    """What was saved, and whether a digest says that it is that; llama-server's files have none.

    Raises InvalidRequest, also where the digest says that it isn't.
    """
    try:
        if not path.is_file():
            raise FileNotFoundError(2, "no such file")
        data, digest = path.read_bytes(), _beside(path)
        if not digest.is_file():
            return data, False
        expected = digest.read_bytes().split(maxsplit=1)
    except OSError as error:
        message = f"{path.name} can't be read: {error.strerror}."
        raise InvalidRequest.at("filename", message) from error
    if expected[:1] != [sha256(data).hexdigest().encode()]:
        raise InvalidRequest.at(
            "filename",
            f"{path.name} is not what was saved: its digest is another than that of "
            f"{digest.name}. Save the slot anew.",
        )
    return data, True


def _beside(path: Path) -> Path:
    """Where its digest is."""
    return path.with_name(path.name + DIGEST)


CONVERSATION = {"A conversation": {"model": DEFAULT, "messages": USER}}

api[completion] = Described(
    takes=COMPLETION,
    gives=(Completion, list[Completion]),
    events=(Completion,),
    examples={"A text": {"model": DEFAULT, "prompt": "Once upon a time", "n_predict": 8}},
)
api[infill] = replace(api[completion], takes=INFILL, examples={})
api[embedding] = Described(
    takes=wire.EmbeddingBody,
    gives=(list[wire.EmbeddedWire],),
    examples={"A text": {"content": "A man is eating."}},
)
api[tokenize] = Described(
    takes=wire.Tokenize,
    gives=(wire.LlamaTokens,),
    examples={
        "As llama-server has it": {"content": "Hello"},
        "As vLLM has it": {"model": DEFAULT, "prompt": "Hello"},
        "A conversation": {"model": DEFAULT, "messages": [{"role": "user", "content": "Hello"}]},
    },
)
api[detokenize] = Described(
    takes=wire.Detokenize, gives=(wire.LlamaText,), examples={"Tokens": {"tokens": [5, 6]}}
)
api[apply_template] = Described(takes=CHAT, gives=(wire.Rendered,), examples=CONVERSATION)
api[input_tokens] = Described(takes=CHAT, gives=(InputTokens,), examples=CONVERSATION)
api.update(hub.llamaserver_api)
