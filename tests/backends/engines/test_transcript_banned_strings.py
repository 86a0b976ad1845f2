"""An answer never holds a banned string, whatever its tokens, and it comes to an end."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.contract.bounds import MOST_TRIES, SPARE_REWINDS
from backends.engines.transcript import BannedStrings, Taken

LIMIT = 60


class Model:
    """Says tokens by a taste of its own for each place, and what it may not."""

    def __init__(self, pieces: Sequence[bytes], seed: int) -> None:
        self.pieces = pieces
        self.said: list[int] = []
        self.steps = 0
        self._seed = seed

    def next(self, banned: frozenset[int]) -> int:
        self.steps += 1
        taste = random.Random(f"{self._seed} {self.said}")
        order = list(range(len(self.pieces)))
        taste.shuffle(order)
        token = next((one for one in order if one not in banned), order[0])
        self.said.append(token)
        return token


def answered(model: Model, strings: Sequence[str]) -> tuple[list[Taken], str | None]:
    """What was let go of, and the string that ended it."""
    banned_strings = BannedStrings(tuple(strings), LIMIT)
    final: list[Taken] = []
    banned: frozenset[int] = frozenset()
    while len(final) < LIMIT:
        token = model.next(banned)
        verdict = banned_strings.add(Taken(token, model.pieces[token]))
        final += verdict.final
        if verdict.stop is not None:
            return final, verdict.stop
        banned = verdict.banned
        if verdict.back:
            del model.said[len(model.said) - verdict.back :]
        assert [one.token for one in final] == model.said[: len(final)]
    return final, None


def text_of(final: Sequence[Taken]) -> str:
    return b"".join(one.text for one in final).decode(errors="replace")


LETTERS = st.text("abA é蒸", min_size=1, max_size=4)
PIECES = st.lists(LETTERS.map(str.encode), min_size=2, max_size=8) | st.just(
    [b"a", b"b", "蒸".encode()[:1], "蒸".encode()[1:], "é".encode()[:1], "é".encode()[1:] + b"a"]
)


@settings(max_examples=300)
@given(PIECES, st.lists(LETTERS, min_size=1, max_size=4), st.integers(0, 10_000))
def test_an_answer_never_holds_a_banned_string(
    pieces: list[bytes], strings: list[str], seed: int
) -> None:
    model = Model(pieces, seed)
    final, stop = answered(model, strings)
    text = text_of(final).lower()
    assert not any(string.lower() in text for string in strings)
    assert len(final) == LIMIT or stop in strings
    assert model.steps <= SPARE_REWINDS + 4 * LIMIT + max(map(len, strings))


@settings(max_examples=100)
@given(PIECES, st.integers(0, 10_000))
def test_an_answer_without_one_is_left_as_it_is(pieces: list[bytes], seed: int) -> None:
    free, banning = Model(pieces, seed), Model(pieces, seed)
    final, stop = answered(banning, ["zzz", "蒸z"])
    assert stop is None
    assert [one.token for one in final] == [free.next(frozenset()) for _ in range(LIMIT)]


def fed(banned: BannedStrings, *pieces: str) -> list[tuple[str, int]]:
    """What is let go of after each token, and how many are taken back."""
    verdicts = []
    for token, piece in enumerate(pieces):
        verdict = banned.add(Taken(token, piece.encode()))
        verdicts.append((text_of(verdict.final), verdict.back))
    return verdicts


def test_text_is_held_back_only_while_it_may_become_one() -> None:
    banned = BannedStrings(("hello world",), 100)
    verdicts = fed(banned, "say", " hel", "lo", " there", " Hello", " wor", "LD", "!")
    assert verdicts == [
        ("say", 0),
        ("", 0),
        ("", 0),
        (" hello there", 0),
        ("", 0),
        ("", 0),
        ("", 3),
        ("!", 0),
    ]


def test_a_string_begun_before_another_one_is_still_followed() -> None:
    """Going back before "bc" must not let go of what may become "a be"."""
    banned = BannedStrings(("a be", "bc"), 100)
    assert fed(banned, "x", "a", " ", "bc") == [("x", 0), ("", 0), ("", 0), ("", 1)]
    assert banned.add(Taken(9, b"be")).back == 3


def test_the_token_it_begins_in_is_banned_at_that_place_alone() -> None:
    banned = BannedStrings(("bad",), 100)
    verdict = banned.add(Taken(7, b" bad"))
    assert (verdict.back, set(verdict.banned)) == (1, {7})
    verdict = banned.add(Taken(8, b"BAD "))
    assert (verdict.back, set(verdict.banned)) == (1, {7, 8})
    assert banned.add(Taken(9, b"good")).final == [Taken(9, b"good")]
    assert banned.add(Taken(7, b" bad")).banned == {7}


def test_a_model_that_insists_ends_before_the_string() -> None:
    banned = BannedStrings(("bad",), 10_000)
    assert fed(banned, "so") == [("so", 0)]
    verdicts = [banned.add(Taken(token, b"bad")) for token in range(MOST_TRIES + 1)]
    assert [verdict.back for verdict in verdicts] == [1] * MOST_TRIES + [0]
    assert (verdicts[-1].stop, verdicts[-1].final) == ("bad", [])


def test_what_may_not_be_avoided_ends_at_once() -> None:
    banned = BannedStrings(("bad",), 100)
    assert banned.add(Taken(7, b"bad")).back == 1
    assert banned.add(Taken(7, b"bad")).stop == "bad"  # there is no other


def test_long_strings_can_not_be_tried_for_ever() -> None:
    string = "a" * 400
    banned = BannedStrings((string,), 10_000)
    stop, steps, token = None, 0, 0
    while stop is None:
        verdict = banned.add(Taken(token, b"a"))
        token, steps, stop = token + 1, steps + 1, verdict.stop
    assert stop == string
    assert steps < 2 * (SPARE_REWINDS + len(string))


def test_what_is_forced_begins_no_string() -> None:
    banned = BannedStrings(("</think>",), 100)
    banned.forced(2)
    assert fed(banned, "</think>", "\n", "a") == [("</think>", 0), ("\n", 0), ("a", 0)]
    assert banned.add(Taken(9, b"</think>")).back == 1


@pytest.mark.parametrize("ends", [{"ends": True}, {"last": True}])
def test_the_end_lets_everything_go(ends: dict[str, bool]) -> None:
    banned = BannedStrings(("hello",), 100)
    assert fed(banned, "hel") == [("", 0)]
    assert text_of(banned.add(Taken(1, b"", **ends)).final) == "hel"  # type: ignore[arg-type]


def test_the_limit_lets_everything_go() -> None:
    assert fed(BannedStrings(("hello",), 2), "h", "e") == [("", 0), ("he", 0)]
