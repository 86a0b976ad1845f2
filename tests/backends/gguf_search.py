"""Changes every value and tensor of a GGUF file, one at a time, and loads what it became in a
process of its own: `python -m tests.backends.gguf_search SOURCE PLACE [MODEL]` prints, as JSON,
what became of each: "computed", "refused", or how the process ended. With MODEL the file is its
projector.
"""

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from backends.contract import catalog
from backends.contract.catalog import ModelFiles
from backends.contract.errors import BackendError
from backends.contract.protocol import Generation, Image, Pixels
from backends.contract.samplers import Sampling
from backends.engines.llamacpp import container as llamacpp
from backends.engines.llamacpp import trial
from config.engines import LlamaCppOptions
from tests.backends import gguf_raw
from tests.backends.gguf_raw import ARRAY, BOOL, FLOAT32, INT32, STRING, UINT32, RawFile, RawTensor

OPTIONS = LlamaCppOptions(
    max_concurrent=2, context_length=64, batch_size=64, threads=1, trial="never"
)
SECONDS = 60  # of the processor
SECONDS_OF_TRIAL = 20.0  # for what never ends
INTEGERS = {0: (0, 2**8), 1: (-(2**7), 2**7), 2: (0, 2**16), 3: (-(2**15), 2**15), 4: (0, 2**32)}
INTEGERS |= {5: (-(2**31), 2**31), 10: (0, 2**64), 11: (-(2**63), 2**63)}
TYPES = (0, 1, 2, 8, 9, 12, 14, 15, 16, 24, 26, 28, 29, 30, 34, 39, 77)
TOKENIZERS = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "none", "no_vocab")
FURTHER: dict[str, tuple[int, tuple[Any, ...]]] = {
    "A.expert_count": (UINT32, (1, 4, 100_000)),
    "A.expert_used_count": (UINT32, (1, 4)),
    "A.expert_group_count": (UINT32, (1, 3)),
    "A.nextn_predict_layers": (UINT32, (1, 3, 1_000)),
    "A.pooling_type": (UINT32, (0, 1, 2, 3, 4, 5, 77, 2**32 - 1)),
    "A.embedding_length_out": (UINT32, (0, 1, 1_000_003)),
    "A.attention.key_length": (UINT32, (0, 1, 7, 31, 33, 256, 2**31)),
    "A.attention.value_length": (UINT32, (0, 1, 7, 31, 33, 256, 2**31)),
    "A.attention.head_count_kv": (UINT32, (0, 1, 3, 5, 2**31)),
    "A.attention.sliding_window": (UINT32, (0, 1, 5, 2**31)),
    "A.attention.sliding_window_pattern": (UINT32, (0, 1, 2)),
    "A.attention.causal": (BOOL, (True, False)),
    "A.rope.dimension_count": (UINT32, (0, 1, 3, 16, 31, 34, 1_000, 2**31)),
    "A.rope.scaling.type": (STRING, (b"yarn", b"linear", b"x", b"")),
    "A.rope.scaling.factor": (FLOAT32, (0.0, -1.0, math.nan, math.inf)),
    "A.rope.freq_base": (FLOAT32, (0.0, -1.0, math.nan, math.inf)),
    "A.classifier.output_labels": (ARRAY, ((STRING, []), (STRING, [b"a", b"b"]))),
    "general.alignment": (UINT32, (0, 1, 3, 8, 64, 2**31)),
    "split.count": (2, (0, 1, 2, 65_535)),
    "tokenizer.ggml.bos_token_id": (UINT32, (0, 10**6, 2**32 - 1)),
    "tokenizer.ggml.add_bos_token": (BOOL, (True, False)),
    "tokenizer.ggml.add_eos_token": (BOOL, (True,)),
    "tokenizer.ggml.token_type_count": (UINT32, (0, 1, 3, 2**32 - 1)),
    "tokenizer.chat_template.rerank": (STRING, (b"{query}{document}", b"\xff")),
}
FURTHER_TENSORS = (
    ("output.weight", 0, (128, 7)), ("rope_freqs.weight", 0, (16,)), ("rope_freqs.weight", 1, (9,)),
    ("blk.0.attn_q.bias", 1, (128,)), ("blk.0.attn_output.bias", 1, (128,)), ("x" * 70, 0, (1,)),
    ("blk.0.attn_q_norm.weight", 1, (32,)), ("cls.output.weight", 1, (128, 1)), ("y", 0, (9,)),
)  # fmt: skip
Changes: TypeAlias = Iterator[tuple[str, RawFile]]


def changes(file: RawFile) -> Changes:
    yield "unchanged", file
    for key, entry in file.entries.items():
        yield f"{key} left out", file.without(key)
        for kind, value in values(key, entry.kind, entry.value):
            yield f"{key} = {str(value)[:60]} ({kind})", file.with_value(key, kind, value)
    own = file.entries["general.architecture"].value.decode()
    for key, (kind, several) in FURTHER.items():
        for value in several:
            yield f"{key} := {value}", file.with_value(key.replace("A.", f"{own}.", 1), kind, value)
    for place, tensor in enumerate(file.tensors):
        if not tensor.name.startswith("blk.1."):  # as the other layers
            yield from tensor_changes(file, place, tensor)
    for name, kind, shape in FURTHER_TENSORS:
        yield f"{name} {kind} {shape} added", file.added(RawTensor(name, kind, shape))


