"""Requests for models that other servers run: who takes the answer apart, and the check of what was
asked of its shape.
"""

from contextlib import AsyncExitStack

from backends.remote import Caller, RemoteContainer
from gateway.answers.answer import Answer
from gateway.answers.constraints import Constraints
from gateway.answers.remote import remote_chat, remote_text
from gateway.answers.split_here import split_here
from gateway.answers.tokens import Tokens
from gateway.registry import Lease
from gateway.request import ChatRequest, GenerationParams, TextRequest


class Elsewhere:
    """One per server. What an answer holds is held by `held`; all raise GatewayError."""

    def __init__(self, tokens: Tokens, constraints: Constraints) -> None:
        self._tokens = tokens
        self._constraints = constraints

    async def chat(
        self,
        held: AsyncExitStack,
        lease: Lease,
        container: RemoteContainer,
        request: ChatRequest,
        asked: GenerationParams,
        caller: Caller,
    ) -> Answer:
        """`asked`: with the presets."""
        if container.splits:
            answer = await remote_chat(held, lease, container, request, asked, caller)
        else:
            raw = await self._tokens.rendered(request, lease)
            answer = await split_here(held, lease, container, request, asked, raw, caller)
        if request.thinking.shown != "inline":  # what has reasoning in it has no such shape
            self._check(answer, asked)
        return answer

    async def text(
        self,
        held: AsyncExitStack,
        lease: Lease,
        container: RemoteContainer,
        request: TextRequest,
        asked: GenerationParams,
        caller: Caller,
    ) -> Answer:
        """`asked`: with the presets."""
        answer = await remote_text(held, lease, container, request, asked, caller)
        self._check(answer, asked)
        return answer

    def _check(self, answer: Answer, asked: GenerationParams) -> None:
        if (check := self._constraints.elsewhere(asked.shape)) is not None:
            answer.check_with(check)
