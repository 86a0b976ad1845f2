"""The choices of one request: a job of the engine for each, and their deltas as one stream, in the
order in which they come.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack

import anyio
import msgspec
from anyio.abc import TaskGroup

from backends.errors import BackendError
from backends.protocol import Generation, ModelInfo, Outputs, Sampling
from gateway.answers.answer import Choice
from gateway.errors import GatewayError, InvalidRequest
from gateway.events import Delta
from gateway.registry import Lease
from gateway.request import GenerationParams
from gateway.tasks import companions


def jobs_of(
    prompts: Sequence[tuple[int, ...]], asked: GenerationParams, lease: Lease, request: int
) -> list[Generation]:
    """One for each choice. The nearer to the request wins, lowest first: engine, model, preset,
    request.

    `request`: its number, by which its jobs take turns in line. Raises InvalidRequest.
    """
    info = lease.local.info
    if asked.after_samplers and not info.reports_after_samplers:
        text = f"post_sampling_probs: {info.backend} returns the model's own probabilities alone."
        raise InvalidRequest(text, param="post_sampling_probs")
    defaults = info.generation_defaults or Sampling()
    sampling = _biased(asked.sampling.over(lease.entry.sampling.over(defaults)), asked, lease)
    return [
        Generation(
            prompt=prompt,
            sampling=_varied(sampling, variant),
            max_tokens=asked.max_tokens,
            min_tokens=asked.min_tokens,
            stop=asked.stop,
            logprobs=asked.logprobs,
            request=request,
            slot=asked.slot if info.keeps_slots else None,
            reports_progress=asked.reports_progress and info.reports_progress,
            after_samplers=asked.after_samplers,
        )
        for prompt in prompts
        for variant in range(asked.n)
    ]


def unmet(asked: GenerationParams, info: ModelInfo) -> Mapping[str, str]:
    """Requested features besides sampling that this engine lacks, by the clients' names: why."""
    features = (
        ("id_slot", asked.slot is not None and not info.keeps_slots),
        ("return_progress", asked.reports_progress and not info.reports_progress),
    )
    return {name: f"{info.backend} does not have it" for name, is_unmet in features if is_unmet}


def _biased(sampling: Sampling, asked: GenerationParams, lease: Lease) -> Sampling:
    """With the biases of texts as those of all their tokens."""
    texts = asked.sampling.text_biases
    if not texts:
        return sampling
    container = lease.local
    added = tuple(
        (token, bias) for text, bias in texts for token in container.tokenize(text, special=False)
    )
    return msgspec.structs.replace(sampling, logit_bias=sampling.logit_bias + added)


def _varied(sampling: Sampling, variant: int) -> Sampling:
    """Several choices with one seed would all be the same: each counts on from it."""
    if sampling.seed is None or not variant:
        return sampling
    return msgspec.structs.replace(sampling, seed=sampling.seed + variant)


BACKLOG = 64  # deltas of several choices that may wait for a slow client


class MergedChoices:
    """The deltas of several choices as they come, in one stream. `tasks` outlives them."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._send, self._receive = anyio.create_memory_object_stream[Delta | Exception](BACKLOG)

    def add(self, choice: Choice, outputs: Outputs) -> None:
        self._tasks.start_soon(self._forward, choice, outputs, self._send.clone())

    async def _forward(
        self,
        choice: Choice,
        outputs: Outputs,
        send: anyio.abc.ObjectSendStream[Delta | Exception],
    ) -> None:
        async with send:
            try:
                async for delta in choice.deltas(outputs):
                    await send.send(delta)
            # the reader raises it, as with one choice
            except (BackendError, GatewayError) as error:
                await send.send(error)

    def close(self) -> None:
        """No more is read."""
        self._send.close()
        self._receive.close()

    async def deltas(self) -> AsyncIterator[Delta]:
        self._send.close()
        async for item in self._receive:
            if isinstance(item, Exception):
                raise item
            yield item


async def merged(
    held: AsyncExitStack, choices: Sequence[Choice], outputs: Sequence[Outputs]
) -> AsyncIterator[Delta]:
    """The deltas of all choices, of which each has its outputs; they end with `held`."""
    held.callback(_stop_all, outputs)
    if len(choices) == 1:
        return choices[0].deltas(outputs[0])
    streams = MergedChoices(await held.enter_async_context(companions()))
    held.callback(streams.close)
    for choice, stream in zip(choices, outputs, strict=True):
        streams.add(choice, stream)
    return streams.deltas()


def _stop_all(outputs: Sequence[Outputs]) -> None:
    """Before the contexts wait for each of their jobs in turn, so that they all end at one step."""
    for one in outputs:
        one.stop()
