"""What the Python around a step costs, where the device takes 8 ms for it: an 8B model's step.

A stand-in for the device sleeps outside the GIL; driver, transcripts, mailboxes, splitter and reply
are the real ones, and in a second run so are batching and sampling of the transformers engine,
over a small vocabulary, so that what remains of their tensor operations is their bookkeeping.

    python -m benchmarks.step_cost [--streams 32] [--steps 400] [--seeded]

Printed per step: what lies between two passes of the device (the stretch: the part of a step in
which the device waits for Python), and the CPU time of the engine's thread and of the event loop's.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Collection, Sequence
from itertools import pairwise

import anyio
import msgspec
import torch

import bundled
from backends.contract.protocol import Generation, ModelInfo
from backends.contract.samplers import Sampling
from backends.engines.constraints import Mask
from backends.engines.driver import DrivenContainer
from backends.engines.engine import Token
from backends.engines.sampling.state import SamplingContext
from backends.engines.threads import StepThreads
from backends.engines.transformers.batching import Batching
from backends.engines.transformers.files import CacheSize
from backends.engines.transformers.grid import Grid
from backends.engines.vocabulary import HfVocabulary
from gateway.answers.answer import Choice
from gateway.dialects.openai import ChatReply, read_chat
from gateway.dialects.openai.reply import AnswerFacts
from gateway.splitter import FORMATS, Splitter

STEP = 0.008  # seconds on the device
ROWS = 768  # the bundled model's vocabulary
PROMPT = (300, 301, 302)
BODY = b'{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'


class Clock(msgspec.Struct):
    """Marks of the engine's thread."""

    waits: list[float] = msgspec.field(default_factory=list)  # seconds between two passes
    passes: list[float] = msgspec.field(
        default_factory=list
    )  # seconds of a pass, as the sleep really took
    cpu: list[float] = msgspec.field(
        default_factory=list
    )  # the thread's CPU time at the end of each pass
    _ended: float = 0.0

    def work(self) -> None:
        """The device computes; nobody holds the GIL."""
        started = time.perf_counter()
        if self._ended:
            self.waits.append(started - self._ended)
        time.sleep(STEP)
        self._ended = time.perf_counter()
        self.passes.append(self._ended - started)
        self.cpu.append(time.thread_time())


class Device:
    """Stands in for `Forward`: any logits, after a pass's time."""

    stepwise = False

    def __init__(self, clock: Clock, streams: int) -> None:
        self._clock = clock
        self._logits = 4 * torch.randn(streams, ROWS)  # as peaked as a model's

    def run(
        self, first: int, tokens: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> torch.Tensor:
        self._clock.work()
        return self._logits[: len(tokens)]


class StandIn:
    """See `backends.engines.engine.Engine`: one token for each job, always the same."""

    def __init__(self, clock: Clock, info: ModelInfo, vocabulary: HfVocabulary) -> None:
        self._clock = clock
        self._jobs: dict[int, Generation] = {}
        self.info = info
        self.tokenize = vocabulary.tokenize
        self.detokenize = vocabulary.detokenize
        self.piece = vocabulary.piece

    def ends(self, token: int) -> bool:
        return token < 0

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        self._jobs[key] = job
        return len(job.prompt)

    def step(self) -> Sequence[Token]:
        self._clock.work()
        return [Token(key, 300 + key) for key in self._jobs]

    def force(self, key: int, tokens: Sequence[int]) -> None:
        """Nobody forces."""

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        raise NotImplementedError  # only where `info.rewinds`

    def release(self, key: int) -> int:
        del self._jobs[key]
        return 0

    def recover(self) -> None:
        self._jobs.clear()

    def close(self) -> None:
        self._jobs.clear()


class Sampled(StandIn):
    """The same with the transformers engine's batching and sampling around the device."""

    def __init__(self, clock: Clock, info: ModelInfo, vocabulary: HfVocabulary) -> None:
        super().__init__(clock, info, vocabulary)
        limit = CacheSize(info.max_concurrent, info.max_concurrent * 2048, 2048)
        device = Device(clock, info.max_concurrent)
        self._batching = Batching(
            device,  # type: ignore[arg-type]
            Grid(()),
            limit,
            0,
            SamplingContext(vocabulary, torch.device("cpu")),
            StepThreads(1, 1, torch.set_num_threads),
        )
        self.admit = self._batching.admit  # type: ignore[method-assign]
        self.release = self._batching.release  # type: ignore[method-assign]

    def step(self) -> Sequence[Token]:
        with torch.inference_mode():
            return self._batching.step()  # type: ignore[return-value]


class Consumer:
    """One stream's way from the driver to the bytes of its events."""

    def __init__(self, container: DrivenContainer, *, seeded: bool) -> None:
        self._container = container
        self._seed = 1 if seeded else None
        self.bytes = 0

    async def run(self, steps: int) -> None:
        job = Generation(
            prompt=PROMPT,
            max_tokens=steps,
            sampling=Sampling(temperature=0.8, top_p=0.95, seed=self._seed, ban_eos=True),
        )
        choice = Choice(0, job, Splitter(FORMATS["qwen3_json"], in_reasoning=False))
        reply = ChatReply(
            read_chat(BODY), AnswerFacts(id="chatcmpl-1", created=0, model="stand-in")
        )
        async with self._container.generate(job) as outputs:
            async for delta in choice.deltas(outputs):
                self.bytes += len(reply.delta(delta))


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the steps in which all streams ran, in microseconds."""

    streams: int
    sampler: bool
    wait: float  # between two passes: the device idles
    share: float  # of a step, in percent
    engine_cpu: float
    loop_cpu: float


async def measured(streams: int, steps: int, *, sampler: bool, seeded: bool) -> Cost:
    """One run of `steps` passes with all streams from the start to the end."""
    vocabulary, clock = HfVocabulary(bundled.SAFETENSORS, ROWS), Clock()
    info = ModelInfo(
        backend="stand-in",
        format="none",
        architecture="stand-in",
        context_length=2048,
        max_concurrent=streams,
        vocab_size=ROWS,
        size_bytes=0,
    )
    kind = Sampled if sampler else StandIn
    container = DrivenContainer(kind(clock, info, vocabulary))
    started = time.thread_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(streams):
            tasks.start_soon(Consumer(container, seeded=seeded).run, steps)
    loop = time.thread_time() - started
    await container.aclose()
    settled = slice(streams, -streams)  # all have come, none has left
    wait = statistics.median(clock.waits[settled])
    engine = [later - sooner for sooner, later in pairwise(clock.cpu[settled])]
    return Cost(
        streams=streams,
        sampler=sampler,
        wait=wait * 1e6,
        share=100 * wait / (wait + STEP),
        engine_cpu=statistics.median(engine) * 1e6,
        loop_cpu=loop / len(clock.passes) * 1e6,
    )


def main() -> None:
    """Both runs, one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeded", action="store_true", help="every job with a seed of its own")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for sampler in (False, True):
        cost = asyncio.run(
            measured(given.streams, given.steps, sampler=sampler, seeded=given.seeded)
        )
        what = "with batching and sampling" if sampler else "driver, transcript and reply"
        print(
            f"{what}: {cost.wait:.0f} µs between passes, {cost.share:.1f} % of a step; CPU of the "
            f"engine's thread {cost.engine_cpu:.0f} µs, of the event loop {cost.loop_cpu:.0f} µs"
        )


if __name__ == "__main__":
    main()
