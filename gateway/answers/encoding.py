"""Embedding and reranking: texts to vectors, or documents to scores: lease -> tokens -> encode.

    encoded = await encoders.embed(Call(request=request, access=access))

What is held (the lease, the device's work) is given back before the call returns, on every path. A
model elsewhere gets the texts as they are; where it isn't there no other is asked, since vectors of
two models mean nothing to each other.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from backends.contract.bounds import ENCODED_TEXTS, check_inputs
from backends.contract.encoder import (
    ITEM,
    EncoderContainer,
    EncoderInput,
    cosine,
    shortened,
    values,
)
from backends.contract.protocol import Task, Vectors
from backends.contract.remote import RemoteVectors
from backends.places.upstream.upstream import UpstreamModel
from config.values import alike
from gateway.answers.call import Call
from gateway.answers.recording import Recording, Terms
from gateway.answers.remote import embedding_parameters, rerank_parameters
from gateway.answers.tokens import LONG_TEXT
from gateway.keys.access import Access
from gateway.registry import Lease, ModelEntry, Registry, require_task
from gateway.terms.errors import InvalidRequest, ModelUnavailable, translated
from gateway.terms.events import Encodings, Usage
from gateway.terms.request import (
    EmbeddingRequest,
    EncodingParams,
    Purpose,
    RerankRequest,
    ScoreRequest,
    Unapplied,
)
from gateway.terms.tasks import Abandoned, Wanted, WorkerThreads

Encodable = TypeVar("Encodable", bound=EncodingParams)
Text: TypeAlias = str | tuple[int, ...]
Read: TypeAlias = Callable[[EncoderContainer, int | None], Iterator[EncoderInput]]

# What model makers call the prompts for a query and for what it is compared with.
PROMPTS: Mapping[Purpose, tuple[str, ...]] = {
    "query": ("query", "search_query", "s2p_query", "retrieval.query", "Retrieval-query"),
    "document": ("document", "passage", "search_document", "corpus", "retrieval.passage"),
}


class Encoded(Encodings, frozen=True, kw_only=True):
    """What became of a request. `cut`: how many texts were too long and were truncated."""

    backend: str
    queued_seconds: float
    load_seconds: float
    cut: int = 0
    unapplied: tuple[Unapplied, ...] = ()

    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=0)

    def record(self, recording: Recording) -> None:
        """Note it in `recording`; without texts, of which there may be thousands."""
        recording.answer(Terms(backend=self.backend, unapplied=self.unapplied), ())


class Encoders(msgspec.Struct, frozen=True):
    """One per server."""

    registry: Registry
    threads: WorkerThreads

    async def embed(self, call: Call[EmbeddingRequest]) -> Encoded:
        """The vectors of all texts. Raises GatewayError."""
        request = call.request
        _check_texts([one for one in request.inputs if isinstance(one, str)], request.field)
        async with await self._leased(call, "embed") as lease:
            if isinstance(lease.container, UpstreamModel):
                asked = embedding_parameters(request, call.caller)
                return await _encoded_remotely(lease, request, lease.container.embed(asked))
            info = lease.encoder.info
            assert info.vectors is not None, "its task is to embed"
            prompt, unapplied = _prompt(request, info.vectors)
            if request.dimensions is not None and request.dimensions > info.vectors.width:
                text = f"This model's vectors have {info.vectors.width} values."
                raise InvalidRequest.at("dimensions", text)

            def read(container: EncoderContainer, most: int | None) -> Iterator[EncoderInput]:
                for one in request.inputs:
                    if isinstance(one, str):
                        yield container.read(prompt + one, most)
                    else:  # token ids as they are
                        yield EncoderInput(one[:most], cut=len(one) - len(one[:most]))

            encoded = await self._encoded(lease, request, read, _size(request.inputs))
            vectors = await self._shortened(encoded.vectors, request, info.vectors)
            return replace(encoded, vectors=vectors, unapplied=(*unapplied, *request.unapplied))

    async def rank(self, call: Call[RerankRequest]) -> Encoded:
        """The scores of all documents. Raises GatewayError."""
        request = call.request
        _check_texts([request.query], "query")
        _check_texts(request.documents, request.field)
        async with await self._leased(call, "rank") as lease:
            if isinstance(lease.container, UpstreamModel):
                asked = rerank_parameters(request, call.caller)
                return await _encoded_remotely(lease, request, lease.container.rerank(asked))
            pairs = [(request.query, document) for document in request.documents]
            return await self._ranked(lease, request, pairs)

    async def score(self, call: Call[ScoreRequest]) -> Encoded:
        """The score of each pair: by a model that ranks, else the cosine of a model that embeds.
        Raises GatewayError.
        """
        request = call.request
        model = await self._model(request, call.access, "rank", "embed")
        if model.files.remote is not None:
            return await self._scored_elsewhere(call, model)
        if model.files.task == "embed":
            return await self._compared(call, model)
        _check_texts([*{query for query, _ in request.pairs}], request.field)
        _check_texts([document for _, document in request.pairs], request.field)
        named = replace(request, model=model.name)
        async with await self._leased(call.of(named), "rank") as lease:
            return await self._ranked(lease, named, request.pairs)

    async def _ranked(
        self, lease: Lease, request: EncodingParams, pairs: Sequence[tuple[str, str]]
    ) -> Encoded:
        def read(container: EncoderContainer, most: int | None) -> Iterator[EncoderInput]:
            for query, document in pairs:
                yield container.read_pair(query, document, most)

        return await self._encoded(lease, request, read, sum(map(_size, pairs)))

    async def _compared(self, call: Call[ScoreRequest], model: ModelEntry) -> Encoded:
        """The cosines of the pairs' vectors; a text that comes again is embedded once."""
        request = call.request
        places = {
            text: at for at, text in enumerate({one: 0 for pair in request.pairs for one in pair})
        }
        texts = alike(EmbeddingRequest, request)(model=model.name, inputs=tuple(places))
        encoded = await self.embed(call.of(texts))

        def work(_wanted: Wanted) -> list[bytes]:
            vectors = [values(vector) for vector in encoded.vectors]
            pairs = ((vectors[places[one]], vectors[places[other]]) for one, other in request.pairs)
            return [cosine(*pair) for pair in pairs]

        return replace(encoded, vectors=await self.threads.run(work))

    async def _scored_elsewhere(self, call: Call[ScoreRequest], model: ModelEntry) -> Encoded:
        """Other servers rank documents for one query at a time."""
        request = call.request
        queries = {query for query, _ in request.pairs}
        if len(queries) > 1:
            text = f"{model.name} runs on another server: one text to several only."
            raise InvalidRequest.at(request.field, text)
        ranking = alike(RerankRequest, request)(
            model=model.name,
            query=queries.pop(),
            documents=tuple(document for _, document in request.pairs),
        )
        return await self.rank(call.of(ranking))

    async def _leased(
        self, call: Call[Encodable], task: Task
    ) -> AbstractAsyncContextManager[Lease]:
        """To be entered: the model for `task`."""
        entry = await self._model(call.request, call.access, task)
        return self.registry.lease(
            entry.name,
            keep_alive=call.request.keep_alive,
            on_wait=call.on_wait,
            access=call.access,
        )

    async def _model(self, request: EncodingParams, access: Access, *tasks: Task) -> ModelEntry:
        """The one that is named, for one of these tasks; else for the first task that has any the
        one in use, else the first in the list.
        """
        if name := self.registry.named(request.model, access):
            entry = await self.registry.find(name, access)
            if entry.files.task not in tasks:
                require_task(entry, tasks[0])
            return entry
        for task in tasks:
            if (in_use := self.registry.in_use(access, task)) is not None:
                return in_use
            allowed = (one for one in self.registry.statuses() if access.allows(one.id))
            for status in allowed:
                if status.entry is not None and status.task == task:
                    return await self.registry.find(status.id, access)
        raise ModelUnavailable(f"No model is available that can {tasks[-1]}.", param="model")

    async def _encoded(
        self, lease: Lease, request: EncodingParams, read: Read, size: int
    ) -> Encoded:
        """`size`: how much there is to be read, in characters."""
        container = lease.encoder
        length = container.info.context_length
        most = min(request.most_tokens or length, length) if request.truncate else None

        def work(wanted: Wanted) -> list[EncoderInput]:
            inputs = []
            for one in read(container, most):
                if not wanted():
                    raise Abandoned
                inputs.append(one)
            with translated():
                check_inputs(inputs, container.info, request.field)
            return inputs

        inputs = await self.threads.run(work, is_long=size >= LONG_TEXT)
        with translated():
            vectors = await container.encode(inputs)
        return alike(Encoded, lease)(
            model=lease.name,
            backend=container.info.backend,
            vectors=vectors,
            prompt_tokens=sum(len(one.tokens) for one in inputs),
            cut=sum(one.cut > 0 for one in inputs),
            unapplied=request.unapplied,
        )

    async def _shortened(
        self, vectors: Sequence[bytes], request: EmbeddingRequest, info: Vectors
    ) -> Sequence[bytes]:
        width = request.dimensions
        if width is None or width == info.width:
            return vectors

        def work(_wanted: Wanted) -> list[bytes]:
            return [shortened(one, width, normalized=info.normalized) for one in vectors]

        return await self.threads.run(work, is_long=is_long(vectors))


