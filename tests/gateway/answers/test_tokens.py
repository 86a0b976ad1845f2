"""Prompts: where they are made, what they may take, and what a client who leaves leaves behind."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from backends.contract.protocol import ModelContainer, ModelInfo, SpecialTokens
from gateway.answers.interpreter import MOST_INTERPRETERS, Interpreters, Templates
from gateway.answers.tokens import LONG_TEXT, Tokens, refuse_too_long
from gateway.terms.errors import ContextLengthExceeded
from gateway.terms.request import ChatRequest
from gateway.terms.tasks import Abandoned, Wanted, WorkerThreads
from tests.gateway.answers.test_interpreter import entry, info
from tests.hang import HANG

pytestmark = pytest.mark.anyio

INFO = ModelInfo(
    backend="test",
    format="test",
    architecture="llama",
    context_length=100,
    max_concurrent=1,
    vocab_size=257,
    size_bytes=0,
    adds_bos=True,
    special=SpecialTokens(bos="<s>", control=("<s>",)),
    longest_token_bytes=16,
)


class Bytes:
    """A tokenizer of bytes with one control token, 256. Notes its calls and their threads."""

    info = INFO

    def __init__(self) -> None:
        self.calls: list[tuple[str, threading.Thread]] = []

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        self.calls.append((text, threading.current_thread()))
        if special and text.startswith("<s>"):
            return (256, *text[3:].encode())
        return tuple(text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode()


def made(container: Bytes) -> ModelContainer:
    return container  # type: ignore[return-value] # as far as tokens go


def tokens() -> Tokens:
    return Tokens(WorkerThreads(2), Interpreters(Templates(None)), allow_control_tokens=False)


@pytest.mark.parametrize(
    ("text", "special", "add_bos", "bos"),
    [
        ("a", True, None, True),
        ("<s>a", True, None, True),
        ("a", False, None, True),
        ("a", True, False, False),
        ("a", False, False, False),
    ],
)
async def test_a_text_has_one_bos_where_the_model_wants_it(
    text: str, special: bool, add_bos: bool | None, bos: bool
) -> None:
    found = await tokens().of(made(Bytes()), text, special=special, add_bos=add_bos)
    assert found == ((256, 97) if bos else (97,))


async def test_long_texts_are_tokenized_beside_the_event_loop() -> None:
    short, long = Bytes(), Bytes()
    long.info = msgspec.structs.replace(INFO, context_length=10**6)
    await tokens().of(made(short), "short")
    await tokens().of(made(long), "x" * LONG_TEXT)
    assert short.calls[0][1] is threading.current_thread()
    assert long.calls[0][1] is not threading.current_thread()


async def test_what_cant_fit_is_refused_before_it_is_tokenized() -> None:
    container = Bytes()
    with pytest.raises(ContextLengthExceeded, match=r"at least 101 tokens.*holds 100"):
        await tokens().of(made(container), "x" * 1_601, param="prompt")
    assert not container.calls
    refuse_too_long(INFO, "x" * 1_600, "prompt")
    with pytest.raises(ContextLengthExceeded):
        refuse_too_long(INFO, "漢" * 534, "prompt")


async def test_a_caller_who_leaves_goes_at_once_and_the_thread_stops_between_pieces() -> None:
    threads = WorkerThreads(1)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    found: list[bool] = []

    def work(wanted: Wanted) -> None:
        begun.set()
        go_on.wait(HANG)
        found.append(wanted())
        ended.set()
        raise Abandoned

    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(threads.run, work)
            await anyio.to_thread.run_sync(begun.wait)
            tasks.cancel_scope.cancel()  # returns though the thread still works
        go_on.set()
        await anyio.to_thread.run_sync(ended.wait)
    assert found == [False]


async def test_abandoned_threads_count_until_they_end() -> None:
    threads = WorkerThreads(1)
    begun, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def slow(_wanted: Wanted) -> None:
        begun.set()
        go_on.wait(HANG)
        ran.append("slow")

    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(threads.run, slow)
            await anyio.to_thread.run_sync(begun.wait)
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(threads.run, lambda _wanted: ran.append("next"))
            await anyio.lowlevel.checkpoint()
            assert ran == []
            go_on.set()
    assert ran == ["slow", "next"]


async def test_interpreters_are_bounded(tmp_path: Path) -> None:
    known, asked = Interpreters(Templates(None)), ChatRequest(model="", messages=())

    def loaded(template: str) -> Any:
        return SimpleNamespace(info=info(template))  # all that is read of it

    last = None
    for number in range(MOST_INTERPRETERS + 5):
        last = await known.of(loaded(f"{number}{{{{ messages[0].content }}}}"), entry(), asked)
    assert len(known._known) == MOST_INTERPRETERS  # noqa: SLF001 - the promise is about memory
    template = f"{MOST_INTERPRETERS + 4}{{{{ messages[0].content }}}}"
    again = await known.of(loaded(template), entry(), asked)
    assert again is last
    oldest = "5{{ messages[0].content }}"
    used = await known.of(loaded(oldest), entry(), asked)
    await known.of(loaded("another"), entry(), asked)
    assert await known.of(loaded(oldest), entry(), asked) is used, "it was used meanwhile"
