"""Drafts: how much of one is worth a step, and what may be lost by it. A virtual clock: what a
step costs and what a text says next are given.
"""

import random
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engines.constraints import Mask
from backends.engines.repetitions import WORTH_KEEPING
from backends.engines.speculation import STREAMS, Answering, Speculation, StepDraft
from backends.engines.step_costs import MOST, TOGETHER
from config.engines import SpeculationOptions

AUTO = SpeculationOptions()
ALWAYS = SpeculationOptions(mode="ngram")
ANSWER = list(range(200, 200 + 2 * WORTH_KEEPING))


def test_a_next_answer_is_drafted_from_the_last() -> None:
    speculation = Speculation(ALWAYS)
    first = [1, 2, 3]
    speculation.admit(1, first, "key", None)
    first += ANSWER
    speculation.release(1)
    speculation.admit(2, [4, 5, *ANSWER[:5]], "key", None)
    speculation.admit(3, [4, 5, *ANSWER[:5]], "another", None)
    drafts = speculation.drafts([Answering(2, 4, 4), Answering(3, 4, 4)])
    assert drafts == {2: StepDraft(ANSWER[5:9], 4)}


# -- deciding ------------------------------------------------------------------------------------


class Clock(msgspec.Struct):
    """Jobs that say what their texts say, in steps that take what `cost` says."""

    speculation: Speculation
    cost: Callable[[int], float]
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0

    def run(self, texts: Sequence[tuple[list[int], list[int]]], *, room: int = 1_000) -> None:
        """Each a prompt and its answer. All begin together."""
        said = {key: list(prompt) for key, (prompt, _) in enumerate(texts)}
        ends = {key: len(prompt) + len(answer) for key, (prompt, answer) in enumerate(texts)}
        whole = {key: [*prompt, *answer] for key, (prompt, answer) in enumerate(texts)}
        for key, tokens in said.items():
            self.speculation.admit(key, tokens, "", None)
        while said:
            jobs = [
                Answering(key, min(room, ends[key] - len(tokens) - 1), room)
                for key, tokens in said.items()
            ]
            drafts = self.speculation.drafts(jobs)
            rows = len(jobs) + sum(len(draft.tokens) for draft in drafts.values())
            self.seconds += self.cost(rows)
            self.steps += 1
            self.drafted += rows - len(jobs)
            self.speculation.stepped(self.cost(rows))
            for key, tokens in list(said.items()):
                self._say(key, tokens, whole[key], drafts.get(key))
                if len(tokens) == ends[key]:
                    self.speculation.release(key)
                    del said[key]

    def _say(self, key: int, said: list[int], whole: list[int], draft: StepDraft | None) -> None:
        drafted = list(draft.tokens) if draft is not None else []
        said.append(whole[len(said)])
        while drafted and drafted.pop(0) == said[-1] and len(said) < len(whole):
            self.speculation.drew(key)
            said.append(whole[len(said)])


def cheap(rows: int) -> float:
    """A card that waits for memory."""
    return 0.01 * (1 + 0.02 * (rows - 1))


def dear(rows: int) -> float:
    """A small processor: half of a step is computing."""
    return 0.004 * (1 + 0.25 * (rows - 1))


def full(rows: int) -> float:
    """Every token takes as long as the first."""
    return 0.004 * rows


def uneven(rows: int) -> float:
    """A processor that computes two and more tokens by another program than one: 27 million weights
    of 8 bits, one core of an AMD EPYC.
    """
    sizes = (1, 2, 4, 5, 8, 9, 15, 16, 17, 32, 64)
    times = (2.2, 6.6, 8.8, 10.6, 12.4, 13.9, 20.2, 18.4, 20.1, 35.2, 70.4)
    at = max(index for index, size in enumerate(sizes) if size <= rows)
    if sizes[at] == rows:
        return times[at] / 1_000
    part = (rows - sizes[at]) / (sizes[at + 1] - sizes[at])
    return (times[at] + part * (times[at + 1] - times[at])) / 1_000


def edit(dice: random.Random, tokens: int = 400) -> tuple[list[int], list[int]]:
    """Code, and the same with three changes."""
    code = dice.choices(range(2_000), k=tokens)
    changed = list(code)
    for place in dice.sample(range(tokens), 3):
        changed[place] = 3_000 + place
    return code, changed


def chat(dice: random.Random, tokens: int = 400) -> tuple[list[int], list[int]]:
    """Words of a skewed vocabulary: runs of three are repeated now and then, and go on
    differently.
    """
    words = [int(dice.paretovariate(0.9)) % 1_000 for _ in range(2 * tokens)]
    return words[:tokens], words[tokens:]


def phrases(dice: random.Random, tokens: int = 400) -> tuple[list[int], list[int]]:
    """The same few phrases again and again, with a word that is new behind each."""
    known = [list(range(100 * number, 100 * number + 6)) for number in range(30)]
    words: list[int] = []
    while len(words) < 2 * tokens:
        words += [*dice.choice(known), dice.randrange(5_000, 9_000)]
    return words[:tokens], words[tokens : 2 * tokens]


