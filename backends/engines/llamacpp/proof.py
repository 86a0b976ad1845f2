"""A greedy answer of the bundled model, which an installed library must give: it loads, computes
and samples as the bindings believe. `python -m backends.engines.llamacpp.proof` ends an
installation of the prebuilt library; its status is 1 where the library can't be used.
"""

import asyncio
import sys
from contextlib import aclosing

import bundled
from backends.contract.catalog import recognise
from backends.contract.errors import BackendError
from backends.contract.protocol import Generation, Piece
from backends.contract.samplers import Sampling
from backends.machine import prebuilt
from config.engines import LlamaCppOptions

PROMPT = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
EXPECTED = "<think>\nThe user greets me.\n</think>"
MOST = 16  # tokens
OPTIONS = LlamaCppOptions(context_length=256, max_concurrent=1, gpu_layers=0)


async def answer() -> str:
    """What the model says. Raises BackendError."""
    from backends.engines.llamacpp import container  # noqa: PLC0415 - its import may fail

    load = container.load(recognise(bundled.GGUF), OPTIONS, lambda _: None)
    async with aclosing(await load) as loaded:
        prompt = loaded.tokenize(PROMPT, special=True)
        greedy = Sampling(temperature=0.0)
        job = Generation(prompt=tuple(prompt), sampling=greedy, max_tokens=MOST)
        async with loaded.generate(job) as outputs:
            return "".join([one.text async for one in outputs if isinstance(one, Piece)])


def main() -> int:
    """The exit status."""
    try:
        text = asyncio.run(answer())
    except BackendError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 1
    if not text.startswith(EXPECTED):
        print(f"a greedy answer is {text!r}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"llama.cpp answers: {prebuilt.described()}")  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
