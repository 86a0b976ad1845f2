"""Drafts change no answer: greedy text is equal token for token, what is sampled has the same
distribution, for every kind of memory llama.cpp has, whatever else a job has.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.driver import DrivenContainer
from backends.engines.engine import Token
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.engines.llamacpp.layout import TURNED_BACK
from backends.engines.speculation import STAYS, Answering, Speculation
from config.engines import LlamaCppOptions
from tests.backends.container_contract import GREEDY
from tests.backends.drafting import (
    ALWAYS,
    OFF,
    Oracle,
    answers,
    check_distribution,
    check_greedy_answers,
    same,
)
from tests.backends.engines.llamacpp import cache_kinds
from tests.backends.engines.llamacpp.test_kv_cache import GROWN, written
from tests.backends.pairs import quick

pytestmark = pytest.mark.anyio
EXACT = LlamaCppOptions(
    max_concurrent=4,
    context_length=160,
    threads=1,
    cache_type_k="f32",
    cache_type_v="f32",
    flash_attention="off",
    speculation=OFF,
)
NEVER = {"mamba", "granitehybrid"}  # llama.cpp keeps no earlier states of them
LAYOUTS = {
    "split": EXACT,
    "pool": msgspec.structs.replace(EXACT, cache_tokens=600),
    "small pool": msgspec.structs.replace(EXACT, cache_tokens=256),
}


@asynccontextmanager
async def container(
    path: Path, options: LlamaCppOptions, speculation: Speculation | None = None
) -> AsyncIterator[DrivenContainer]:
    files = catalog.recognise(path)
    assert files is not None
    loaded = loading.load(files, options, lambda _: True)
    made = DrivenContainer(LlamaCppEngine(loaded, speculation))
    try:
        yield made
    finally:
        await made.aclose()


KINDS = quick([*cache_kinds.KINDS, *GROWN], "llama", "lfm2", "mamba")


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("layout", quick(LAYOUTS, "small pool"))
async def test_greedy_answers_are_the_same(model: Path, layout: str) -> None:
    options = LAYOUTS[layout]
    drafting = msgspec.structs.replace(options, speculation=ALWAYS)
    architecture = catalog.recognise(model).architecture
    oracle = Oracle(even=layout == "split" or architecture in TURNED_BACK)
    async with container(model, options) as plain, container(model, drafting, oracle) as tested:
        assert tested.info.drafts == (architecture not in NEVER)
        await check_greedy_answers(plain, tested, oracle)


class Wrong(Oracle):
    """Whose drafts are wrong behind the first token, and go on behind an answer's last."""

    def _guess(self, one: Answering) -> list[int]:
        said = tuple(self._jobs[one.key].tokens)
        whole = next(known for prompt, known in self.known.items() if said[: len(prompt)] == prompt)
        left = whole[len(said) - self._jobs[one.key].prompt :]
        return [*left[:1], 98, 98][: one.room]


@pytest.mark.parametrize("kind", quick(["llama", "lfm2", "qwen35", "nemotron_h"], "llama", "lfm2"))
@pytest.mark.parametrize("layout", ["split", "pool"])
async def test_two_go_on_where_drafts_were_taken_back(
    tmp_path: Path, kind: str, layout: str
) -> None:
    """The second of them in a copy of what the first goes on with."""
    path, options = written(kind, tmp_path), LAYOUTS[layout]
    drafting, wrong = msgspec.structs.replace(options, speculation=ALWAYS), Wrong(even=True)
    async with container(path, options) as plain, container(path, drafting, wrong) as tested:
        first = Generation(prompt=tuple(range(98, 118)), sampling=GREEDY, max_tokens=30)
        [answer] = await answers(plain, [first])
        wrong.known = {first.prompt: answer.tokens}
        # It ends among drafted tokens; those behind are taken back, and nothing comes after that.
        [job] = await answers(tested, [msgspec.structs.replace(first, max_tokens=24)])
        assert job.ended is not None
        assert job.ended.drafted_tokens > job.ended.accepted_tokens > 0
        said = (*first.prompt, *answer.tokens[:24])
        nexts = [
            Generation(prompt=(*said, letter), sampling=GREEDY, max_tokens=20, drafts=0)
            for letter in (100, 110)
        ]
        for found, expected in zip(
            await answers(tested, nexts), await answers(plain, nexts), strict=True
        ):
            same(found, expected)


@pytest.mark.parametrize("kind", quick(["lfm2", "nemotron_h"], "lfm2"))
def test_who_joins_is_in_a_pass_without_drafts_first(tmp_path: Path, kind: str) -> None:
    """In that llama.cpp moves recurrent states to where the pass wants them, without the earlier
    ones that a draft is taken back to.
    """
    files = catalog.recognise(written(kind, tmp_path))
    assert files is not None
    drafting = msgspec.structs.replace(EXACT, speculation=ALWAYS)
    oracle = Oracle(even=True)
    engine = LlamaCppEngine(loading.load(files, drafting, lambda _: True), oracle)
    prompts = {
        key: (98 + key, *[98 + number % 20 for number in range(60 + 9 * key)]) for key in range(3)
    }
    oracle.known = {prompt: [99] * 40 for prompt in prompts.values()}
    drafted: dict[int, list[int]] = {key: [] for key in prompts}
    for key, prompt in prompts.items():
        engine.admit(key, Generation(prompt=prompt, sampling=GREEDY, max_tokens=40))
    while min(map(len, drafted.values())) < 12:
        for result in engine.step():
            if isinstance(result, Token):
                drafted[result.key].append(result.drafted)
    engine.close()
    assert [counts[0] for counts in drafted.values()] == [0, 0, 0]
    assert sum(map(sum, drafted.values())), "later ones have drafts"


