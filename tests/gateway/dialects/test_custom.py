"""The text of a custom tool's input, out of JSON that grows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.custom import InputText


def pieces(arguments: str, size: int) -> str:
    text = InputText()
    found = [text.grow(arguments[at : at + size]) for at in range(0, len(arguments), size)]
    return "".join(found) + text.finish()


@given(st.text(), st.integers(1, 9), st.booleans(), st.sampled_from([None, 1]))
def test_the_text_is_the_same_however_it_is_cut(
    text: str,
    size: int,
    is_ascii: bool,
    indent: int | None,
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii, indent=indent)
    assert pieces(arguments, size) == text


def test_it_comes_while_it_grows() -> None:
    text = InputText()
    assert [text.grow(part) for part in ('{"inp', 'ut": "a', "b\\", 'nc"', "}")] == [
        "", "a", "b", "\nc", "",
    ]  # fmt: skip
    assert text.finish() == ""


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("", ""),
        ('{"patch": "x"}', "x"),
        ('{"patch": "x", "more": "y"}', '{"patch": "x", "more": "y"}'),
        ('{"reason": "x", "input": "y"}', "y"),
        ('{"input": 7}', '{"input": 7}'),
        ('{"input": "cut \\u00', "cut "),
        ('{"input": "\\ud83d rest"}', "� rest"),
        ('{"input": "no \\ud8"}', "no "),
        ('{"input": "a", "more": "b"}', "a"),
        ("[1", "[1"),
    ],
)
def test_nothing_that_a_model_wrote_is_lost(arguments: str, meant: str) -> None:
    assert pieces(arguments, 3) == meant
