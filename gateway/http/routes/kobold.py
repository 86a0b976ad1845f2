"""KoboldAI's routes, and KoboldCpp's beside them, as SillyTavern and KoboldAI Lite call them.

Their clients know one model: the one in use, else the default.
"""

import time
from functools import partial
from typing import Annotated, Any

from litestar import get, post, put
from litestar.types import ASGIApp
from msgspec import Meta

from gateway.answers.answer import Answer
from gateway.answers.tokenizers import TextToEncode, TokensToDecode
from gateway.dialects import kobold
from gateway.dialects.fields import fields_of, order_object, read_given
from gateway.dialects.kobold import Keyed, Results
from gateway.dialects.parameters import SamplingWire
from gateway.http.auth import AnyRequest
from gateway.http.detached import Abortable, Polled, PolledAnswer
from gateway.http.exchange import Exchange
from gateway.http.openapi import Described, body_type
from gateway.http.routing import Routes
from gateway.http.services import Services, call_of, context_length
from gateway.http.sse import JSON, SSE
from gateway.keys.access import Access
from gateway.terms.events import NO_USAGE, Usage

UNITED = "1.2.5"  # the release of KoboldAI United whose API is spoken, as KoboldCpp reports it
KEYED = {"A key": {"genkey": "KCPP1234"}}
TOKENS = {"Tokens": {"ids": [5, 6]}}

api = Routes(read_given)


