"""Finished texts of other servers, against every kind of shape."""

import pytest

from backends.contract.conversation import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTags,
)
from gateway.constraints.compiling import fault_unconstrained

TAGS = (
    b'{"type":"structural_tag","structures":[{"begin":"<f>","schema":{"type":"object"},'
    b'"end":"</f>"}],"triggers":["<f>"]}'
)


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (JsonObject(), "{}", "[]"),
        (JsonSchema(schema=b'{"type": "integer"}'), "3", '"3"'),
        (Regex(pattern="[0-9]{2,3}"), "12", "1"),
        (Regex(pattern="[0-9]{2,3}"), "123", "1234"),
        (Choices(texts=("yes", "no")), "no", "maybe"),
        (Choices(texts=("yes", "no")), "yes", "yes!"),
        (Grammar(text='root ::= "a" | "é"'), "é", "e"),
        (Grammar(text='start: "a" "b"'), "ab", "a"),
        (StructuralTags(request=TAGS), 'Call <f>{"x": 1}</f>', "Call <f>{"),
    ],
)
def test_a_text_has_its_shape_or_that_is_said(shape: Shape, good: str, bad: str) -> None:
    assert fault_unconstrained(shape, good) is None
    fault = fault_unconstrained(shape, bad)
    assert fault is not None
    assert not fault.startswith("not checked")


def test_a_shape_that_cannot_be_read_here_leaves_the_text_unchecked() -> None:
    fault = fault_unconstrained(Regex(pattern="(?<=a)b(", field="guided_regex"), "b")
    assert fault is not None
    assert fault.startswith("not checked: ")


def test_a_long_text_is_checked_or_given_up_in_a_bounded_time() -> None:
    long = "ab" * 200_000
    assert fault_unconstrained(Regex(pattern="(ab)*"), long) in (
        None,
        "not checked: the check takes too long",
    )