def values(key: str, kind: int, value: Any) -> Iterator[tuple[int, Any]]:
    """What else could stand there, and as what."""
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        for other in (0, 1, 2, 3, value - 1, value + 1, value * 2, value * 7, -1, 10**6, 2**31):
            if low <= other < high:
                yield kind, other
        yield from (
            (INT32, -1),
            (STRING, b"x"),
            (FLOAT32, 1.5),
            (ARRAY, (UINT32, [])),
            (BOOL, True),
        )
        yield ARRAY, (UINT32, [1] * 600)
    elif kind == FLOAT32:
        yield from ((kind, one) for one in (0.0, -1.0, 1e30, math.inf, math.nan))
    elif kind == STRING:
        yield from ((kind, one) for one in (b"", b"x", b"x" * 10**6, b"\xff\xfe", b"a\0b"))
        if key == "tokenizer.ggml.model":
            yield from ((kind, one.encode()) for one in TOKENIZERS)
    elif kind == ARRAY:
        yield from ((kind, one) for one in arrays(*value))


def arrays(item: int, found: list[Any]) -> Iterator[tuple[int, list[Any]]]:
    yield from ((item, one) for one in ([], found[:-1], found[:1], found + found[-1:]))
    if item == STRING:
        yield from ((item, one) for one in (found[:1] + found[:-1], [b"a"] * len(found)))
        yield from ((item, [b"\xff" + one for one in found]), (UINT32, [1] * len(found)))
        yield item, [b"y" * 10**6, *found[1:]]
    else:
        yield from ((item, [one] * len(found)) for one in range(8))
        yield FLOAT32, [1.0] * len(found)


def tensor_changes(file: RawFile, place: int, tensor: RawTensor) -> Changes:
    def put(*tensors: RawTensor) -> RawFile:
        left = [*file.tensors[:place], *tensors, *file.tensors[place + 1 :]]
        return RawFile(file.entries, left)

    yield f"{tensor.name} left out", put()
    yield f"{tensor.name} twice", put(tensor, tensor)
    for kind in TYPES:
        yield f"{tensor.name} as {kind}", put(msgspec.structs.replace(tensor, kind=kind))
    first, *rest = tensor.shape
    for shape in ((first + 1, *rest), (0, *rest), (*rest, first), (*tensor.shape, 2), (), (2**40,)):
        yield f"{tensor.name} {shape}", put(msgspec.structs.replace(tensor, shape=shape))
    yield (
        f"{tensor.name} no numbers",
        put(msgspec.structs.replace(tensor, data=b"\xff" * tensor.size)),
    )


async def survive(files: ModelFiles, options: LlamaCppOptions, seconds: float) -> None:
    """Try it as a load does, whatever was tried before. Raises BackendError."""
    await trial.check(files, msgspec.structs.replace(options, trial="always"), seconds)


async def compute(path: Path, seconds: float) -> None:
    """Load it and have it read and write a little. Raises BackendError."""
    files = catalog.recognise(path)
    await survive(files, OPTIONS, seconds)
    if files.task != "generate":
        encoder = await llamacpp.load_encoder(files, OPTIONS, lambda _: None)
        inputs = [encoder.read(text) for text in ("hello abc", "a", "")]
        if files.task == "rank":
            inputs.append(encoder.read_pair("ab", "cd"))
        await encoder.encode(inputs)
        await encoder.aclose()
        return
    container = await llamacpp.load(files, OPTIONS, lambda _: None)
    prompt = container.tokenize("Hello <b> 12 \n\n Grüße", special=True) or (1,)
    for temperature in (0, 1):
        sampling = Sampling(temperature=temperature)
        job = Generation(prompt=prompt, sampling=sampling, max_tokens=3)
        async with container.generate(job) as outputs:
            async for _ in outputs:
                pass
    container.detokenize(range(min(container.info.vocab_size, 50)))
    await container.aclose()


async def see(model: Path, projector: Path, seconds: float) -> None:
    """Load both and have the model read a picture. Raises BackendError."""
    options = msgspec.structs.replace(OPTIONS, mmproj=str(projector), context_length=256)
    files = catalog.recognise(model)
    await survive(files, options, seconds)
    container = await llamacpp.load(files, options, lambda _: None)
    prompt = container.tokenize(f"a{container.info.image_marker}b", special=True)
    image = Image(32, 48, Pixels(bytes(range(256)) * 18))
    job = Generation(prompt=prompt, sampling=Sampling(), max_tokens=2, images=(image,))
    async with container.generate(job) as outputs:
        async for _ in outputs:
            pass
    await container.aclose()


def tried(path: Path, model: Path | None = None, seconds: float = SECONDS_OF_TRIAL) -> str:
    """What becomes of it in a child of this process. `model`: whose projector it is; `seconds`:
    that a trial may take.
    """
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.environ["GGML_NO_BACKTRACE"] = "1"
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            asyncio.run(see(model, path, seconds) if model else compute(path, seconds))
        except BackendError:
            os._exit(1)
        except BaseException:  # noqa: BLE001 - whatever it is, it is no refusal
            os._exit(2)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "computed", 1: "refused"}.get(code, f"ended with {code}")


def main(source: str, place: str, model: str = "") -> None:
    path, file, seen = Path(place), gguf_raw.read(Path(source)), Path(model) if model else None
    found = {name: tried(gguf_raw.write(one, path), seen) for name, one in changes(file)}
    print(json.dumps(found))  # noqa: T201 - see above


if __name__ == "__main__":
    main(*sys.argv[1:])
