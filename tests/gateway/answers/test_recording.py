"""What is noted of an answer: bounded, whole, and each part at its place in the raw text."""

import pytest

from backends.contract.protocol import Ended, Piece
from gateway.answers.recording import MOST_PIECES, RecordedChoice, Recording, Terms, spans
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
)

ENDED = Ended(cause="end_token", token=2, prompt_tokens=1, cached_tokens=0, completion_tokens=3)


def choice(*noted: tuple[str, list[object]]) -> RecordedChoice:
    """Its pieces, one token each, and what they became."""
    made = RecordedChoice()
    for number, (text, events) in enumerate(noted):
        made.add(Piece(text, (number,)), events)  # type: ignore[arg-type]
    made.end(ENDED, [Finished("stop")])
    return made


def split(made: RecordedChoice) -> list[tuple[str, int | None]]:
    written = made.seen()
    assert written.raw is not None
    found = spans(written)
    assert [one.begin for one in found[1:]] == [one.end for one in found[:-1]]
    return [(written.raw[one.begin : one.end], one.part) for one in found]


def test_each_part_stands_at_its_place() -> None:
    made = choice(
        ("<think>", []), ("Hm", [Reasoning("Hm")]), ("</think>", []), ("th", [Content("th")])
    )  # fmt: skip
    assert split(made) == [("<think>", None), ("Hm", 0), ("</think>", None), ("th", 1)]
    written = made.seen()
    assert (written.ended, written.finished) == (ENDED, Finished("stop"))
    assert list(written.tokens) == [0, 1, 2, 3]


def test_text_that_was_held_back_is_found() -> None:
    made = choice(("a <", [Content("a ")]), ("b", [Content("<b")]), ("<stop>", []))
    assert split(made) == [("a <b", 0), ("<stop>", None)]


@pytest.mark.parametrize(
    ("written", "arguments", "values"),
    [
        ('{"city": "Bern"}', '{"city":"Bern"}', ['{"city": "Bern"}']),
        ("<city>Bern</city><days>3</days>", '{"city":"Bern","days":3}', ["Bern", "3"]),
        ("<city>Be", '{"city":"Be', []),
        ("", "{}", []),
    ],
)
def test_a_calls_arguments_are_found_as_they_were_written(
    written: str, arguments: str, values: list[str]
) -> None:
    made = choice(
        ("<call>look", [ToolOpened(0, "1", "look")]),
        (written, [ArgumentsGrown(0, arguments)]),
        ("</call>", [ToolClosed(0)]),
    )
    assert [text for text, part in split(made) if part is not None] == ["look", *values]
    (part,) = made.seen().parts
    assert (part.name, part.text, part.is_whole) == ("look", arguments, True)


def test_text_that_was_changed_on_its_way_is_a_markers() -> None:
    assert split(choice(("abc", [Content("xyz")]))) == [("abc", None)]


def test_a_long_answer_is_no_crowd_of_objects() -> None:
    made = RecordedChoice()
    for number in range(2_560):
        made.add(Piece("ab", (number,)), [Content("ab")])
    assert made.size < 2_560 * 32
    assert made.seen().parts[0].text == "ab" * 2_560


def test_behind_its_bound_nothing_is_noted_but_the_end() -> None:
    made = RecordedChoice()
    for number in range(2 * MOST_PIECES):
        made.add(Piece("a", (number,)), [Content("a")])
    made.end(ENDED, [Finished("length")])
    written = made.seen()
    assert written.is_cut
    assert len(written.raw or "") == MOST_PIECES
    assert written.finished == Finished("length")
    assert made.size < 40 * MOST_PIECES


def test_answers_of_one_request_stand_behind_each_other() -> None:
    recording = Recording()
    assert recording.answer(Terms(backend="a"), ()) == 0
    recording.choice(0, has_raw=False).more([Content("x")])
    recording.answer(Terms(backend="b"), ())
    recording.choice(0, has_raw=False)
    assert [one.seen().raw for one in recording.choices] == [None, None]
    assert recording.terms.backend == "b"
