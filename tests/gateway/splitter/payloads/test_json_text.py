"""JSON and Python literals as models write them come out as valid JSON of the same value."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.splitter.payloads import json_text, python_text
from gateway.splitter.payloads.arguments import DEEPEST, ArgumentsWriter
from gateway.splitter.payloads.json_text import copy_nested
from gateway.splitter.payloads.reading import Malformed, Reader
from tests.every import for_every

Literal = Any  # whatever JSON can hold


def copied(text: str, *, python: bool, size: int = 1) -> Literal:
    """The value of a literal that is followed by a comma, fed in pieces."""
    written: list[str] = []
    reader = Reader()
    notation = python_text.STRICT if python else replace(json_text.JSON, lenient=False)
    parsing = copy_nested(reader, ArgumentsWriter(written.append), notation)
    text += ","
    for at in range(0, len(text), size):
        reader.append(text[at : at + size])
        if next(parsing, "done") == "done":
            break
    assert reader.text[reader.at :] + text[at + size :] == ","
    return json.loads("".join(written))


@for_every(
    ("text", "value"),
    [
        ("5", 5),
        ("-2.5e3", -2500.0),
        ("+5", 5),
        ("05", 5),
        ("-007", -7),
        ("5.", 5.0),
        ("True", True),
        ("None", None),
        ("null", None),
        ('""', ""),
        ('"a\\/b\\n"', "a/b\n"),
        ('"it\\\'s"', "it's"),
        ('"C:\\dir"', "C:\\dir"),
        ('"\\u00e9\\ud83d\\ude80"', "é🚀"),
        ('"\\u00zz"', "\\u00zz"),
        ('"\\ud83dx"', "\ud83dx"),
        ('"a\nb\x00"', "a\nb\x00"),
        ("[]", []),
        ("[1, [2,], ]", [1, [2]]),
        ("{}", {}),
        ('{"a": {"b": [null]}, "c": "d",}', {"a": {"b": [None]}, "c": "d"}),
    ],
)
@for_every("size", [1, 2, 1000])
def test_json(text: str, value: Literal, size: int) -> None:
    assert copied(text, python=False, size=size) == value


@for_every(
    ("text", "value"),
    [
        ("-5", -5),
        ("True", True),
        ("false", False),
        ("None", None),
        ("''", ""),
        ("'a\"b'", 'a"b'),
        ('"it\'s"', "it's"),
        ("'''a 'quoted' ''b'' c'''", "a 'quoted' ''b'' c"),
        ('"""a"b"""', 'a"b'),
        (r"'\n\t\\\'\"'", "\n\t\\'\""),
        ("'a\\\nb'", "ab"),
        (r"'\x41\u00e9\U0001F680\101\0'", "Aé🚀A\0"),
        (r"'\ud83d\ude80'", "🚀"),
        (r"'\ud83d!'", "�!"),
        (r"'\ud83d\u41'", "�\\u41"),
        (r"'\d \x4 \U00110000'", "\\d \\x4 \\U00110000"),
        ("'line\nbreak'", "line\nbreak"),
        ("[1, 'a', (2, 3), ()]", [1, "a", [2, 3], []]),
        ("{'a': {\"b\": [None]}, 'c': -1.5,}", {"a": {"b": [None]}, "c": -1.5}),
        ("{}", {}),
    ],
)
@for_every("size", [1, 2, 1000])
def test_python(text: str, value: Literal, size: int) -> None:
    assert copied(text, python=True, size=size) == value


@pytest.mark.parametrize("python", [True, False], ids=["python", "json"])
@pytest.mark.parametrize(
    "text",
    ["?", "tru", "1_000", "1e999x", "inf", "nan", "[1 2]", "{1: 2}", "{'a' 1}", "{'a': 1; }", "٣"],
)
def test_what_is_no_literal_is_refused(text: str, python: bool) -> None:
    with pytest.raises(Malformed):
        copied(text.replace("'", "'" if python else '"'), python=python)


encodable = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | encodable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(encodable, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values, st.integers(1, 9), st.booleans())
def test_any_value_comes_back(value: Literal, size: int, ascii_only: bool) -> None:
    assert copied(json.dumps(value, ensure_ascii=ascii_only), python=False, size=size) == value
    assert copied(repr(value), python=True, size=size) == value


class TestWriter:
    """Whatever happens, what was written can be closed to valid JSON."""

    def test_it_closes_what_is_open(self) -> None:
        written: list[str] = []
        writer = ArgumentsWriter(written.append)
        writer.open("{")
        writer.key("a")
        writer.open("[")
        writer.scalar("1")
        writer.begin_string()
        writer.string("b")
        writer.finish_off()
        assert "".join(written) == '{"a":[1,"b"]}'

    def test_a_key_without_a_value_is_not_written(self) -> None:
        written: list[str] = []
        writer = ArgumentsWriter(written.append)
        writer.open("{")
        writer.key("a")
        writer.finish_off()
        assert "".join(written) == "{}"

    def test_it_has_a_bottom(self) -> None:
        writer = ArgumentsWriter(lambda _text: None)
        for _ in range(DEEPEST):
            writer.open("[")
        with pytest.raises(Malformed, match="nested deeper"):
            writer.open("[")
