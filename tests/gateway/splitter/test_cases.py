"""Every case of the corpus, whole and however it is cut. None of them is held to be wrong.

`more.jsonl` holds our own cases ("certainty": "ours"): the same kinds for the families that the
first file leaves out, and what our own rules say where engines disagree.
"""

from collections.abc import Iterable

import pytest

from tests.gateway.splitter.corpus import Case, check, join, load, run

ALL = load("cases.jsonl") + load("more.jsonl")
by_id = pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)


@by_id
def test_whole(case: Case) -> None:
    answer = join(run(case, [case.raw]))
    check(case, answer)
    if case.finish_reason == "stop":
        assert answer.finished.reason == ("tool_calls" if case.expect.tool_calls else "stop")
    else:
        assert answer.finished.reason == case.finish_reason


@by_id
def test_one_character_at_a_time(case: Case) -> None:
    whole = join(run(case, [case.raw]))
    assert join(run(case, case.raw)).without_ids() == whole.without_ids()


def assert_cuts_change_nothing(case: Case, cuts: Iterable[int]) -> None:
    whole = join(run(case, [case.raw])).without_ids()
    for cut in cuts:
        pieces = [case.raw[:cut], case.raw[cut:]]
        assert join(run(case, pieces)).without_ids() == whole, pieces


@by_id
def test_a_cut_at_every_third_place(case: Case) -> None:
    assert_cuts_change_nothing(case, range(1 + len(case.id) % 3, len(case.raw), 3))


@pytest.mark.slow
@by_id
def test_a_cut_at_every_place(case: Case) -> None:
    assert_cuts_change_nothing(case, range(1, len(case.raw)))
