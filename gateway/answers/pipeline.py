"""The pipeline: from a request to a stream of deltas (lease -> prompt -> generate -> split), in one
context manager.

    async with pipeline.chat(Call(request=request, access=access)) as answer:
        async for delta in answer.deltas():
            ...
        usage = answer.usage()

Everything an answer holds (the lease, the jobs on the device) belongs to the context: when it has
exited, on every path, the device is free and the lease is given back.
"""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import groupby
from typing import TypeVar

import msgspec
import structlog
from anyio.lowlevel import cancel_shielded_checkpoint

from backends.contract.bounds import bounded
from backends.contract.errors import InvalidJob
from backends.contract.protocol import Generation, ModelContainer, Outputs, SpecialTokens
from backends.contract.samplers import Sampling
from backends.places.upstream.replicas import beginning, first_part, stable_hash
from backends.places.upstream.upstream import UpstreamModel
from config.settings import Config
from config.values import alike
from gateway.answers.answer import Answer, Choice, merged, varied
from gateway.answers.call import Call
from gateway.answers.constraints import FREE, WITHOUT_TOOLS, AnswerConstraint, Constraints
from gateway.answers.interpreter import SamplingOverrides, as_configured
from gateway.answers.parameters import (
    parameters,
    refuse_unapplied_here,
    refuse_unparsed,
    unapplied_here,
)
from gateway.answers.pictures import Album, ImageLoader, images_in, with_data
from gateway.answers.remote import LeasedRemote, RemotePipeline
from gateway.answers.stopping import Unsplit
from gateway.answers.tokens import Tokens
from gateway.answers.turns import Turns
from gateway.prompt.template import length_explained
from gateway.registry import Lease, ModelEntry, Registry, require_task
from gateway.terms.errors import GatewayError, InvalidRequest, NotSupported, as_written, translated
from gateway.terms.request import ChatRequest, Fill, GenerationParams, Prompt, TextRequest

log = structlog.get_logger(__name__)

Asked = TypeVar("Asked", bound=ChatRequest | TextRequest)

# What stands for the repository's and the file's own name, where a model wants names.
PROJECT, CURRENT = "project\n", "current\n"
SNIPPET = "\n\n--- snippet ---\n\n"  # between other files, where a model has no marker for them
LEFT_TO_ANSWER = 4  # a quarter of the context, where the request has no limit


async def text_prompts(
    tokens: Tokens, request: TextRequest, container: ModelContainer
) -> list[tuple[int, ...]]:
    """The request's prompts as tokens, each distinct one tokenized once. Raises GatewayError."""
    if request.fill is not None:
        return [await _filled(tokens, request, request.fill, container)]
    known: dict[Prompt, tuple[int, ...]] = {}
    for prompt in request.prompts:
        if prompt not in known:
            known[prompt] = await _prompt(tokens, request, container, prompt)
    return [known[prompt] for prompt in request.prompts]


async def _prompt(
    tokens: Tokens, request: TextRequest, container: ModelContainer, prompt: Prompt
) -> tuple[int, ...]:
    if request.suffix is not None:
        prompt = _framed(request, container, prompt)
    if isinstance(prompt, str):
        return await tokens.of(container, prompt, add_bos=request.add_bos, param="prompt")
    plain = tuple(part for part in prompt if isinstance(part, int))
    if len(plain) == len(prompt):
        return plain
    return await tokens.mixed(container, prompt, add_bos=request.add_bos)


def _framed(request: TextRequest, container: ModelContainer, prompt: Prompt) -> str:
    """`prompt` and the suffix between the model's markers. Raises InvalidRequest."""
    special = container.info.special
    if not special.fill_middle:
        raise InvalidRequest("this model can't fill in before a suffix", param="suffix")
    text = _text(prompt, container)
    return f"{special.fill_prefix}{text}{special.fill_suffix}{request.suffix}{special.fill_middle}"


def _text(prompt: Prompt, container: ModelContainer) -> str:
    """Neighbouring tokens are read together: a character may take several."""
    if isinstance(prompt, str):
        return prompt
    texts: list[str] = []
    for _, neighbours in groupby(prompt, lambda part: isinstance(part, str)):
        parts = tuple(neighbours)
        tokens = tuple(part for part in parts if isinstance(part, int))
        texts += [container.detokenize(tokens)] if tokens else map(str, parts)
    return "".join(texts)


# As llama-server has it (server-common.cpp, format_prompt_infill): other files, then what stands
# before and behind. Where all of it doesn't fit, what is nearest to the gap stays.