class HalfRight(Oracle):
    """Whose drafts are right for two tokens, and wrong for four more."""

    def _guess(self, one: Answering) -> list[int]:
        job = self._jobs[one.key]
        left = self.known[tuple(job.tokens[: job.prompt])][len(job.tokens) - job.prompt :]
        return [*left[:2], 98, 98, 98, 98][: min(one.most, one.room)]


@pytest.mark.parametrize("kind", quick(["lfm2-window", "gemma3", "lfm2", "llama"], "gemma3"))
async def test_one_goes_back_while_drafts_of_others_stand(tmp_path: Path, kind: str) -> None:
    """What is written for it doesn't lie where another's window is when its drafts are gone."""
    path, options = written(kind, tmp_path), LAYOUTS["pool"]
    drafting, wrong = msgspec.structs.replace(options, speculation=ALWAYS), HalfRight(even=True)
    dice, talks = random.Random(0), list[Sequence[int]]()
    async with container(path, options) as plain, container(path, drafting, wrong) as tested:
        for _ in range(12):
            jobs = [going_on(dice, talks) for _ in range(4)]
            said, place = await answers(plain, jobs), dice.randrange(4)
            bans = tuple(said[place].text[at : at + 2] or "zz" for at in (5, 12, 19, 26))
            sampling = msgspec.structs.replace(GREEDY, banned_strings=bans)
            jobs[place] = msgspec.structs.replace(jobs[place], sampling=sampling)
            expected = await answers(plain, jobs)
            both = list(zip(jobs, expected, strict=True))
            wrong.known = {job.prompt: answer.tokens for job, answer in both}
            for found, answer in zip(await answers(tested, jobs), expected, strict=True):
                same(found, answer)
            talks = [[*job.prompt, *answer.tokens] for job, answer in both]


def going_on(dice: random.Random, talks: Sequence[Sequence[int]]) -> Generation:
    """With one of the `talks`, or new."""
    before = dice.choice(talks) if talks and dice.random() < 0.5 else ()
    words = [dice.randrange(97, 123) for _ in range(dice.randrange(5, 60))]
    return Generation(prompt=(*before, *words)[-100:], sampling=GREEDY, max_tokens=40)


@pytest.mark.parametrize("kind", sorted(NEVER))
async def test_where_a_sequence_cannot_be_cut_nothing_is_drafted(tmp_path: Path, kind: str) -> None:
    path = written(kind, tmp_path)
    options = msgspec.structs.replace(EXACT, speculation=ALWAYS)
    async with container(path, options) as recurrent:
        assert not recurrent.info.drafts
        assert recurrent.info.undrafted == STAYS
        job = Generation(prompt=(97, 98, 99) * 9, sampling=GREEDY, max_tokens=30)
        [answer] = await answers(recurrent, [job])
        assert answer.ended is not None
        assert answer.ended.drafted_tokens == 0


async def test_drafts_are_counted(tmp_path: Path) -> None:
    path = cache_kinds.write("llama", tmp_path / "model.gguf")
    options = msgspec.structs.replace(EXACT, speculation=ALWAYS)
    async with container(path, options) as drafting:
        assert drafting.info.drafts
        # what is forced by a bias alone is sampled: the same token again and again
        only = msgspec.structs.replace(GREEDY, allowed_tokens=(97,))
        job = Generation(prompt=(97, 98, 99), sampling=only, max_tokens=40)
        [answer] = await answers(drafting, [job])
        ended = answer.ended
        assert ended is not None
        assert answer.tokens == [97] * 40
        assert 20 < ended.accepted_tokens <= ended.drafted_tokens < 40
        none = msgspec.structs.replace(job, drafts=0)
        [answer] = await answers(drafting, [none])
        assert answer.ended is not None
        assert answer.ended.drafted_tokens == 0


@pytest.mark.parametrize("temperature", [0.4, 1.0])
async def test_a_seed_gives_the_same_text(temperature: float) -> None:
    options = msgspec.structs.replace(EXACT, context_length=512)
    drafting = msgspec.structs.replace(options, speculation=ALWAYS)
    async with container(bundled.GGUF, options) as plain, container(bundled.GGUF, drafting) as fast:
        prompt = plain.tokenize("one two three four one two three four one two", special=True)
        accepted = 0
        for seed in range(8):
            sampling = Sampling(temperature=temperature, seed=seed)
            job = Generation(prompt=prompt, sampling=sampling, max_tokens=60)
            [expected], [found] = await answers(plain, [job]), await answers(fast, [job])
            same(found, expected)
            assert found.ended is not None
            accepted += found.ended.accepted_tokens
        assert accepted


async def test_what_is_sampled_has_the_same_distribution(tmp_path: Path) -> None:
    path = cache_kinds.write("llama", tmp_path / "model.gguf")
    options = msgspec.structs.replace(EXACT, speculation=ALWAYS)
    letters = tuple(range(97, 101))
    sampling = Sampling(temperature=1.0, allowed_tokens=letters)
    runs = [[110, 111, one, two, three] for one in letters for two in letters for three in (97, 99)]
    prompt = (*[token for run in runs for token in run][-140:], 110, 111)
    job = Generation(prompt=prompt, sampling=sampling, max_tokens=4)
    async with container(path, options) as drafting:
        assert await check_distribution(drafting, job) > 400