async def _encoded_remotely(
    lease: Lease, request: EncodingParams, asked: Awaitable[RemoteVectors]
) -> Encoded:
    """What another server answers. Raises GatewayError."""
    with translated():
        found = await asked
    return alike(Encoded, lease)(
        model=lease.name,
        backend=lease.container.info.backend,
        vectors=found.vectors,
        prompt_tokens=found.prompt_tokens,
        unapplied=tuple(f for f in request.unapplied if f.name not in request.further),
    )


def _check_texts(texts: Sequence[str], field: str) -> None:
    """Before a model is loaded for them. Raises InvalidRequest."""
    if fault := ENCODED_TEXTS.fault(tuple(texts)):
        raise InvalidRequest.at(field, fault)


def _prompt(request: EmbeddingRequest, info: Vectors) -> tuple[str, tuple[Unapplied, ...]]:
    """The prompt in front of every text, and which of the request's fields are not used."""
    if request.prompt is not None:
        if request.prompt not in info.prompts:
            names = ", ".join(repr(name) for name in info.prompts) or "none"
            raise InvalidRequest.at("prompt_name", f"This model's prompts are: {names}.")
        return info.prompts[request.prompt], ()
    if request.purpose is None:
        return info.prompt, ()
    known = (name for name in PROMPTS[request.purpose] if name in info.prompts)
    if (name := next(known, None)) is None:
        reason = "the model has no prompt for this purpose"
        return info.prompt, (Unapplied("input_type", reason),)
    return info.prompts[name], ()


def _size(texts: Sequence[Text]) -> int:
    return sum(map(len, texts))


def is_long(vectors: Sequence[bytes]) -> bool:
    """Whether writing them down takes so long that it is to be done beside the event loop."""
    return sum(map(len, vectors)) // ITEM >= LONG_TEXT
