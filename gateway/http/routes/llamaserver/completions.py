"""Raw text that goes on, in llama-server's form."""

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.dialects import openai
from gateway.dialects.llamaserver.completion import CompletionReply
from gateway.http.auth import caller
from gateway.http.exchange import Exchange, Telling, new_id
from gateway.http.services import Services

AnyRequest = Request[Any, Any, Any]


@post("/completion")
async def completion(request: AnyRequest, services: Services) -> ASGIApp:
    """A text goes on, in llama-server's form."""
    access = services.doorman.admit(request.headers)
    exchange = await services.read(openai.read_text, await request.body())
    asked, request_id = exchange.request, new_id(request)
    return Exchange(
        lambda on_wait: services.pipeline.text(
            asked, access, on_wait, caller(request.headers, request_id)
        ),
        lambda answer: CompletionReply(
            model=answer.model,
            choices=len(asked.prompts) * asked.answering.n,
            parameters=answer.parameters,
        ),
        services.failed(access, openai.error_event),
        services.account("completion", asked.model, request_id, access),
        exchange,
        Telling(quiet=services.config.server.comment_after),
    )


ROUTES = (completion,)