@pytest.mark.parametrize(("cost", "faster"), [(cheap, 5.0), (dear, 2.2), (uneven, 1.4)])
def test_an_edit_takes_a_part_of_the_steps(cost: Callable[[int], float], faster: float) -> None:
    clock = Clock(Speculation(AUTO), cost)
    clock.run([edit(random.Random(0))])
    assert 400 * cost(1) / clock.seconds > faster


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(("cost", "faster"), [(cheap, 3.0), (dear, 1.4), (uneven, 1.6)])
def test_four_edits_at_once_do(cost: Callable[[int], float], faster: float, *, even: bool) -> None:
    clock = Clock(Speculation(AUTO, even=even), cost)
    clock.run([edit(random.Random(number)) for number in range(4)])
    assert 400 * cost(4) / clock.seconds > faster


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("cost", [cheap, dear, full, uneven])
def test_text_that_does_not_repeat_is_no_slower(
    cost: Callable[[int], float], streams: int, *, even: bool
) -> None:
    for seed in range(3):
        dice = random.Random(seed)
        clock = Clock(Speculation(AUTO, even=even), cost)
        for _ in range(4):
            clock.run([chat(dice) for _ in range(streams)])
        assert clock.seconds < 1.01 * 4 * 400 * cost(streams)


def test_a_text_of_phrases_is_drafted_as_far_as_they_go() -> None:
    clock = Clock(Speculation(AUTO), dear)
    for seed in range(5):
        clock.run([phrases(random.Random(seed))])
    assert 5 * 400 * dear(1) / clock.seconds > 1.2


def test_where_every_token_costs_the_same_drafts_lose_nothing() -> None:
    clock = Clock(Speculation(AUTO), full)
    for seed in range(10):
        clock.run([edit(random.Random(seed))])
    assert clock.seconds < 1.01 * 10 * 400 * full(1)


def test_text_that_does_not_repeat_is_no_slower_after_edits() -> None:
    """What is known of edits is soon seen not to hold."""
    speculation = Speculation(AUTO)
    for seed in range(5):
        Clock(speculation, dear).run([edit(random.Random(seed))])
    clock = Clock(speculation, dear)
    for seed in range(5):
        clock.run([chat(random.Random(seed))])
    assert clock.seconds < 1.01 * 5 * 400 * dear(1)


def test_it_is_tried_again_when_texts_change() -> None:
    speculation = Speculation(AUTO)
    dice = random.Random(0)
    for _ in range(5):
        Clock(speculation, dear).run([chat(dice)])
    clock = Clock(speculation, dear)
    clock.run([edit(dice)])
    assert 400 * dear(1) / clock.seconds > 1.8


def test_more_streams_than_a_few_draft_nothing() -> None:
    clock = Clock(Speculation(ALWAYS), cheap)
    clock.run([edit(random.Random(number), 60) for number in range(STREAMS + 1)])
    assert clock.drafted == 0


@given(
    seed=st.integers(0, 50),
    streams=st.integers(1, STREAMS),
    room=st.integers(0, 6),
    even=st.booleans(),
)
def test_drafts_keep_within_their_room(seed: int, streams: int, room: int, *, even: bool) -> None:
    speculation = Speculation(ALWAYS, even=even)
    dice = random.Random(seed)
    texts = [dice.choices(range(3), k=40) for _ in range(streams)]
    for key, text in enumerate(texts):
        speculation.admit(key, text, "", dice.choice((None, 2, 0)))
    jobs = [Answering(key, dice.randrange(-1, MOST), room) for key in range(streams)]
    drafts = speculation.drafts(jobs)
    assert sum(len(draft.tokens) for draft in drafts.values()) <= TOGETHER
    for job in jobs:
        draft = drafts.get(job.key, StepDraft((), 0))
        assert draft.meant <= max(0, min(job.most, len(draft.tokens)))
        assert len(draft.tokens) <= max(0, room)
    assert not even or len({len(draft.tokens) for draft in drafts.values()}) <= 1
    assert not even or not drafts or len(drafts) == streams


class Below(msgspec.Struct):
    """Of a mask what drafts ask: it allows tokens below `end`."""

    end: int

    def fitting(self, tokens: Sequence[int]) -> int:
        return next((at for at, token in enumerate(tokens) if token >= self.end), len(tokens))


def test_what_a_grammar_forbids_is_not_verified() -> None:
    speculation = Speculation(ALWAYS)
    speculation.admit(1, [1, 2, 3, 4, 5, 6, 1, 2, 3], "", None)
    five, four = cast(Mask, Below(5)), cast(Mask, Below(4))
    assert speculation.drafts([Answering(1, 4, 4, five)]) == {1: StepDraft([4], 1)}
    assert not speculation.drafts([Answering(1, 4, 4, four)])


def test_off_is_off() -> None:
    speculation = Speculation(SpeculationOptions(mode="off"))
    speculation.admit(1, [1, 1, 1, 1, 1], "", None)
    assert not speculation.drafts([Answering(1, 4, 4)])
    wanted_none = Speculation(ALWAYS)
    wanted_none.admit(1, [1, 1, 1, 1, 1], "", 0)
    assert not wanted_none.drafts([Answering(1, 4, 4)])


def test_a_step_that_was_held_up_once_is_tried_again() -> None:
    speculation = Speculation(AUTO)
    held_up = iter([1.0])
    clock = Clock(speculation, lambda rows: next(held_up, 0) + cheap(rows) if rows > 1 else 0.01)
    for number in range(4):
        clock.run([edit(random.Random(number))])
    last = Clock(speculation, cheap)
    last.run([edit(random.Random(9))])
    assert 400 * cheap(1) / last.seconds > 4
