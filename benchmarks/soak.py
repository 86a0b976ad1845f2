"""Memory and threads of a server that swaps models for a long time, once a while.

    python -m benchmarks.soak 1800 [--pause 1.0]

Several models of llama.cpp and transformers that don't fit together answer a few streams at random,
so that one comes and another goes at nearly every request. For each sample the streams pause and
all models are unloaded, so that what is left is the server's own. `--pause`: seconds that a stream
rests after each answer, where others need the machine. After a warm-up that is to stay
within 1 %, and the number of threads the same. Memory is read from Linux' /proc.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio
import httpx
import msgspec

import bundled

MODELS = 4  # of each engine; of all of them a few fit
STREAMS = 4
BUDGET = 160 << 20  # bytes for models
WARM_UP = 0.25  # of the duration
EVERY = 24  # samples over the duration


class Sample(msgspec.Struct, frozen=True):
    """At one moment: seconds since the start; bytes resident, and those of them that no file is
    behind; threads by their names.
    """

    seconds: float
    resident: int
    anonymous: int
    threads: Counter[str]


def configuration(folder: Path) -> Path:
    """Models of different contexts, so that they differ in size."""
    paths = [bundled.GGUF] * MODELS + [bundled.SAFETENSORS] * MODELS
    models = [
        {"name": f"m{n}", "path": str(path), "options": {"context_length": 2048 - 128 * n}}
        for n, path in enumerate(paths)
    ]
    path = folder / "roundhouse.yaml"
    path.write_text(
        json.dumps(
            {
                "models": models,
                "swap": {"memory": {"cpu": BUDGET}, "min_stay": 0.0},
                "log": {"level": "warning"},
            }
        )
    )
    return path


def sample(pid: int, began: float) -> Sample:
    """What the process has now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in lines)
    resident, anonymous = (int(facts[name].split()[0]) << 10 for name in ("VmRSS", "RssAnon"))
    names = [(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()]
    return Sample(time.monotonic() - began, resident, anonymous, Counter(names))


async def soak(url: str, pid: int, seconds: float, rest: float) -> list[Sample]:
    """Keep it busy and look at it `EVERY` so often."""
    samples, began, answers = [], time.monotonic(), 0
    pause = anyio.Semaphore(STREAMS)

    async def client(number: int, web: httpx.AsyncClient) -> None:
        nonlocal answers
        dice = random.Random(number)
        while True:
            body = {
                "model": f"m{dice.randrange(2 * MODELS)}",
                "messages": [{"role": "user", "content": f"What is {dice.randrange(9)} + 3?"}],
                "max_tokens": 16,
            }
            async with pause:
                answer = await web.post(f"{url}/v1/chat/completions", json=body)
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                raise RuntimeError(answer.text)
            answers += 1
            await anyio.sleep(rest)

    # No connection is used again that has been idle nearly as long as uvicorn keeps it.
    limits = httpx.Limits(keepalive_expiry=1.0)
    async with (
        httpx.AsyncClient(timeout=120, limits=limits) as web,
        anyio.create_task_group() as tasks,
    ):
        for number in range(STREAMS):
            tasks.start_soon(client, number, web)
        for _ in range(EVERY):
            await anyio.sleep(seconds / EVERY)
            for _ in range(STREAMS):
                await pause.acquire()
            await web.post(f"{url}/unload", json={})
            samples.append(sample(pid, began))
            for _ in range(STREAMS):
                pause.release()
            threads = ", ".join(f"{name} {n}" for name, n in samples[-1].threads.items())
            print(
                f"{samples[-1].seconds:7.0f} s {samples[-1].resident / 2**20:8.1f} MiB, "
                f"anonymous {samples[-1].anonymous / 2**20:8.1f} MiB, {answers:6} answers, "
                f"threads: {threads}",
                flush=True,
            )
        tasks.cancel_scope.cancel()
    return samples


def main() -> None:
    """Start a server, soak it, print what it grew by."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=1800.0)
    parser.add_argument("--pause", type=float, default=0.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gateway.cli", "serve", "--port", "0", "--config"]
        path = configuration(Path(folder))
        with subprocess.Popen(
            [*command, str(path)], stdout=subprocess.PIPE, text=True, env={**os.environ}
        ) as server:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "listens on" in line)
            try:
                samples = anyio.run(soak, line.split()[-1], server.pid, asked.seconds, asked.pause)
            finally:
                server.terminate()
    settled = samples[int(len(samples) * WARM_UP) :]
    growth = settled[-1].resident / settled[0].resident - 1
    print(f"grown after the warm-up by {growth:.2%}")


if __name__ == "__main__":
    main()
