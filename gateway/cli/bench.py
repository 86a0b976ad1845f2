"""`roundhouse bench`: what one model on a running server gives, as a client sees it."""

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from statistics import median

import anyio
import httpx
import msgspec

from gateway.cli.errors import CommandFailed
from gateway.cli.listing import table
from gateway.cli.remote import Remote

LONG_PROMPT = 400  # words of the prompt whose prefill is measured


class Measured(msgspec.Struct, frozen=True):
    """One answer. `first`: seconds to its first text; tokens by the server's own count."""

    first: float
    seconds: float
    tokens: int
    prompt_tokens: int


def run(arguments: Namespace) -> int:
    """One row for each number of streams, and one for the prefill."""
    counts = _counts(arguments.streams)
    with Remote(arguments.url, arguments.key) as server:
        server.post("/v1/completions", {"model": arguments.model, "prompt": "a", "max_tokens": 1})
    rows = [_row(count, anyio.run(_round, arguments, count, _short)) for count in counts]
    table(("STREAMS", "TTFT P50", "TOKENS/S"), rows)
    prefill = anyio.run(_round, arguments, 1, _long)[0]
    print(f"prefill: {prefill.prompt_tokens / prefill.first:,.0f} tokens/s")
    return 0


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if not all(1 <= count <= 1_000 for count in counts):
        raise CommandFailed(f"--streams {text}: expected numbers from 1 to 1000, as in 1,4,16")
    return counts


def _row(count: int, answers: Sequence[Measured]) -> tuple[str, str, str]:
    first = median(one.first for one in answers)
    speed = sum(one.tokens for one in answers) / max(one.seconds for one in answers)
    return str(count), f"{1_000 * first:.1f} ms", f"{speed:,.0f}"


def _short(index: int) -> str:
    return f"Request {index}. Count from one to a thousand:"


def _long(index: int) -> str:
    """Not in any cache: each run begins otherwise."""
    return f"{time.time_ns()}-{index} " + " ".join(["word"] * LONG_PROMPT)


async def _round(arguments: Namespace, count: int, prompt: Callable[[int], str]) -> list[Measured]:
    answers: list[Measured] = []
    headers = {"Authorization": f"Bearer {arguments.key}"} if arguments.key else {}
    async with httpx.AsyncClient(base_url=arguments.url, headers=headers, timeout=None) as client:  # noqa: S113

        async def one(index: int) -> None:
            answers.append(await _answer(client, arguments, prompt(index)))

        async with anyio.create_task_group() as tasks:
            for index in range(count):
                tasks.start_soon(one, index)
    return answers


async def _answer(client: httpx.AsyncClient, arguments: Namespace, prompt: str) -> Measured:
    body = {
        "model": arguments.model,
        "prompt": prompt,
        "max_tokens": arguments.tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first = time.perf_counter(), 0.0
    usage: dict[str, int] = {}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.is_error:
            raise CommandFailed((await answer.aread()).decode(errors="replace"))
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - started
                usage = msgspec.json.decode(line[6:]).get("usage") or usage
    return Measured(
        first=first,
        seconds=time.perf_counter() - started,
        tokens=usage["completion_tokens"],
        prompt_tokens=usage["prompt_tokens"],
    )
