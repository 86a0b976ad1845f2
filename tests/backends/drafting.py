"""Drafts change no answer, whatever engine verifies them: greedy answers with drafts, right and
wrong ones of all lengths, against answers without, of jobs with whatever else a job may have. A
tool of tests.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import anyio
import msgspec
import numpy

from backends.contract.protocol import Ended, Generation, Piece, ThinkingBudget
from backends.engines.driver import DrivenContainer
from backends.engines.speculation import Answering, Speculation, StepDraft
from config.engines import SpeculationOptions
from tests.backends.constraints import regex
from tests.backends.container_contract import GREEDY

ALWAYS = SpeculationOptions(mode="ngram")
OFF = SpeculationOptions(mode="off")
LETTERS = "bcdefghijklmnopqrstuvwxy"
CLOSE = 0.02  # of log probabilities: rows of other batches are summed in another order


class Oracle(Speculation):
    """Drafts what its job will say, with mistakes: of all lengths, accepted to all places."""

    def __init__(self, *, even: bool) -> None:
        super().__init__(ALWAYS, even=even)
        self.dice = random.Random(0)
        self.known: dict[tuple[int, ...], Sequence[int]] = {}  # by the prompt

    def drafts(self, answering: Sequence[Answering]) -> Mapping[int, StepDraft]:
        super().drafts(answering)
        self.undone()
        wanted = {one.key: self._guess(one) for one in answering if one.key in self._jobs}
        if not any(wanted.values()):
            return {}
        if not self._even:
            return {key: StepDraft(tokens, len(tokens)) for key, tokens in wanted.items()}
        length = min(max(map(len, wanted.values())), *(one.room for one in answering))
        filled = {
            one.key: [*wanted.get(one.key, [])[:length], *[97] * length][:length]
            for one in answering
        }
        return {key: StepDraft(tokens, length) for key, tokens in filled.items()}

    def drew(self, key: int) -> bool:
        return True

    def _guess(self, one: Answering) -> list[int]:
        job = self._jobs[one.key]
        said = tuple(job.tokens)
        whole = self.known.get(tuple(said[: job.prompt]), ())
        count = min(self.dice.randrange(7), one.most, one.room)
        guess = list(whole[len(said) - job.prompt :][: max(0, count)])
        if guess and self.dice.random() < 0.5:
            guess[self.dice.randrange(len(guess))] = 98
        return guess


class Answer(msgspec.Struct):
    pieces: list[Piece] = []
    ended: Ended | None = None

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.tokens]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


async def answers(
    asked: DrivenContainer, jobs: Sequence[Generation], leave: Sequence[int] = ()
) -> list[Answer]:
    """All at once; those of `leave` are left after a few tokens."""
    found = [Answer() for _ in jobs]

    async def answer(number: int, job: Generation) -> None:
        async with asked.generate(job) as outputs:
            async for output in outputs:
                if isinstance(output, Piece):
                    found[number].pieces.append(output)
                    if number in leave and len(found[number].pieces) == 5:
                        return
                elif isinstance(output, Ended):
                    found[number].ended = output

    async with anyio.create_task_group() as tasks:
        for number, job in enumerate(jobs):
            tasks.start_soon(answer, number, job)
    return found


def dressed(dice: random.Random, job: Generation, text: str, letters: Sequence[int]) -> Generation:
    """With what else a job may have; `text`: what it would say."""
    cut = dice.randrange(1, max(2, len(text) - 3))
    piece = text[cut : cut + 3] or "zz"
    banned = msgspec.structs.replace(GREEDY, banned_strings=(piece,))
    wanted = "".join(dice.choices("abc", k=6))
    thinking = ThinkingBudget(
        tokens=dice.randrange(1, 12),
        closing=tuple(dice.choices(letters, k=4)),
        opens=("<t>",),
        closes=("</t>",),
        is_open=True,
    )
    changes: Sequence[Mapping[str, object]] = (
        {},
        {"max_tokens": dice.randrange(1, 20)},
        {"stop": (piece,)},
        {"logprobs": 3},
        {"sampling": banned},
        {"thinking": thinking},
        {"constraint": regex(f"({wanted}){{1,4}}[a-z]{{3,9}}")},
        # so long that what closes the thinking fits behind it, of tokens of several letters, too
        {"constraint": regex("[a-z ]{5,200}"), "thinking": thinking},
        {"sampling": banned, "thinking": thinking},
        {"sampling": msgspec.structs.replace(GREEDY, repetition_penalty=1.3), "min_tokens": 9},
    )
    return msgspec.structs.replace(job, **dice.choice(changes))


LONGEST = 90  # tokens of a prompt; there is room for an answer behind it


def prompted(
    dice: random.Random, letters: Sequence[int], talks: Sequence[Sequence[int]] = ()
) -> Generation:
    """A new prompt, or one that goes on with one of the `talks`, or with its beginning."""
    own = dice.choices(letters, k=dice.randrange(3, 60))
    talk = dice.choice(talks) if talks and dice.random() < 0.5 else ()
    known = talk[: dice.choice((len(talk), dice.randrange(len(talk) + 1)))]
    prompt = (*known, *own)[-LONGEST:] if len(known) > LONGEST - 3 else (*known, *own)[:LONGEST]
    return Generation(prompt=tuple(prompt), sampling=GREEDY, max_tokens=40)


def several(dice: random.Random, jobs: Sequence[Generation]) -> list[Generation]:
    """Some of them more than once, as `n` has it."""
    return [job for job in jobs for _ in range(dice.choice((1, 1, 1, 2)))]


def same(found: Answer, expected: Answer) -> int:
    """How many tokens were drafted."""
    assert found.tokens == expected.tokens
    assert found.text == expected.text
    assert found.ended is not None
    assert expected.ended is not None
    one, other = found.ended, expected.ended
    assert (one.cause, one.stop_string, one.token) == (other.cause, other.stop_string, other.token)
    assert one.completion_tokens == other.completion_tokens
    ours = [candidate for piece in found.pieces for candidate in piece.logprobs]
    theirs = [candidate for piece in expected.pieces for candidate in piece.logprobs]
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert our.chosen.token == their.chosen.token
        assert abs(our.chosen.logprob - their.chosen.logprob) < CLOSE
    return one.drafted_tokens


async def check_greedy_answers(
    plain: DrivenContainer, tested: DrivenContainer, oracle: Oracle, rounds: int = 6
) -> None:
    """Those of `tested`, whose drafts are the `oracle`'s, are those of `plain`."""
    dice, drafted, talks = random.Random(1), 0, list[Sequence[int]]()
    letters = [plain.tokenize(letter, special=False)[0] for letter in LETTERS]
    for _ in range(rounds):
        jobs = [prompted(dice, letters, talks) for _ in range(dice.choice((1, 2, 4, 6)))]
        jobs = several(dice, jobs)
        known = await answers(plain, jobs)
        jobs = [
            dressed(dice, job, answer.text, letters)
            for job, answer in zip(jobs, known, strict=True)
        ]
        expected = await answers(plain, jobs)
        # Of several with one prompt, it knows what the last of them says: the others get drafts
        # that are wrong from some place on.
        oracle.known = {
            job.prompt: answer.tokens for job, answer in zip(jobs, expected, strict=True)
        }
        leave = [number for number in range(len(jobs)) if not dice.randrange(5)]
        found = await answers(tested, jobs, leave)
        for number, answer in enumerate(found):
            if number not in leave:
                drafted += same(answer, expected[number])
        talks = [[*job.prompt, *answer.tokens] for job, answer in zip(jobs, expected, strict=True)]
    assert bool(drafted) == tested.info.drafts


