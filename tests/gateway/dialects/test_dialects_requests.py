"""What bodies of every API mean, or which of their fields is at fault: see `corpus.py`."""

import pytest

from tests.gateway.dialects.corpus import READERS, load, outcome


@pytest.mark.parametrize("api", READERS)
def test_a_body_means_what_its_case_says(api: str) -> None:
    cases = load(api)
    changed = {
        f"{case.reader}: {case.body}": (case, found)
        for case in cases
        if (found := outcome(api, case)) != case
    }
    assert not changed
    assert {case.reader for case in cases} == {*READERS[api]}
