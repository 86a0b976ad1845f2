"""The limit: the engine alone, driven by the plainest Python that keeps it busy.

One `llama_decode` for all sequences and one C call per token to draw it: no threads, no text, no
sockets, nobody to answer to. Model and context are loaded as the gateway loads them; only the count
of threads is tried out.

    python -m benchmarks.raw_loop < raw.json     a `RawLoad` in, a `RawSpeed` out
"""

import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.loading import LlamaModel, load
from backends.engines.llamacpp.recognition import recognise
from backends.engines.llamacpp.sampling import Link
from benchmarks.load import prompts
from config.engines import LlamaCppOptions

NEVER = float("-inf")
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


class RawLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop computes: rounds of `streams` answers, each with a prompt of its own."""

    model: str  # path of a GGUF file
    streams: int
    threads: int
    seconds: float  # measured, after `warm_up` seconds of the same
    warm_up: float
    max_tokens: int
    temperature: float


class RawSpeed(msgspec.Struct, frozen=True):
    """Drawn tokens per second; the time that prompts take is in it, as it is for the servers."""

    tokens_per_second: float


class Loop:
    """All sequences go in step: their prompts together, then a token of each at a time."""

    def __init__(self, loaded: LlamaModel, spec: RawLoad) -> None:
        self._loaded = loaded
        self._spec = spec
        self._prompts = [prompts(stream) for stream in range(spec.streams)]
        self._batch = api.llama_batch_init(loaded.options.batch_size, 0, 1)
        self._tokens = np.ctypeslib.as_array(self._batch.token, (loaded.options.batch_size,))
        self._positions = np.ctypeslib.as_array(self._batch.pos, (loaded.options.batch_size,))
        self._wanted = np.ctypeslib.as_array(self._batch.logits, (loaded.options.batch_size,))
        self._chains = [_chain(loaded, spec.temperature) for _ in range(spec.streams)]

    def round(self) -> int:
        """Compute one answer per sequence. Returns how many tokens were drawn."""
        streams = self._spec.streams
        memory = api.llama_get_memory(self._loaded.context)
        api.llama_memory_clear(memory, False)  # noqa: FBT003 - C functions have no names for it
        lengths, rows = self._feed_prompts()
        positions, tokens = self._positions[:streams], self._tokens[:streams]
        tokens[:] = self._draw(rows)
        positions[:] = lengths
        self._wanted[:streams] = 1
        for stream in range(streams):
            self._batch.seq_id[stream][0] = stream
        self._batch.n_tokens = streams
        self._answer(tokens, positions)
        return streams * self._spec.max_tokens

    def _answer(
        self, tokens: np.typing.NDArray[np.int32], positions: np.typing.NDArray[np.int32]
    ) -> None:
        """The hot loop, in locals."""
        decode, sample, context, batch = (
            api.llama_decode,
            api.llama_sampler_sample,
            self._loaded.context,
            self._batch,
        )
        chains = list(enumerate(self._chains))
        for _ in range(self._spec.max_tokens - 1):
            if decode(context, batch):
                raise RuntimeError("llama_decode failed")
            tokens[:] = [sample(chain, context, row) for row, chain in chains]
            positions += 1

    def _feed_prompts(self) -> tuple[list[int], list[int]]:
        """Compute all prompts in one batch. Returns their lengths and the rows of their ends."""
        lengths, rows, row = [], [], 0
        for stream, texts in enumerate(self._prompts):
            tokens = self._loaded.vocabulary.tokenize(PROMPT.format(next(texts)), special=True)
            end = row + len(tokens)
            self._tokens[row:end] = tokens
            self._positions[row:end] = np.arange(len(tokens))
            self._wanted[row:end] = 0
            self._wanted[end - 1] = 1
            for index in range(row, end):
                self._batch.n_seq_id[index] = 1
                self._batch.seq_id[index][0] = stream
            lengths.append(len(tokens))
            rows.append(end - 1)
            row = end
        self._batch.n_tokens = row
        if api.llama_decode(self._loaded.context, self._batch):
            raise RuntimeError("llama_decode failed")
        return lengths, rows

    def _draw(self, rows: list[int]) -> list[int]:
        return [
            api.llama_sampler_sample(chain, self._loaded.context, row)
            for chain, row in zip(self._chains, rows, strict=True)
        ]


def _chain(loaded: LlamaModel, temperature: float) -> Link:
    """What the servers are asked for: no end of text, a temperature, nothing truncated."""
    vocabulary = loaded.vocabulary
    bans = [api.llama_logit_bias(token, NEVER) for token in vocabulary.ends]
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    entries = (api.llama_logit_bias * len(bans))(*bans)
    api.llama_sampler_chain_add(
        chain, api.llama_sampler_init_logit_bias(vocabulary.size, len(bans), entries)
    )
    api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(temperature))
    api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(1))
    return chain


def measure(spec: RawLoad) -> RawSpeed:
    """Whole rounds until the time is over. Raises what loading raises."""
    files = recognise(Path(spec.model))
    assert files is not None
    loop = Loop(load(files, LlamaCppOptions(threads=spec.threads), lambda _done: True), spec)
    start = time.perf_counter()
    while time.perf_counter() - start < spec.warm_up:
        loop.round()
    start, drawn = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < spec.seconds:
        drawn += loop.round()
    return RawSpeed(drawn / spent)


def main() -> None:
    """Read what to compute, compute, write how fast."""
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=RawLoad)
    sys.stdout.buffer.write(msgspec.json.encode(measure(spec)))


if __name__ == "__main__":
    main()
