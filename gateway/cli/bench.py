"""`roundhouse bench`: speed of one model on a running server, measured by a client."""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from statistics import median

import anyio
import httpx
import msgspec
from rich.console import Console

from gateway.cli import CommandFailed
from gateway.cli.remote import Remote, bearer, refusal

LONG_PROMPT = 400  # words of the prompt whose prefill is measured
LONG_WAIT = 2.0  # seconds until one token comes: more than an answer takes
_ROW = "{:<9}{:<10}{:<10}{}"


class BenchFigures(msgspec.Struct, frozen=True):
    """One answer. `first`: seconds to its first text; tokens by the server's own count."""

    first: float
    seconds: float
    tokens: int
    prompt_tokens: int


def run(arguments: Namespace) -> int:
    """One row for each number of streams, as it comes."""
    counts = _counts(arguments.streams)
    with Remote(arguments.url, arguments.key) as server:
        asked = time.perf_counter()
        server.post("/v1/completions", {"model": arguments.model, "prompt": "a", "max_tokens": 1})
        if (waited := time.perf_counter() - asked) > LONG_WAIT:
            print(
                f"waited {waited:.1f} s: the model was loaded, or others were served",
                file=sys.stderr,
            )
    print(_ROW.format("STREAMS", "TTFT P50", "TOKENS/S", "PREFILL TOKENS/S"), flush=True)
    try:
        anyio.run(_rows, counts, arguments)
    except ExceptionGroup as failed:  # one request fails: the others are given up
        raise CommandFailed(str(failed.exceptions[0])) from None
    return 0


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if not all(1 <= count <= 1_000 for count in counts):
        raise CommandFailed(f"--streams {text}: expected numbers from 1 to 1000, as in 1,4,16")
    return counts


async def _rows(counts: Sequence[int], arguments: Namespace) -> None:
    """In one event loop: between two of them Ctrl-C could break off the making of the second."""
    with Console(stderr=True).status("") as status:
        for count in counts:
            status.update(f"{count} of {max(counts)} streams …")
            print(_ROW.format(*await _row(count, arguments)).rstrip(), flush=True)


async def _row(count: int, arguments: Namespace) -> tuple[str, ...]:
    """Short prompts with long answers, then long prompts with short answers."""
    answers = await _round(arguments, arguments.tokens, count, _short)
    first = median(one.first for one in answers)
    speed = sum(one.tokens for one in answers) / max(one.seconds for one in answers)
    prompts = await _round(arguments, 1, count, _long)
    prefill = sum(one.prompt_tokens for one in prompts) / max(one.first for one in prompts)
    return str(count), f"{1_000 * first:.1f} ms", f"{speed:,.0f}", f"{prefill:,.0f}"


def _short(index: int) -> str:
    return f"Request {index}. Count from one to a thousand:"


def _long(index: int) -> str:
    """Not in any cache: each run begins otherwise."""
    return f"{time.time_ns()}-{index} " + " ".join(["word"] * LONG_PROMPT)


async def _round(
    arguments: Namespace, tokens: int, count: int, prompt: Callable[[int], str]
) -> list[BenchFigures]:
    """`count` requests at once, each for `tokens`."""
    answers: list[BenchFigures] = []
    async with httpx.AsyncClient(
        base_url=arguments.url,
        headers=bearer(arguments.key),
        timeout=None,  # noqa: S113 - a busy server may take its time
        limits=httpx.Limits(max_connections=None),
    ) as client:

        async def one(index: int) -> None:
            answers.append(await _answer(client, arguments.model, tokens, prompt(index)))

        async with anyio.create_task_group() as tasks:
            for index in range(count):
                tasks.start_soon(one, index)
    return answers


async def _answer(client: httpx.AsyncClient, model: str, tokens: int, prompt: str) -> BenchFigures:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first = time.perf_counter(), 0.0
    usage: dict[str, int] = {}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.is_error:
            await answer.aread()
            raise CommandFailed(refusal(answer))
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - started
                usage = msgspec.json.decode(line[6:]).get("usage") or usage
    if not usage:
        raise CommandFailed("the server doesn't count a stream's tokens")
    return BenchFigures(
        first=first,
        seconds=time.perf_counter() - started,
        tokens=usage["completion_tokens"],
        prompt_tokens=usage["prompt_tokens"],
    )
