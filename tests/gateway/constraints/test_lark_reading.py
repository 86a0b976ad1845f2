"""A client's Lark grammar is read whole, or it is said what of it can't be."""

import pytest

from gateway.constraints.lark_reading import (
    Name,
    Text,
    UnreadableGrammar,
    is_deterministic,
    read_lark,
    read_regex,
)
from tests.patches import GRAMMAR


def test_rules_terminals_and_imports_are_read() -> None:
    read = read_lark(GRAMMAR)
    assert read.definitions["deleted"] == (Text("*** Delete File: "), Name("PATH"), Name("LF"))
    assert {"start", "change", "TEXT", "LF"} <= set(read.definitions)


def test_a_backslash_that_is_escaped_escapes_nothing() -> None:
    read = read_lark(r'start: "\\x41" "\x41" "\\\x41"')
    assert read.definitions["start"] == (Text(r"\x41"), Text("A"), Text(r"\A"))


def test_what_means_nothing_for_a_text_is_passed_over() -> None:
    plain = read_lark('start: ((a)?) b{2,3}\na: "x"\nb: "y"i')
    dressed = read_lark('// a comment\n?start: [a] b~2..3 -> tree\n!a: "x" # more\n\n b: "y"i')
    assert dressed == plain


@pytest.mark.parametrize(
    "text",
    [
        'start[lazy]: "a"',
        "start: <|end|>",
        "start: @other",
        "start: A & B\nA: /a/\nB: /b/",
        "start: A\nA: ~/a/",
        "%import python.NAME\nstart: NAME",
        "start: /a*?/",
        "start: /a{2}{3}?/",
        "start: /^a$/",
        "start: /(?=a)b/",
        'begin: "a"',
        f"start: /{'(' * 100}a{')' * 100}/",
        f"start: /{'a' * 5000}/",
        f"start: /a{'?' * 9}/",
        f"start: /a{'+' * 5000}/",
        f"start: /{''.join(map(chr, range(0x4E00, 0x5100)))}*/",
    ],
)
def test_what_can_not_be_written_in_another_alphabet_is_said(text: str) -> None:
    with pytest.raises(UnreadableGrammar):
        read_lark(text)


@pytest.mark.parametrize(
    ("pattern", "grouped"),
    [
        ("a{2}{3}", "(a{2}){3}"),
        ("a++", "(a+)+"),
        ("xa?+y", "x(a?)+y"),
        (r"(\d{3})*{2}|b", r"((\d{3})*){2}|b"),
        ("[ab]{2}{1,}*c", "(([ab]{2}){1,})*c"),
    ],
)
def test_a_repetition_of_a_repetition_repeats_all_of_it_as_in_rust(
    pattern: str, grouped: str
) -> None:
    assert read_regex(pattern) == read_regex(grouped)


@pytest.mark.parametrize("pattern", ["*a", "(+a)", "a|{2}", "a)"])
def test_what_repeats_nothing_is_no_regular_expression(pattern: str) -> None:
    with pytest.raises(UnreadableGrammar):
        read_regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "is_one"),
    [
        (r"[^\n]*", True),
        (r"(\r?\n)+", True),
        (r'"([^"\\\n]|\\[^\n])*"', True),
        (r"(a|b)*c", True),
        ("a++b", True),
        ("(ab?){2}{3}b", False),
        (r".*foo", False),
        (r"a?a", False),
        (r"(ab|ac)", False),
        (r"(?i:a)A", True),
        (r"(?i:a*)A", False),
        ("a*" * 1000, False),
    ],
)
def test_only_what_one_character_decides_is_deterministic(pattern: str, is_one: bool) -> None:
    assert is_deterministic(read_regex(pattern)) is is_one