async def check_modelled_answers(
    plain: DrivenContainer, tested: DrivenContainer, rounds: int = 4
) -> int:
    """The same of a container that drafts by a model; how many drafted tokens came."""
    dice, accepted = random.Random(2), 0
    letters = [plain.tokenize(letter, special=False)[0] for letter in LETTERS]
    for number in range(rounds):
        jobs = [prompted(dice, letters) for _ in range((1, 4, 6, 2)[number % 4])]
        known = await answers(plain, jobs)
        jobs = [
            dressed(dice, job, answer.text, letters)
            for job, answer in zip(jobs, known, strict=True)
        ]
        expected = await answers(plain, jobs)
        leave = [place for place in range(len(jobs)) if not dice.randrange(5)]
        for place, answer in enumerate(await answers(tested, jobs, leave)):
            if place not in leave:
                same(answer, expected[place])
                assert answer.ended is not None
                accepted += answer.ended.accepted_tokens
    return accepted


SEEDS = 1_200  # each answer has a seed of its own, from 0 on: the same answers each time
ENOUGH = 60  # answers that begin with the same two tokens
CHOICES = 4  # tokens that a job may say next
# Pearson's sum that three degrees of freedom exceed once in 40,000 times.
FARTHEST = 24.0


async def check_distribution(tested: DrivenContainer, job: Generation) -> int:
    """Pearson's test of the third token of many answers, two of which may have been drafted and
    verified in the pass it comes from: as often as the model finds it likely after these two. How
    many drafted tokens came. `job`: four tokens long, each of `CHOICES` that it allows, or of the
    likeliest.
    """
    accepted, seen = 0, dict[tuple[int, ...], Counter[int]]()
    together = tested.info.max_concurrent
    for first in range(0, SEEDS, together):
        jobs = [
            msgspec.structs.replace(job, sampling=msgspec.structs.replace(job.sampling, seed=seed))
            for seed in range(first, first + together)
        ]
        for answer in await answers(tested, jobs):
            assert answer.ended is not None
            accepted += answer.ended.accepted_tokens
            seen.setdefault(tuple(answer.tokens[:2]), Counter())[answer.tokens[2]] += 1
    often = {before: counts for before, counts in seen.items() if counts.total() >= ENOUGH}
    assert often
    for before, counts in often.items():
        chances, total = await likely(tested, job, before), counts.total()
        assert set(counts) <= set(chances)
        apart = sum(
            (counts[token] - total * chance) ** 2 / (total * chance)
            for token, chance in chances.items()
        )
        assert apart < FARTHEST, (before, counts, chances)
    return accepted


async def likely(
    asked: DrivenContainer, job: Generation, before: Sequence[int]
) -> Mapping[int, float]:
    """The probabilities of the tokens that `job` may say after `before`."""
    plain = Generation(
        prompt=(*job.prompt, *before), sampling=GREEDY, max_tokens=1, logprobs=CHOICES, drafts=0
    )
    allowed = [
        msgspec.structs.replace(GREEDY, allowed_tokens=(token,)) for token in allowed_by(job)
    ]
    jobs = [msgspec.structs.replace(plain, sampling=one) for one in allowed or [GREEDY]]
    found = [answer.pieces[0].logprobs[0] for answer in await answers(asked, jobs)]
    candidates = [one.chosen for one in found] if allowed else found[0].top
    powers = numpy.exp([one.logprob for one in candidates])
    chances = map(float, powers / powers.sum())
    return dict(zip((one.token for one in candidates), chances, strict=True))


def allowed_by(job: Generation) -> Sequence[int]:
    """Nothing: the likeliest."""
    return job.sampling.allowed_tokens or ()
