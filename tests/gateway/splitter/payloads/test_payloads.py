"""What single syntaxes do beyond what the corpus shows."""

# ruff: noqa: E501 — a table is read along its rows

import json
from typing import Any

import pytest

from gateway.splitter import FORMATS, Splitter
from gateway.terms.request import Tool
from tests.gateway.splitter.corpus import join

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "words": {"type": "array", "items": {"type": "string"}},
        "size": {"type": "object", "properties": {"w": {"type": "number"}}},
        "count": {"type": "integer"},
        "perhaps": {"type": ["string", "null"]},
        "flag": {"type": "boolean"},
    },
}
TOOLS = [Tool(name="store", parameters=SCHEMA), Tool(name="loose")]


def arguments(format: str, text: str) -> list[Any]:
    """The arguments of all calls, the output read in one piece and by characters."""
    answers = []
    for pieces in ([text], list(text)):
        splitter = Splitter(FORMATS[format], in_reasoning=False, tools=TOOLS)
        events = [event for piece in pieces for event in splitter.feed(piece)]
        answer = join(events + splitter.finish("stop"))
        assert (answer.content, answer.finished.warning) == ("", None)
        answers.append([json.loads(text) for text in answer.arguments])
    assert answers[0] == answers[1]
    return answers[0]


def qwen(*parameters: tuple[str, str], name: str = "store") -> str:
    inner = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "\nOslo\n", "Oslo"),
        ("text", "Oslo\n", "Oslo"),
        ("text", "\nOslo", "Oslo"),
        ("text", "\n\n Oslo \n\n", "\n Oslo \n"),
        ("text", "", ""),
        ("text", "\n", ""),
        ("text", "\n\n", ""),
        ("text", "a </parameter> b", "a </parameter> b"),
        ("text", "a\n</parameter>\nb\n", "a\n</parameter>\nb"),
        ("text", "<![CDATA[x]]>", "<![CDATA[x]]>"),
        ("text", "</function>\n</tool_call>", "</function>\n</tool_call>"),
        ("text", "True", "True"),
        ("flag", "\nTrue\n", True),
        ("flag", "perhaps", "perhaps"),
        ("count", "\n 5 \n", 5),
        ("count", "five", "five"),
        ("words", "\n['a', \"b\"]\n", ["a", "b"]),
        ("size", '\n{\n  "w": 1.50\n}\n', {"w": 1.5}),
        ("perhaps", "null", None),
        ("perhaps", "nullable", "nullable"),
        ("unknown", "5", "5"),
    ],
)
def test_values_between_tags(key: str, text: str, value: Any) -> None:
    assert arguments("qwen3_coder_xml", qwen((key, text))) == [{key: value}]


def test_a_tool_without_a_schema_takes_strings() -> None:
    assert arguments("qwen3_coder_xml", qwen(("a", "1"), ("b", "x"), name="loose")) == [
        {"a": "1", "b": "x"}
    ]


@pytest.mark.parametrize("gap", ["", "\n"])
def test_cdata_ends_with_its_own_mark(gap: str) -> None:
    value = "<param>a</param></function> ]] b"
    text = f'<function name="store"><param name="text"><![CDATA[{value}]]>{gap}</param></function>'
    assert arguments("minicpm5_xml", text) == [{"text": value}]


def test_two_functions_in_one_tag() -> None:
    text = "<tool_call><function=loose></function><function=store></function></tool_call>"
    assert arguments("qwen3_coder_xml", text) == [{}, {}]


@pytest.mark.parametrize(
    ("attribute", "text", "value"),
    [
        ('string="true"', "5", "5"),
        ('string="false"', "5", 5),
        ('string="false"', "[1, null]", [1, None]),
        ('string="false"', "Oslo", "Oslo"),
        ("", "5", 5),
        ("", "Oslo", "Oslo"),
    ],
)
def test_dsml_says_what_is_a_string(attribute: str, text: str, value: Any) -> None:
    parameter = f'<｜DSML｜parameter name="count" {attribute}>{text}</｜DSML｜parameter>'
    call = f'<｜DSML｜invoke name="store">{parameter}</｜DSML｜invoke>'
    text = f"<｜DSML｜tool_calls>{call}</｜DSML｜tool_calls>"
    assert arguments("deepseek_v4_dsml", text) == [{"count": value}]


