"""Every case of the corpus, whole and however it is cut. None of them is held to be wrong.

`more.jsonl` holds our own cases ("certainty": "ours"): the same kinds for the families that the
first file leaves out, and what our own rules say where engines disagree.
"""

from collections.abc import Iterable

import pytest

from gateway.splitter import FORMATS
from tests.every import for_every
from tests.gateway.splitter.corpus import Answer, Case, check, join, load, run

ALL = load("cases.jsonl") + load("more.jsonl")
by_id = for_every("case", ALL, label=lambda case: case.id)


def assert_cuts_change_nothing(case: Case, whole: Answer, cuts: Iterable[int]) -> None:
    for cut in cuts:
        pieces = [case.raw[:cut], case.raw[cut:]]
        assert join(run(case, pieces)).without_ids() == whole.without_ids(), pieces


def test_every_format_has_a_case() -> None:
    assert {FORMATS[case.format].id for case in ALL} == {entry.id for entry in FORMATS.values()}


@by_id
def test_it_means_the_same_whole_by_characters_and_cut_at_every_seventh_place(case: Case) -> None:
    whole = join(run(case, [case.raw]))
    check(case, whole)
    if case.finish_reason == "stop":
        assert whole.finished.reason == ("tool_calls" if case.expect.tool_calls else "stop")
    else:
        assert whole.finished.reason == case.finish_reason
    by_characters = join(run(case, case.raw))
    assert by_characters.without_ids() == whole.without_ids(), "one character at a time"
    assert_cuts_change_nothing(case, whole, range(1 + len(case.id) % 7, len(case.raw), 7))


@pytest.mark.slow
@by_id
def test_it_means_the_same_cut_at_every_place(case: Case) -> None:
    assert_cuts_change_nothing(case, join(run(case, [case.raw])), range(1, len(case.raw)))
