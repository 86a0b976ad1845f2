"""What a text repeats is found, and what followed it is drafted."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from backends.engines.repetitions import (
    ANSWERS,
    CHANGED,
    INDEXED,
    LONG,
    RESUMED,
    SHORTEST,
    WORTH_KEEPING,
    RecentAnswers,
    Repetitions,
)

FEW_WORDS = st.lists(st.integers(0, 3), max_size=60)


# -- repetitions ---------------------------------------------------------------------------------


def read(text: list[int]) -> Repetitions:
    known = Repetitions(text)
    while not known.read():
        pass
    return known


@given(FEW_WORDS, st.integers(1, 8))
def test_what_is_drafted_followed_the_same_tokens_before(text: list[int], most: int) -> None:
    draft = read(text).find(text, most)
    ends = [at for at in range(SHORTEST, len(text)) if text[at - SHORTEST : at] == text[-SHORTEST:]]
    if draft is None:
        assert not ends
        return
    assert any(_goes_on(text, at, most) == draft.tokens for at in ends)


def _goes_on(text: list[int], place: int, most: int) -> Sequence[int]:
    following = text[place : place + most]
    return [following[at % len(following)] for at in range(most)]


@given(st.lists(st.tuples(st.integers(0, 8), FEW_WORDS), max_size=12))
def test_a_text_that_is_taken_back_is_drafted_from_what_it_is(
    changes: list[tuple[int, list[int]]],
) -> None:
    text: list[int] = []
    known = Repetitions(text)
    for taken_back, added in changes:
        del text[max(0, len(text) - taken_back) :]
        text += added
        known.read()
        draft = known.find(text, 4)
        if draft is not None:
            assert any(_goes_on(text, at, 4) == draft.tokens for at in range(1, len(text)))


def test_the_longest_repetition_is_gone_on_with() -> None:
    text = [9, 1, 2, 3, 4, 7, 1, 2, 3, 5, 9, 1, 2, 3]
    draft = read(text).find(text, 1)
    assert draft is not None
    assert draft.tokens == [4]


def test_after_a_change_in_what_is_copied_the_copy_goes_on() -> None:
    code = list(range(100, 140))
    text = [*code, 1, *code[:10]]
    known = read(text)
    assert known.find(text, 3).tokens == code[10:13]  # type: ignore[union-attr]
    text += [7, code[11]]  # one token is another, the next is as it was
    known.read()
    assert known.find(text, 3).tokens == code[12:15]  # type: ignore[union-attr]


def test_a_copy_that_goes_on_after_a_change_is_surer_than_another_as_short() -> None:
    code = list(range(100, 160))
    text = [*code, 1, *code[:30]]
    known = read(text)
    assert known.find(text, 1).sureness == LONG  # type: ignore[union-attr]
    text += [7, code[31]]  # one token is another
    known.read()
    after = known.find(text, 1)
    assert after is not None
    assert (after.sureness, list(after.tokens)) == (RESUMED, [code[32]])
    text += range(500, 500 + CHANGED)  # no copy any more
    text += code[3:7]
    known.read()
    assert known.find(text, 1).sureness < RESUMED  # type: ignore[union-attr]


def test_pictures_are_not_drafted() -> None:
    text = [1, 2, 3, 4, -1, -1, 5, 1, 2, 3]
    assert read(text).find(text, 4).tokens == [4]  # type: ignore[union-attr]


def test_the_index_of_a_text_without_end_is_bounded() -> None:
    text: list[int] = []
    known = Repetitions(text)
    dice = random.Random(0)
    for _ in range(8 * INDEXED // 1_000):
        text += dice.choices(range(50_000), k=1_000)
        known.read()
        assert len(known._latest) <= 2 * INDEXED + 1_024  # noqa: SLF001


def test_a_long_prompt_is_read_in_parts() -> None:
    text = list(range(INDEXED))
    known = Repetitions(text)
    assert not known.read()
    assert known.find(text, 4) is None


# -- answers of the same owner --------------------------------------------------------------------

ANSWER = list(range(200, 200 + 2 * WORTH_KEEPING))


def test_an_owner_is_drafted_from_its_own_answers_alone() -> None:
    recent = RecentAnswers()
    recent.keep("alice", ANSWER)
    end = [1, *ANSWER[5:10]]
    assert recent.find("alice", end, 3).tokens == ANSWER[10:13]  # type: ignore[union-attr]
    assert recent.find("bob", end, 3) is None


def test_few_answers_of_few_owners_are_kept() -> None:
    recent = RecentAnswers()
    for number in range(500):
        for _ in range(ANSWERS + 1):
            recent.keep(str(number), [number * 100 + at for at in range(WORTH_KEEPING)])
    assert recent.find("0", list(range(5)), 3) is None
    assert recent.find("499", [49_900, 49_901, 49_902], 1) is not None
    assert all(len(answers) <= ANSWERS for answers in recent._known.values())  # noqa: SLF001