def test_dsml_with_spaces_before_the_tag_names() -> None:
    text = (
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="store">\n'
        '<｜DSML｜ parameter name="text" string="true">Oslo</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    )
    assert arguments("deepseek_v4_dsml", text) == [{"text": "Oslo"}]


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        ("string", "5", "5"),
        ("number", "5", 5),
        ("boolean", "true", True),
        ("null", "null", None),
        ("object", '{"a": 1}', {"a": 1}),
        ("array", "[]", []),
        ("number", "many", "many"),
    ],
)
def test_xtml_says_the_type(type: str, text: str, value: Any) -> None:
    argument = f'<|open|>argument key="k" type="{type}"<|sep|>{text}<|close|>argument<|sep|>'
    call = f'<|open|>call tool="store" index="1"<|sep|>{argument}<|close|>call<|sep|>'
    text = f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>"
    assert arguments("kimi_k3_xtml", text) == [{"k": value}]


def minimax(inner: str) -> str:
    prefix = "]<]minimax[>["
    text = f'<tool_call><invoke name="store">{inner}</invoke></tool_call>'
    return text.replace("<", f"{prefix}<")


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("<text></text>", {"text": ""}),
        ("<words></words>", {"words": []}),
        ("<words><item>a</item> <item></item></words>", {"words": ["a", ""]}),
        ("<size></size>", {"size": {}}),
        ("<size>\n<w>2</w>\n</size>", {"size": {"w": 2}}),
        ("<count></count>", {"count": ""}),
        ("<perhaps>null</perhaps><flag>true</flag>", {"perhaps": None, "flag": True}),
        ("<free><item>1</item><item>2</item></free>", {"free": ["1", "2"]}),
        ("<free><a>1</a><b><c>d</c></b></free>", {"free": {"a": "1", "b": {"c": "d"}}}),
    ],
)
def test_nested_elements(inner: str, value: Any) -> None:
    assert arguments("minimax_m3", minimax(inner)) == [value]


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("", {}),
        ("a:1,b:-2.5,c:true,d:null", {"a": 1, "b": -2.5, "c": True, "d": None}),
        ("a:[],b:{},c:[1,[2]]", {"a": [], "b": {}, "c": [1, [2]]}),
        ('a:<|"|>{x: [1], "y"}<|"|>', {"a": '{x: [1], "y"}'}),
        ('a:<|"|>a\\nb<|"|>', {"a": "a\\nb"}),
        ('<|"|>a b<|"|>:1', {"a b": 1}),
        ("a: Oslo , b : two words", {"a": "Oslo", "b": "two words"}),
        (
            '"a" :1, "a:b" : 2,"c, d":3,"say \\"e:\\"":4',
            {"a": 1, "a:b": 2, "c, d": 3, 'say "e:"': 4},
        ),
        ('"a:1,b":2,"c: <|"|>x<|"|>', {"a": 1, "b": 2, "c": "x"}),
        ('"a:"x", "b : Oslo', {"a": "x", "b": "Oslo"}),
        ("'a:1,b':2", {"a": 1, "b": 2}),
        (r'"a:C:\b', {"a": r"C:\b"}),
        ('""a"":1,"b"c :2', {"a": 1, 'b"c': 2}),
    ],
)
def test_bare_dicts(inner: str, value: Any) -> None:
    assert arguments("gemma4", f"<|tool_call>call:store{{{inner}}}<tool_call|>") == [value]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("pythonic", "[store(text='a'), store(text='a')]"),
        ("pythonic", "[\n store( text = 'a' ),\n store(text='a',)\n]"),
        ("lfm2_pythonic", "<|tool_call_start|>[store(text='a'), store(text='a')]<|tool_call_end|>"),
        ("lfm2_pythonic", '<|tool_call_start|>[{"name": "store", "arguments": {"text": "a"}}, {"name": "store", "arguments": {"text": "a"}}]<|tool_call_end|>'),
        ("olmo3_pythonic", "<function_calls>\nstore(text='a')\nstore(text='a')\n</function_calls>"),
        ("llama3_json", '{"name": "store", "parameters": {"text": "a"}}; {"name": "store", "parameters": {"text": "a"}}'),
        ("mistral_v3", '[TOOL_CALLS] [{"name": "store", "arguments": {"text": "a"}}, {"name": "store", "arguments": {"text": "a"}}]'),
        ("minimax_m1", '<tool_calls>\n{"name": "store", "arguments": {"text": "a"}}\n{"name": "store", "arguments": {"text": "a"}}\n</tool_calls>'),
        ("xlam_array", '```json\n[{"name": "store", "arguments": {"text": "a"}}, {"name": "store", "arguments": {"text": "a"}}]\n```'),
    ],
)  # fmt: skip
def test_several_calls_in_one_place(format: str, text: str) -> None:
    assert arguments(format, text) == [{"text": "a"}, {"text": "a"}]
