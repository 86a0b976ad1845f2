"""What every container that makes vectors or ranks promises. A backend's test calls each promise
with its own model. Nothing here knows an engine.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import anyio
import msgspec
import pytest

from backends.contract.encoder import EncoderContainer, EncoderInput, values
from backends.contract.errors import InputTooLong, InvalidJob

TEXTS = ("A man is eating.", "Grüße aus Köln", "a", "The quick brown fox jumps over it. " * 6)


class EncoderSubject(msgspec.Struct, frozen=True):
    """A loaded container. `tolerance`: of a value, between passes of other texts."""

    container: EncoderContainer
    tolerance: float = 1e-3


def inputs(subject: EncoderSubject, texts: Sequence[str] = TEXTS) -> list[EncoderInput]:
    container = subject.container
    if container.info.task == "rank":
        return [container.read_pair("Who eats?", text) for text in texts]
    return [container.read(text) for text in texts]


def close(one: bytes, other: bytes, tolerance: float) -> bool:
    pairs = zip(values(one), values(other), strict=True)
    return all(math.isclose(a, b, abs_tol=tolerance) for a, b in pairs)


async def says_what_it_is(subject: EncoderSubject) -> None:
    """Its task, and the width of what it gives."""
    info = subject.container.info
    width = info.vectors.width if info.vectors else 1
    assert info.task == ("embed" if info.vectors else "rank")
    for vector in await subject.container.encode(inputs(subject)):
        assert len(values(vector)) == width
        assert all(map(math.isfinite, values(vector)))
        if info.vectors and info.vectors.normalized:
            assert math.isclose(math.hypot(*values(vector)), 1, abs_tol=1e-3)


async def together_as_alone(subject: EncoderSubject) -> None:
    """A text's vector doesn't depend on its company, and the order is kept."""
    given = inputs(subject) * 3
    together = await subject.container.encode(given)
    for one, vector in list(zip(given, together, strict=True))[: len(TEXTS)]:
        (alone,) = await subject.container.encode([one])
        assert close(alone, vector, subject.tolerance)
    first, *others = (together[at :: len(TEXTS)] for at in range(len(TEXTS)))
    assert all(close(a, b, subject.tolerance) for a, b in pairwise(first))
    if subject.container.info.task == "embed":
        assert not any(close(first[0], other[0], subject.tolerance) for other in others)


async def many_at_once(subject: EncoderSubject) -> None:
    """More texts than one pass takes, of several requests at the same time."""
    given = inputs(subject)
    expected = await subject.container.encode(given)
    found: dict[int, Sequence[bytes]] = {}

    async def ask(number: int) -> None:
        found[number] = await subject.container.encode(given * 20)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(ask, number)
    for vectors in found.values():
        assert len(vectors) == len(given) * 20
        for at, vector in enumerate(vectors):
            assert close(vector, expected[at % len(given)], subject.tolerance)


async def leaving_frees_the_device(subject: EncoderSubject) -> None:
    """Who leaves is gone when the call has ended; the next one is served."""
    for _ in range(3):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(subject.container.encode, inputs(subject) * 100)
                await anyio.lowlevel.checkpoint()
                scope.cancel()
    assert len(await subject.container.encode(inputs(subject))) == len(TEXTS)


async def too_long_is_refused(subject: EncoderSubject) -> None:
    """Before anything runs, and by its place; what was cut fits."""
    container, long = subject.container, "word " * 9_000
    length = container.info.context_length

    def read(most: int | None = None) -> EncoderInput:
        if container.info.task == "rank":
            return container.read_pair("Who?", long, most)
        return container.read(long, most)

    with pytest.raises(InputTooLong) as caught:
        await container.encode([*inputs(subject), read()])
    assert caught.value.param == f"input[{len(TEXTS)}]"
    cut = read(length)
    assert len(cut.tokens) == length
    assert cut.cut == len(read().tokens) - length
    assert cut.tokens[-1] == read().tokens[-1], "the closing token stays"
    assert len(await container.encode([cut])) == 1


async def unknown_tokens_are_refused(subject: EncoderSubject) -> None:
    """A token that the model doesn't have, none at all, and half a pair never reach an engine."""
    size = subject.container.info.vocab_size
    for tokens, second in (((size,), 0), ((-1,), 0), ((), 0), ((1, 2), 2), ((2**70,), 0)):
        with pytest.raises(InvalidJob) as caught:
            await subject.container.encode([EncoderInput(tokens, second)])
        assert caught.value.param == "input[0]"


async def closing_twice_is_harmless(subject: EncoderSubject) -> None:
    """The last of all promises."""
    await subject.container.aclose()
    await subject.container.aclose()


PROMISES = (
    says_what_it_is,
    together_as_alone,
    many_at_once,
    leaving_frees_the_device,
    too_long_is_refused,
    unknown_tokens_are_refused,
    closing_twice_is_harmless,
)