@api(post, ["/api/v1/generate", "/api/latest/generate"], access="user")
async def generate(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the continuation of a text."""
    return await _generated(request, services, stream=False)


@api(post, "/api/extra/generate/stream", access="user")
async def generate_stream(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the continuation of a text, as a stream."""
    return await _generated(request, services, stream=True)


async def _generated(request: AnyRequest, services: Services, *, stream: bool) -> ASGIApp:
    read = partial(kobold.read_generate, stream=stream)
    exchange = await services.read(read, await request.body())
    asked = exchange.request
    reply = kobold.KoboldReply(results=asked.answering.n, shows_stop=exchange.shows_stop)
    begun: Answer | None = None

    def answered(answer: Answer) -> kobold.KoboldReply:
        nonlocal begun
        begun = answer
        return reply

    def usage() -> Usage:
        return begun.usage() if begun is not None else NO_USAGE

    def rest() -> bytes:
        return reply.closing(usage()) if stream else reply.whole(usage())

    def state() -> Polled:
        return Polled(reply.texts(), usage(), reply.stop_reason)

    asking = services.asking(request, "kobold", asked)
    answering = Exchange(asking, services.pipeline.text, answered, kobold.error_event)
    kind = SSE.media_type.encode() if stream else JSON
    generation = PolledAnswer(request.auth.owner, exchange.genkey, state)
    return Abortable(answering, services.polled, generation, rest, media_type=kind)


@api(get, "/api/extra/generate/check", access="user")
async def check(request: AnyRequest, services: Services) -> Results:
    """Get the text generated so far by the caller's generation without a key."""
    return _so_far(services, request.auth, "")


@api(post, "/api/extra/generate/check", access="user", examples=KEYED)
async def check_keyed(request: AnyRequest, services: Services, order: Keyed) -> Results:
    """Get the text generated so far under a generation key. It stays available for a while after
    the generation ends.
    """
    return _so_far(services, request.auth, order.genkey)


def _so_far(services: Services, access: Access, key: str) -> Results:
    texts = services.polled.texts(access.owner, key) or ("",)
    return Results([kobold.Result(text=text) for text in texts])


@api(post, "/api/extra/abort", access="user", examples=KEYED)
async def abort(request: AnyRequest, services: Services, order: Keyed) -> kobold.Aborted:
    """Stop the caller's generation with this key; without a key, the only one that has none."""
    ends = services.polled.abort(request.auth.owner, order.genkey)
    found: kobold.Word = "true" if ends else "false"
    return kobold.Aborted(found, found)


@api(post, "/api/extra/tokencount", access="user", examples={"A text": {"prompt": "Hi"}})
async def token_count(
    request: AnyRequest, services: Services, content: kobold.TokenCount
) -> kobold.TokensWire:
    """Tokenize a text and count its tokens."""
    model, text, special = content.model, content.prompt, content.special
    asked = TextToEncode(model=model, text=text, special=True, add_bos=special)
    tokens = await services.tokenizers.encode(call_of(request, asked))
    return kobold.TokensWire(len(tokens), tokens)


@api(post, "/api/extra/detokenize", access="user", examples=TOKENS)
async def detokenize(
    request: AnyRequest, services: Services, content: kobold.Detokenize
) -> kobold.Detokenized:
    """Convert tokens to text."""
    tokens = TokensToDecode(content.model, content.ids)
    return kobold.Detokenized(await services.tokenizers.decode(call_of(request, tokens)))


@api(get, ["/api/v1/model", "/api/latest/model"], access="user")
async def model(request: AnyRequest, services: Services) -> kobold.TextValue:
    """Get the name of the model that answers requests."""
    return kobold.TextValue((await services.answering(request.auth)).id)


@api(
    get,
    [
        "/api/v1/config/max_context_length",
        "/api/latest/config/max_context_length",
        "/api/extra/true_max_context_length",
    ],
    access="user",
)
async def max_context_length(request: AnyRequest, services: Services) -> kobold.NumberValue:
    """Get the model's context length in tokens."""
    status = await services.answering(request.auth)
    return kobold.NumberValue(context_length(status) or 0)


@api(get, ["/api/v1/config/max_length", "/api/latest/config/max_length"], access="user")
async def max_length() -> kobold.NumberValue:
    """Get the default length of an answer in tokens."""
    return kobold.NumberValue(kobold.MAX_LENGTH)


@api(
    get, ["/api/v1/config/soft_prompts_list", "/api/latest/config/soft_prompts_list"], access="open"
)
async def soft_prompts() -> kobold.SoftPrompts:
    """List soft prompts. Always empty, because no engine supports them."""
    return kobold.SoftPrompts()


@api(get, ["/api/v1/config/soft_prompt", "/api/latest/config/soft_prompt"], access="open")
async def soft_prompt() -> kobold.SoftPrompt:
    """Get the active soft prompt. Always empty."""
    return kobold.SoftPrompt()


@api(
    put,
    ["/api/v1/config/soft_prompt", "/api/latest/config/soft_prompt"],
    access="user",
    takes=kobold.SoftPrompt,
    examples={"None": {"value": ""}},
)
async def set_soft_prompt(request: AnyRequest) -> dict[str, Any]:
    """Set the soft prompt. Only the empty one is valid."""
    fields = fields_of(order_object(await request.body()))
    if fields.read(kobold.SoftPrompt).value:
        raise fields.wrong("value", "Soft prompts are not supported.")
    return {}


@api(get, ["/api/v1/info/version", "/api/latest/info/version"], access="open")
async def united_version() -> kobold.TextValue:
    """Get the version of the supported KoboldAI API."""
    return kobold.TextValue(UNITED)


@api(get, "/api/extra/version", access="open")
async def cpp_version(services: Services) -> kobold.KoboldVersion:
    """Get the version of the supported KoboldCpp API."""
    return kobold.KoboldVersion(protected=not services.authenticator.is_open)


@api(get, "/api/extra/perf", access="user")
async def perf(request: AnyRequest, services: Services) -> kobold.Perf:
    """Get statistics of the caller's last generation and the server's load."""
    last, statuses = services.polled.last(request.auth.owner), services.visible(request.auth)
    return kobold.Perf(
        last_process=last.usage.prefill_seconds,
        last_eval=last.usage.decode_seconds,
        last_token_count=last.usage.completion_tokens,
        last_input_count=last.usage.prompt_tokens,
        total_gens=services.polled.counts[request.auth.owner],
        stop_reason=last.stop_reason,
        queue=sum(one.waiting for one in statuses),
        idle=0 if any(one.in_use for one in statuses) else 1,
        uptime=time.time() - services.metrics.started,
    )


KOBOLD = body_type(
    "GenerateRequest",
    "A prompt to continue, in KoboldAI's format.",
    (kobold.GenerateWire, SamplingWire),
    further={
        "banned_tokens": Annotated[list[str], Meta(description="Texts, not ids.")],
        "custom_token_bans": Annotated[str, Meta(description="Token ids, separated by commas.")],
    },
    names={
        "max_tokens": ("max_length",),
        "min_tokens": ("min_length",),
        "stop": ("stop_sequence",),
        "seed": ("sampler_seed",),
        "repetition_penalty": ("rep_pen",),
        "penalty_range": ("rep_pen_range",),
        "typical_p": ("typical",),
        "mirostat_mode": ("mirostat",),
    },
)
_EXAMPLE = {"A text": {"prompt": "Once upon a time", "max_length": 8, "stop_sequence": ["\n\n"]}}

api[generate] = Described(takes=KOBOLD, gives=(Results,), examples=_EXAMPLE)
api[generate_stream] = Described(takes=KOBOLD, events=(kobold.TokenStep,), examples=_EXAMPLE)
