"""A promise that is tried on all cases in one test is broken if any case breaks it."""

import pytest

from tests.every import REPORTED, for_every


def test_every_case_is_tried_and_all_that_fail_are_reported() -> None:
    tried = []

    @for_every(
        ("number", "word"), [(1, "one"), (2, "two"), (3, "three")], label=lambda case: case[1]
    )
    def odd(number: int, word: str, least: int) -> None:
        tried.append(word)
        assert least <= number
        assert number % 2

    with pytest.raises(ExceptionGroup, match="2 of 3 failed: one, two") as failed:
        odd(least=2)
    assert tried == ["one", "two", "three"]
    assert [error.__notes__ for error in failed.value.exceptions] == [["for one"], ["for two"]]


def test_of_many_failures_some_are_shown_in_full_and_all_are_named() -> None:
    @for_every("number", range(100))
    def small(number: int) -> None:
        assert number < 50

    with pytest.raises(ExceptionGroup, match=r"50 of 100 failed: 50, 51.*99") as failed:
        small()
    assert len(failed.value.exceptions) == REPORTED


@for_every("number", [1, 2, 3])
def test_other_arguments_are_fixtures(number: int, request: pytest.FixtureRequest) -> None:
    assert request.function.__name__ == "test_other_arguments_are_fixtures"
    assert number in (1, 2, 3)


def test_nothing_to_try_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="tried on nothing"):
        for_every("number", [])