async def _filled(
    tokens: Tokens, request: TextRequest, fill: Fill, container: ModelContainer
) -> tuple[int, ...]:
    special = container.info.special
    if not (special.fill_prefix and special.fill_suffix and special.fill_middle):
        raise NotSupported("Infill is not supported by this model: it has no tokens for it.")
    before, behind = [
        await tokens.of(container, text, special=False, add_bos=False, param=param, whole=False)
        for text, param in ((fill.prefix, "input_prefix"), (fill.suffix, "input_suffix"))
    ]
    files = await _files(tokens, fill, container)
    bos = await tokens.of(container, "", param="prompt")
    markers = [
        container.tokenize(marker, special=True)
        for marker in (special.fill_prefix, special.fill_suffix, special.fill_middle)
    ]
    room = _room(request, container) - len(bos) - sum(map(len, markers))
    behind = behind[: max(0, room // 4, room - len(before))]
    before = before[max(0, len(before) - max(0, room - len(behind))) :]
    files = files[max(0, len(files) - max(0, room - len(behind) - len(before))) :]
    prefix, suffix, middle = markers
    return (*files, *bos, *prefix, *before, *suffix, *behind, *middle)


async def _files(tokens: Tokens, fill: Fill, container: ModelContainer) -> tuple[int, ...]:
    found: list[int] = []
    for text, special in _file_texts(fill, container.info.special):
        found += await tokens.of(
            container, text, special=special, add_bos=False, param="input_extra", whole=False
        )
    return tuple(found)


def _file_texts(fill: Fill, special: SpecialTokens) -> Iterator[tuple[str, bool]]:
    """Texts, and whether they are markers of the model."""
    if special.fill_repository:
        yield special.fill_repository, True
        yield PROJECT, False
    for file in fill.files:
        if special.fill_file:
            yield special.fill_file, True
            yield f"{file.name}\n", False
        else:
            yield SNIPPET, False
        yield file.text, False
    if special.fill_file:
        yield special.fill_file, True
        yield CURRENT, False


def _room(request: TextRequest, container: ModelContainer) -> int:
    """Tokens of the context that the prompt may have."""
    context, limit = container.info.context_length, request.answering.max_tokens
    left = context // LEFT_TO_ANSWER
    return context - 1 - (left if limit is None else min(limit, left))


# Statuses of a model elsewhere after which its fallbacks are asked: none means that the request is
# at fault.
FALLS_BACK = frozenset({429, 500, 502, 503, 504, 529})


class Pipeline(msgspec.Struct, kw_only=True):
    """One per server."""

    registry: Registry
    presets: SamplingOverrides
    pictures: ImageLoader
    tokens: Tokens
    constraints: Constraints
    remote: RemotePipeline
    config: Config
    turns: Turns = msgspec.field(default_factory=Turns)
    # Of requests, by which jobs take turns in line.
    _numbers: Iterator[int] = msgspec.field(default_factory=partial(itertools.count, 1))

    @asynccontextmanager
    async def chat(self, call: Call[ChatRequest]) -> AsyncIterator[Answer]:
        """Raises GatewayError, before anything is generated if the request is at fault."""
        self._refuse_too_many(1, call.request.answering.n)
        async with AsyncExitStack() as held:
            yield await self._first(held, call, self._chat)

    @asynccontextmanager
    async def text(self, call: Call[TextRequest]) -> AsyncIterator[Answer]:
        """Raw text: no template, no splitting. Choice p * n + i is the i-th answer to prompt p."""
        self._refuse_too_many(len(call.request.prompts), call.request.answering.n)
        async with AsyncExitStack() as held:
            yield await self._first(held, call, self._text)

    async def _first(
        self,
        held: AsyncExitStack,
        call: Call[Asked],
        opened: Callable[[AsyncExitStack, Call[Asked], ModelEntry], Awaitable[Answer]],
    ) -> Answer:
        """The answer of the model that is meant, or of the first of its fallbacks that can, where
        it runs elsewhere and no replica answers. What the others held is given back.
        """
        access = call.access
        entry = await self.registry.find(self.registry.named(call.request.model, access), access)
        remote = entry.files.remote
        others: list[str] = [*filter(access.allows, remote.fallbacks)] if remote else []
        for other in (*others, None):
            async with AsyncExitStack() as tried:
                try:
                    require_task(entry, "generate")
                    if entry.files.remote is None:
                        refuse_unparsed(call.request.answering)
                    answer = await opened(tried, call, entry)
                except GatewayError as error:
                    if other is None or error.status_hint not in FALLS_BACK:
                        raise
                    log.warning("falls back", model=entry.name, to=other, reason=error.message)
                    entry = await self.registry.find(other, access)
                    continue
                held.push_async_exit(tried.pop_all())
                return answer
        raise AssertionError("the last one answered, or raised")

    async def _chat(
        self, held: AsyncExitStack, call: Call[ChatRequest], entry: ModelEntry
    ) -> Answer:
        request = call.request
        album = await self._album(held, request, entry) if request.has_images else None
        request = as_configured(request, entry)
        spelled = request.answering.spelled
        prompt_field = spelled.get("messages", "messages")
        held.enter_context(as_written({**spelled, "prompt": prompt_field}))
        held.enter_context(length_explained(request))
        lease = await self._lease(held, entry, call, partial(beginning, request.messages))
        params = self._asked(request.answering)
        if isinstance(lease.container, UpstreamModel):
            if album is not None:
                messages = with_data(request.messages, await album.as_data())
                request = msgspec.structs.replace(request, messages=messages)
            target = LeasedRemote(held, lease, lease.container, call)
            return await self.remote.answer(target, request, params)
        owner = call.access.owner
        request, outline = self.turns.in_order(request, owner, lease.name)
        prompt = await self.tokens.chat(request, lease)
        interpreter, framed = prompt.interpreter, prompt.rendered.framed
        unapplied = (*params.unapplied, *prompt.rendered.unapplied)
        stop = params.stop + interpreter.stops
        params = msgspec.structs.replace(params, unapplied=unapplied, stop=stop)
        bound = FREE
        if request.asks_for_form:
            bound = await self.constraints.chat(request, interpreter, framed, lease.local)
        images = await held.enter_async_context(album.decoded()) if album else {}
        shown = tuple(images[picture.url] for picture in prompt.rendered.pictures)
        budget = None
        if request.thinking.budget is not None:
            budget = interpreter.budget(request, framed, lease.local)
        choices = [
            Choice(
                index,
                msgspec.structs.replace(
                    job,
                    marks=prompt.marks,
                    thinking=budget,
                    images=shown,
                    stop=(),
                    constraint=bound.constraint,
                ),
                interpreter.splitter(request, params, framed),
                one_call=request.one_call,
                unread=interpreter.recognised.unread,
                params=params,
            )
            for index, job in enumerate(self._jobs([prompt.tokens], params, lease, call))
        ]
        answer = await self._answer(held, lease, choices, request.answering, params, bound)
        answer.rendered, answer.split = prompt.rendered.text, interpreter.split
        whose = (owner, lease.name, call.conversation)
        answer.turn = turn = self.turns.begin(request, outline, prompt.tokens, whose)
        held.callback(lambda: turn.ended(answer.usage()))
        return answer

    def _jobs(
        self,
        prompts: Sequence[tuple[int, ...]],
        params: GenerationParams,
        lease: Lease,
        call: Call[ChatRequest] | Call[TextRequest],
    ) -> list[Generation]:
        """One for each choice. The nearer to the request wins, lowest first: engine, model, preset,
        request. Raises InvalidRequest.
        """
        info, owner, number = lease.local.info, call.access.owner, next(self._numbers)
        if params.after_samplers and not info.reports_after_samplers:
            text = f"{info.backend} returns the model's own probabilities alone."
            raise InvalidRequest.at("post_sampling_probs", text)
        sampling = params.sampling.over(lease.entry.usual_sampling)
        if params.sampling.text_biases:
            sampling = _biased(sampling, params.sampling.text_biases, lease)
        adapters = lease.entry.adapters if params.adapters is None else params.adapters
        return [
            alike(Generation, params)(
                prompt=prompt,
                sampling=varied(sampling, variant),
                request=number,
                owner=owner,
                cached_for="" if self.config.kept.share else owner,
                slot=params.slot if info.keeps_slots else None,
                adapters=adapters if info.chooses_adapters else None,
                reports_progress=params.reports_progress and info.reports_progress,
                conversation=call.conversation,
            )
            for prompt in prompts
            for variant in range(params.n)
        ]

    def _asked(self, answering: GenerationParams) -> GenerationParams:
        """With the presets, and as strict as the server is."""
        params = self.presets.current.over(answering)
        strict = self.config.server.strict_sampling or answering.strict
        return msgspec.structs.replace(params, strict=strict)

    async def _text(
        self, held: AsyncExitStack, call: Call[TextRequest], entry: ModelEntry
    ) -> Answer:
        request = call.request
        held.enter_context(as_written(request.answering.spelled))
        lease = await self._lease(held, entry, call, lambda: (first_part(request.prompts[0]),))
        params = self._asked(request.answering)
        if isinstance(lease.container, UpstreamModel):
            target = LeasedRemote(held, lease, lease.container, call)
            return await self.remote.answer(target, request, params)
        bound = await self.constraints.text(request.answering, lease.local)
        prompts = await text_prompts(self.tokens, request, lease.local)
        jobs = self._jobs(prompts, params, lease, call)
        if request.echo:  # with log probabilities where they are asked for at all
            jobs = [msgspec.structs.replace(job, prompt_logprobs=job.logprobs) for job in jobs]
        n, constraint = request.answering.n, bound.constraint
        # Of a raw text nothing is split.
        params = msgspec.structs.replace(params, logprobs_of="all")
        jobs = [msgspec.structs.replace(job, constraint=constraint) for job in jobs]
        choices = [
            Choice(index, job, Unsplit(), prompt=index // n, params=params)
            for index, job in enumerate(jobs)
        ]
        answer = await self._answer(held, lease, choices, request.answering, params, bound)
        if request.echo:
            answer.echoes = tuple(_text(prompt, lease.local) for prompt in request.prompts)
        if request.returns_prompts:
            answer.prompts = await self.tokens.spelled(lease.local, prompts)
        return answer

    def _refuse_too_many(self, prompts: int, n: int) -> None:
        most = self.config.server.max_choices
        if prompts * n <= most:
            return
        param = "n" if n > 1 else "prompt"
        asked = f"{prompts} prompts with n = {n} ask" if prompts > 1 else f"n = {n} asks"
        raise InvalidRequest.at(
            param,
            f"{asked} for {prompts * n} choices; this server gives at most {most} to one request "
            "(server.max_choices).",
        )

    async def _album(
        self, held: AsyncExitStack, request: ChatRequest, entry: ModelEntry
    ) -> Album | None:
        """The conversation's pictures, fetched before the lease, so that no lease is held during a
        fetch.

        A request with pictures for a model without vision is refused before anything is fetched or
        loaded.
        """
        placed = images_in(request.messages)
        status = self.registry.status(entry.name)
        remote = entry.files.remote
        if remote is not None and remote.fetches_images and "image" in status.modalities:
            return None  # they are handed on as they are
        if "image" not in status.modalities:
            raise InvalidRequest(
                f"The model '{status.id}' doesn't support images.", param=placed[0].field
            )
        return await held.enter_async_context(self.pictures.fetched(placed))

    async def _lease(
        self,
        held: AsyncExitStack,
        entry: ModelEntry,
        call: Call[ChatRequest] | Call[TextRequest],
        parts: Callable[[], Iterable[Prompt]],
    ) -> Lease:
        """`parts`: the beginning of the conversation, by which its next turn finds the same
        replica, if the client gives it no name.
        """
        conversation = None
        if entry.base.replicas:
            known = (call.conversation,) if call.conversation else map(str, parts())
            conversation = stable_hash(call.access.owner, *known)
        return await held.enter_async_context(
            self.registry.lease(
                entry.name,
                keep_alive=call.request.answering.keep_alive,
                on_wait=call.on_wait,
                access=call.access,
                conversation=conversation,
            )
        )

    async def _answer(
        self,
        held: AsyncExitStack,
        lease: Lease,
        choices: Sequence[Choice],
        answering: GenerationParams,
        params: GenerationParams,
        bound: AnswerConstraint,
    ) -> Answer:
        """Start all jobs; `held` holds them, and ends them together. `answering` is the client's
        own, `params` with the presets.
        """
        info = lease.local.info
        if params.strict:
            refuse_unapplied_here(answering, info)
        with translated():
            try:
                outputs = await _started(held, lease.local, choices)
            except InvalidJob:
                if not bound.optional:
                    raise
                bound = WITHOUT_TOOLS
                for choice in choices:
                    choice.job = msgspec.structs.replace(choice.job, constraint=None)
                outputs = await _started(held, lease.local, choices)
        source = await merged(held, choices, outputs)
        unapplied = unapplied_here(params, choices[0].job.sampling, info) + bound.unapplied
        answer = Answer(lease, unapplied, choices, source)
        if bound.check is not None:
            answer.check_with(bound.check)
        if answering.reports:
            answer.parameters = parameters(answering, bounded(choices[0].job, info), unapplied)
        return answer


def _biased(sampling: Sampling, texts: Sequence[tuple[str, float]], lease: Lease) -> Sampling:
    """With the biases of texts as those of all their tokens."""
    container = lease.local
    added = tuple(
        (token, bias) for text, bias in texts for token in container.tokenize(text, special=False)
    )
    return msgspec.structs.replace(sampling, logit_bias=sampling.logit_bias + added)


async def _started(
    held: AsyncExitStack, container: ModelContainer, choices: Sequence[Choice]
) -> list[Outputs]:
    """The outputs of all jobs. Where the first of them can't begin, none has."""
    outputs: list[Outputs] = []
    for choice in choices:
        outputs.append(await held.enter_async_context(container.generate(choice.job)))
        await cancel_shielded_checkpoint()  # others go on between a hundred jobs
    return outputs
