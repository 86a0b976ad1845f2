"""Grammars above the engines: compiled once, off everybody's way, and what they do to a job."""

import json
import re
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio import to_thread

from backends.contract.errors import GenerationFailed, InvalidJob
from backends.contract.protocol import Constraint, Generation, ModelContainer, ModelInfo
from backends.contract.samplers import Sampling
from backends.engines import constraints
from backends.engines.constraints import Grammars, Matcher
from backends.engines.driver import DrivenContainer
from config.engines import ScriptedOptions
from tests.backends.constraints import lark, regex, schema
from tests.backends.container_contract import GREEDY, Subject, job, run, text_of
from tests.backends.engines.test_scripted import load
from tests.hang import HANG

pytestmark = pytest.mark.anyio

PERSON = {
    "type": "object",
    "properties": {"first_name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["first_name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[ModelContainer]:
    loaded = await load(tmp_path, ScriptedOptions(max_concurrent=4))
    yield loaded
    await loaded.aclose()


async def said(container: ModelContainer, constraint: Constraint, **changes: object) -> str:
    subject = Subject(container, prompt="hello", long="long")
    pieces, ended = await run(container, job(subject, "hello", constraint=constraint, **changes))
    assert ended.cause == "end_token"
    return text_of(pieces)


async def test_a_script_is_held_to_its_grammar(container: ModelContainer) -> None:
    assert json.loads(await said(container, schema(PERSON)))["first_name"] == "Hello, and welcome."
    assert re.fullmatch("[a-z]{3}[0-9]+x", await said(container, regex("[a-z]{3}[0-9]+x")))
    assert await said(container, lark('start: "Hello, and welcome."')) == "Hello, and welcome."


async def test_forced_text_is_streamed_at_once(container: ModelContainer) -> None:
    subject = Subject(container, prompt="hello", long="long")
    name = lark('start: "Hello, and " /[a-z]+/ "."')
    pieces, _ = await run(container, job(subject, "hello", constraint=name))
    assert any(len(piece.tokens) >= len("ello, and ") for piece in pieces)


async def test_what_can_only_end_so_is_not_computed(container: ModelContainer) -> None:
    """A step for the first letter and none for the others."""
    assert isinstance(container, DrivenContainer)
    engine: Any = container.engine
    step, steps = engine.step, []

    def counted() -> Sequence[object]:
        steps.append(1)
        found: Sequence[object] = step()
        return found

    engine.step = counted
    whole = lark('start: "Hello, and welcome."')
    assert await said(container, whole) == "Hello, and welcome."
    assert len(steps) == 1
    subject = Subject(container, prompt="hello", long="long")
    pieces, ended = await run(container, job(subject, "hello", constraint=whole, stop=(", ",)))
    assert (text_of(pieces), ended.cause) == ("Hello", "stop_string")
    assert ended.completion_tokens == len("Hello, ")
    pieces, ended = await run(container, job(subject, "hello", constraint=whole, max_tokens=3))
    assert (text_of(pieces), ended.cause) == ("Hel", "max_tokens")


async def test_where_only_the_end_is_left_the_job_ends(container: ModelContainer) -> None:
    """Whatever else is asked of it."""
    for changes in ({"sampling": Sampling(ban_eos=True)}, {"min_tokens": 50}, {}):
        assert await said(container, regex("ab?"), **changes) in {"a", "ab"}


async def test_bans_hold_within_the_grammar(container: ModelContainer) -> None:
    banned = Sampling(temperature=0, banned_tokens=tuple(b"abc"))
    assert await said(container, regex("[a-d]"), sampling=banned) == "d"
    biased = Sampling(logit_bias=tuple((byte, float("-inf")) for byte in b"acd"))
    assert await said(container, regex("[a-d]"), sampling=biased) == "b"
    allowed = Sampling(allowed_tokens=tuple(b"xc"))
    assert await said(container, regex("[a-d]"), sampling=allowed) == "c"
    assert len(await said(container, regex("[ab]*"), min_tokens=7)) >= 7


async def test_a_job_whose_grammar_and_bans_leave_nothing_fails_alone(
    container: ModelContainer,
) -> None:
    none = Sampling(banned_tokens=tuple(b"ab"))
    other: list[str] = []
    subject = Subject(container, prompt="hello", long="long")

    async def beside() -> None:
        other.append(text_of((await run(container, job(subject, "long")))[0]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beside)
        with pytest.raises(InvalidJob, match="no token is left"):
            await said(container, regex("[ab]"), sampling=none)
    assert other[0].startswith("An engine stands")
    assert container.failure is None


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "{}",
        "not a grammar",
        '{"grammars":[]}',
        json.dumps({"grammars": [{"lark_grammar": "start: /("}]}),
    ],
)
async def test_a_grammar_that_is_none_is_refused(container: ModelContainer, grammar: str) -> None:
    with pytest.raises(InvalidJob, match="can't be enforced") as refused:
        await said(container, Constraint(grammar=grammar))
    assert refused.value.param == "response_format"


async def test_the_same_text_again_at_any_concurrency(container: ModelContainer) -> None:
    alone = await said(container, schema(PERSON))
    texts: list[str] = []

    async def one() -> None:
        texts.append(await said(container, schema(PERSON)))

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(one)
    assert texts == [alone] * 12


class Letters:
    """A vocabulary of bytes that can be held up while it is read."""

    info = ModelInfo(
        backend="scripted",
        format="script",
        architecture="letters",
        context_length=100,
        max_concurrent=1,
        vocab_size=257,
        size_bytes=0,
    )

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reading = threading.Event()
        self.read = 0

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        return tuple(text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()

    def piece(self, token: int) -> bytes:
        self.reading.set()
        assert self.open.wait(HANG)
        self.read += 1
        return bytes((token,)) if token < 256 else b""

    def ends(self, token: int) -> bool:
        return token == 256


JOB = Generation(prompt=(1,), sampling=GREEDY)


@pytest.fixture
async def letters() -> AsyncIterator[tuple[Letters, Grammars]]:
    vocabulary = Letters()
    made = Grammars(vocabulary)
    yield vocabulary, made
    vocabulary.open.set()
    await made.aclose()


async def test_text_is_forced_where_it_may_be(letters: tuple[Letters, Grammars]) -> None:
    """Not where a client wants its log probabilities, or bans what might be forced."""
    vocabulary, made = letters
    vocabulary.open.set()
    whole, each = lark('start: "Hello"'), lark('start: "Hello"', fast_forward=False)
    with_logprobs = msgspec.structs.replace(JOB, logprobs=0)
    picky = msgspec.structs.replace(JOB, sampling=Sampling(banned_tokens=(5,)))
    for asked, constraint, forced in [
        (JOB, whole, tuple(b"ello")),
        (JOB, each, ()),
        (with_logprobs, whole, ()),
        (picky, whole, ()),
    ]:
        matcher = await made.matcher(asked, constraint)
        matcher.take(ord("H"))
        assert matcher.force() == forced
        assert not matcher.stopped
        for token in b"ello":
            matcher.take(token)
        assert matcher.stopped


async def test_an_answer_goes_on_where_its_grammar_takes_too_much(
    letters: tuple[Letters, Grammars],
) -> None:
    """A lexer keeps states for each character that it counts."""
    vocabulary, made = letters
    vocabulary.open.set()
    matcher = await made.matcher(JOB, regex("[a-z é]{1,30000}!"))
    for _ in range(25_000):
        matcher.take(ord("a"))
        matcher.allowed()
        if matcher.let_go:
            break
    assert "too many states" in matcher.let_go
    assert matcher.fitting(b"?!") == 2
    assert matcher.allowed()[-1] == 1
    matcher.take(ord("?"))
    assert not matcher.stopped


async def test_a_grammar_that_took_too_much_is_made_anew_for_the_next(
    letters: tuple[Letters, Grammars],
) -> None:
    """Its copies share their lexer, which has no room left."""
    vocabulary, made = letters
    vocabulary.open.set()
    for character in "ab":
        matcher = await made.matcher(JOB, regex("(a{1,30000}|b{1,30000})!"))
        held = 0
        while not matcher.let_go:
            matcher.take(ord(character))
            matcher.allowed()
            held += 1
        assert held > 10_000


async def test_what_was_drawn_ahead_is_forgotten_where_something_else_is_forced(
    letters: tuple[Letters, Grammars],
) -> None:
    vocabulary, made = letters
    vocabulary.open.set()
    matcher = await made.matcher(JOB, regex("a[a-z]*"))
    matcher.take(ord("a"))
    matcher.drawn(ord("b"))
    matcher.drawn(ord("c"))
    assert matcher.force() == ()
    matcher.take(ord("b"))
    assert matcher.force(tuple(b"xy")) == tuple(b"xy")
    matcher.take(ord("x"))
    matcher.take(ord("y"))
    matcher.rewind(3)
    assert matcher.force(tuple(b"z")) == tuple(b"z")
    with pytest.raises(GenerationFailed, match="grammar could not be followed"):
        matcher.force(tuple(b"1"))


async def test_many_jobs_compile_a_grammar_once(letters: tuple[Letters, Grammars]) -> None:
    vocabulary, made = letters
    found: list[Matcher] = []

    async def one() -> None:
        found.append(await made.matcher(JOB, regex("a+")))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(one)
        await to_thread.run_sync(vocabulary.reading.wait)
        vocabulary.open.set()
    assert len({id(matcher) for matcher in found}) == 20
    assert vocabulary.read == 257
    found[0].take(ord("a"))
    assert not found[0].allowed()[ord("b") >> 3] & 1 << (ord("b") & 7)


async def test_who_leaves_while_a_grammar_compiles_leaves_it_to_the_others(
    letters: tuple[Letters, Grammars],
) -> None:
    vocabulary, made = letters
    found: list[Matcher] = []

    async def stay() -> None:
        found.append(await made.matcher(JOB, regex("a+")))

    async with anyio.create_task_group() as staying:
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(made.matcher, JOB, regex("a+"))
            staying.start_soon(stay)
            await to_thread.run_sync(vocabulary.reading.wait)
            leaving.cancel_scope.cancel()
        assert not found
        vocabulary.open.set()
    assert found
    await made.matcher(JOB, regex("a+"))


async def test_nothing_is_left_of_a_grammar_that_nobody_waits_for(
    letters: tuple[Letters, Grammars],
) -> None:
    vocabulary, made = letters
    for _ in range(3):
        async with anyio.create_task_group() as leaving:
            for text in "abcdefgh":
                leaving.start_soon(made.matcher, JOB, regex(text))
            await to_thread.run_sync(vocabulary.reading.wait)
            leaving.cancel_scope.cancel()
    vocabulary.open.set()
    await made.matcher(JOB, regex("z"))
    assert vocabulary.read == 257


async def test_the_cache_is_bounded(letters: tuple[Letters, Grammars]) -> None:
    vocabulary, made = letters
    vocabulary.open.set()
    for number in range(constraints.KEPT + 10):
        await made.matcher(JOB, regex(f"a{number}"))
    assert made.kept == constraints.KEPT
    for number in range(constraints.KEPT_BYTES // 200_000 + 2):
        await made.matcher(JOB, lark('start: /[a-z]/ "' + "ab" * 100_000 + f'{number}"'))
    assert made.kept * 200_000 <= constraints.KEPT_BYTES


def _chain(link: str, last: str, levels: int) -> str:
    return "".join(link.format(n, n + 1) for n in range(levels)) + last.format(levels)


def _references(levels: int) -> Constraint:
    inner = {f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(levels)}
    return schema({"$ref": "#/$defs/d0", "$defs": {**inner, f"d{levels}": {"type": "null"}}})


DEEP = {
    "rules": lambda: lark("start: r0\n" + _chain("r{:x}: r{:x}\n", 'r{:x}: "a"\n', 17_000)),
    "terminals": lambda: lark("start: T0\n" + _chain("T{}: T{}\n", 'T{}: "a"\n', 16_000)),
    "sequences": lambda: lark("start: r0\n" + _chain('r{:x}: "a" r{:x}\n', 'r{:x}: "a"\n', 13_000)),
    "references": lambda: _references(5_500),
    "groups": lambda: lark("start: " + "(" * 130_000 + '"a"' + ")" * 130_000),
    "groups of a regex": lambda: regex("(" * 130_000 + "a" + ")" * 130_000),
    "arrays": lambda: Constraint(
        grammar='{"grammars":[{"json_schema":' + '{"items":' * 20_000 + "{}" + "}" * 20_000 + "}]}"
    ),
}


@pytest.mark.parametrize("name", DEEP)
async def test_no_depth_of_a_grammar_ends_the_process(
    letters: tuple[Letters, Grammars], name: str
) -> None:
    """llguidance recurses: with a thread's usual stack these end the process."""
    vocabulary, made = letters
    vocabulary.open.set()
    constraint = DEEP[name]()
    assert 200_000 < len(constraint.grammar) <= 256 << 10
    try:
        matcher = await made.matcher(JOB, constraint)
    except InvalidJob:
        return
    assert any(matcher.allowed())
