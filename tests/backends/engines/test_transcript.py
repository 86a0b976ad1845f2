"""Text from tokens: the same text for any cut into tokens, stops exact, nothing lost."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

from hypothesis import example, given
from hypothesis import strategies as st

from backends.contract.protocol import Generation, Piece, ThinkingBudget
from backends.contract.stops import StopFound, StopScanner
from backends.engines.transcript import Taken, Transcript, Written

ROOM = 10_000


Text = TypeVar("Text", str, bytes)


def cuts(text: Text, borders: Sequence[int]) -> list[Text]:
    edges = [0, *sorted(border % (len(text) + 1) for border in borders), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def transcribe(pieces: Sequence[bytes], **job: object) -> tuple[str, Written, int]:
    """The text, the last word, and how many tokens it took."""
    transcript = Transcript(Generation(prompt=(1,), **job), ROOM)  # type: ignore[arg-type]
    text, written = "", Written()
    for token, piece in enumerate([*pieces, b""]):
        written = transcript.add(Taken(token, piece, ends=token == len(pieces)))
        text += written.piece.text if written.piece else ""
        if written.cause:
            break
    return text, written, transcript.completion_tokens


borders = st.lists(st.integers(0, 1000), max_size=30)


@given(st.text(), borders)
def test_any_cut_of_the_bytes_gives_the_text(text: str, where: list[int]) -> None:
    pieces = cuts(text.encode(), where)
    assert transcribe(pieces)[0] == text


@example(b"a\xe8x", [2])  # half a character behind a whole one, then another token
@given(st.binary(max_size=40), borders)
def test_broken_bytes_are_replaced_as_in_the_whole(data: bytes, where: list[int]) -> None:
    assert transcribe(cuts(data, where))[0] == data.decode(errors="replace")


@given(
    st.text("abc", max_size=60),
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3),
    borders,
)
@example("aab", ["ab"], [1, 2])
def test_stops_end_the_text_at_the_first_hit(text: str, stops: list[str], where: list[int]) -> None:
    scanner, given_out, found = StopScanner(stops), "", None
    for piece in cuts(text, where):
        match scanner.feed(piece):
            case StopFound(before, stop):
                given_out, found = given_out + before, stop
                break
            case str(free):
                given_out += free
    hits = [text.find(stop) for stop in stops if stop in text]
    if found is None:
        assert not hits
        assert given_out + scanner.flush() == text
    else:
        # A longer stop that begins earlier may still be incomplete when a shorter one inside it is
        # whole.
        assert given_out + found == text[: len(given_out) + len(found)]
        assert found in stops


def test_only_possible_beginnings_are_held_back() -> None:
    scanner = StopScanner(["</answer>"])
    assert scanner.feed("a < b, </ans") == "a < b, "
    assert scanner.feed("wers>") == "</answers>"


def test_a_token_waits_for_its_text() -> None:
    transcript = Transcript(Generation(prompt=(1,), stop=("\nUser:",)), ROOM)
    said = [b"a", b"b\n", b"\n", b"Hi", b"\n", b"User:"]
    written = [transcript.add(Taken(token, text)) for token, text in enumerate(said)]
    assert [one.piece for one in written] == [
        Piece("a", (0,)),
        Piece("b", ()),
        Piece("\n", (1,)),
        Piece("\nHi", (2, 3)),
        None,
        Piece("", (4, 5)),
    ]


def test_limits_and_what_they_are_called() -> None:
    pieces = [b"a"] * 20
    assert transcribe(pieces, max_tokens=3)[1:] == (Written(Piece("a", (2,)), "max_tokens"), 3)
    context_full = Transcript(Generation(prompt=(1,) * 8), 2)
    context_full.add(Taken(0, b"a"))
    assert context_full.add(Taken(1, b"a")).cause == "context_full"


def test_a_character_cut_by_the_limit_is_replaced() -> None:
    text, written, _ = transcribe(["é".encode()[:1], "é".encode()[1:]], max_tokens=1)
    assert (text, written.cause) == ("\ufffd", "max_tokens")


def forced(said: Sequence[bytes], **given: Any) -> list[tuple[int, ...]]:
    """What is forced after each token, with a budget of two tokens and what is given of it."""
    fields = {"opens": ("<t>",), "closes": ("</t>",), "is_open": False, **given}
    budget = ThinkingBudget(tokens=2, closing=(7, 8), **fields)
    transcript = Transcript(Generation(prompt=(1,), thinking=budget), ROOM)
    return [transcript.add(Taken(n, text)).force for n, text in enumerate(said)]


def test_the_budget_counts_only_reasoning_and_forces_once() -> None:
    said = [b"before", b"<", b"t>", b"one", b"two", b"three"]
    assert forced(said, anywhere=True) == [(), (), (), (7, 8), (), ()]


def test_the_budget_knows_every_spelling_and_that_a_call_ends_reasoning() -> None:
    spelled: dict[str, Any] = {"opens": ("<t>", "<thought>"), "closes": ("</t>", "<call>")}
    assert forced([b"\n", b"<thou", b"ght>", b"one", b"two"], **spelled)[-2] == (7, 8)
    said = [b"<", b"t>", b"<call>", b"one", b"two", b"three"]
    assert not any(forced(said, **spelled))


def test_what_opens_reasoning_is_text_behind_other_text() -> None:
    assert not any(forced([b"Say ", b"<t>", b" so", b" that", b" it"]))


def test_nothing_is_forced_into_a_character() -> None:
    said = [b"one", "é".encode()[:1], "é".encode()[1:], b"three"]
    assert forced(said, is_open=True) == [(), (), (7, 8), ()]


def test_reasoning_that_goes_on_elsewhere_goes_on_spending() -> None:
    said = [b"<t>", b"</t>", b"so", b"<t>", b"one"]
    assert forced(said, anywhere=True) == [(), (), (), (7, 8), ()]


def test_the_budget_rests_when_reasoning_closes_by_itself() -> None:
    budget = ThinkingBudget(tokens=3, closing=(7,), opens=("<t>",), closes=("</t>",), is_open=True)
    transcript = Transcript(Generation(prompt=(1,), thinking=budget), ROOM)
    said = [b"short", b"</", b"t>", b"a", b"b", b"c", b"d"]
    assert not any(transcript.add(Taken(n, text)).force for n, text in enumerate(said))
