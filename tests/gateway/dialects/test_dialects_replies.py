"""How every API tells an answer, as a stream and whole, to the byte: see `replies.py`."""

import pytest

from tests.gateway.dialects.replies import ANSWERS, MAKERS, load, outcome


@pytest.mark.parametrize("api", MAKERS)
def test_an_answer_is_told_as_its_case_says(api: str) -> None:
    cases = load(api)
    changed = [(case, found) for case in cases if (found := outcome(api, case)) != case]
    assert not changed
    assert {case.answer for case in cases} <= {*ANSWERS}
    assert {"text", "cut", "logprobs"} <= {case.answer for case in cases}
