"""Recognises which format a model speaks, by texts: its template, its vocabulary, what it declares.

The rules are ordered: a text that only one family has comes before a text that several share. A
format that is declared instead (Hugging Face's `response_template`) is read as far as there is a
parser for what it says.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.splitter.formats import FORMATS, hunyuan_3
from gateway.splitter.payloads.json_text import loaded
from gateway.splitter.payloads.reading import LONGEST
from gateway.splitter.payloads.syntax import (
    ElementCalls,
    Format,
    JsonCalls,
    KeyValueCalls,
    NamedJsonCalls,
    ReasoningMarkers,
    Syntax,
    texts_of,
)

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
MOST = 100  # texts of one anchor
_PATTERN_SIGNS = re.compile(r"[\\^$*+?{}|()\[\].]")


def declared_texts(response_template: str) -> str:
    """All texts of a response template without regular expressions' escapes; "" if not JSON."""
    return "\n".join(text.replace("\\", "") for text in texts_of(_decoded(response_template)))


def declared_format(response_template: str) -> Format | None:
    """A format made of what is declared; None if nothing of it can be used.

    A response template is JSON: `fields` by name, each with an `open` and a `close` text (or a
    regular expression under `open_pattern`, `close_pattern`) and the syntax of its `content`
    (transformers.utils.chat_parsing, version 1). The older `response_schema` is JSON with regular
    expressions; of it only the texts are used (`declared_texts`).
    """
    fields = _mapping(_mapping(_decoded(response_template)).get("fields"))
    reasoning = next(
        (found for name in _REASONING_FIELDS if (found := _reasoning(fields.get(name)))), None
    )
    calls = _calls(fields.get("tool_calls"))
    if reasoning is None and calls is None:
        return None
    syntaxes: tuple[Syntax, ...] = () if calls is None else (calls,)
    return Format(id="declared", reasoning=reasoning, syntaxes=syntaxes, special_tokens=True)


def _reasoning(field: Any) -> ReasoningMarkers | None:
    opens, closes = _anchor(field, "open"), _anchor(field, "close")
    return ReasoningMarkers(opens, closes) if opens and closes else None


def _calls(field: Any) -> Syntax | None:
    """Calls as JSON objects, or as a name that the pattern finds with JSON, elements or lines
    behind.
    """
    declared, closes = _mapping(field), _anchor(field, "close")
    content, values = declared.get("content"), _mapping(declared.get("content_args"))
    head = _around(declared.get("open_pattern"), "name")
    if head is None and content == "json" and not values and (opens := _anchor(field, "open")):
        return JsonCalls(openers=opens, closers=closes)
    if head is None or not (opens := head[0]):
        return None
    if content == "json" and not values:
        return NamedJsonCalls(
            openers=opens, call_opens=opens, call_closes=closes, name_ends=head[1]
        )
    separator = values.get("kv_sep", ":")
    if content == "kv-lines" and closes and "line_sep" not in values and separator:
        return KeyValueCalls(
            openers=opens,
            call_opens=opens,
            call_closes=closes,
            name_ends=head[1],
            key_closes=(str(separator),),
        )
    tag = _around(values.get("tag_pattern"), "key")
    value = tag and _around(tag[2], "value")
    if content != "xml-inline" or not tag or not value or not (tag[0] and value[1] and closes):
        return None
    ends = tuple(end.removeprefix('"') for end in (*head[1], *value[0]))
    return ElementCalls(
        openers=opens,
        call_opens=tuple(map(_element, opens)),
        head_ends=ends,
        call_closes=closes,
        parameter_opens=tuple(map(_element, tag[0])),
        parameter_closes=value[1],
    )


def _element(text: str) -> str:
    """The beginning of a tag, without the attribute that names the element."""
    return re.sub(r"""\s+name=["']?\Z""", "", text)


def _around(pattern: Any, group: str) -> tuple[tuple[str, ...], tuple[str, ...], str] | None:
    """The texts before and behind a pattern's group, and the pattern behind; None without it."""
    if not isinstance(pattern, str):
        return None
    found = re.search(rf"\(\?P<{group}>[^()]*\)", pattern[:LONGEST])
    if found is None:
        return None
    behind = pattern[found.end() :]
    return _spellings(pattern[: found.start()]), _spellings(behind), behind


def _spellings(pattern: str) -> tuple[str, ...]:
    """The texts that a pattern matches, white space aside; none where it isn't texts alone."""
    found = re.search(r"\(\?:([^()|]*)\)\?", pattern)
    if found is not None and pattern.count("(?:") <= 4:
        ways = (pattern.replace(found[0], each, 1) for each in (found[1], ""))
        return tuple(text for way in ways for text in _spellings(way))
    bare = re.sub(r"\\s[*+]", "", pattern)
    signs = _PATTERN_SIGNS.search(re.sub(r"\\.", "", bare))
    return () if signs else _marker(re.sub(r"\\(.)", r"\1", bare))


def _anchor(field: Any, side: str) -> tuple[str, ...]:
    """The texts of an anchor; a pattern counts where it is texts."""
    match _mapping(field).get(side, _mapping(field).get(f"{side}_pattern")):
        case str(text) if side in field:
            return _marker(text)
        case str(pattern):
            return _spellings(pattern[:LONGEST])
        case list(texts):
            return tuple(
                marker for text in texts[:MOST] if isinstance(text, str) for marker in _marker(text)
            )
        case _:
            return ()


def _marker(text: str) -> tuple[str, ...]:
    """The text as a marker; none where it is empty or too long to be one."""
    return (stripped,) if 0 < len(stripped := text.strip()) <= LONGEST else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _decoded(response_template: str) -> Any:
    try:
        return loaded(response_template)
    except ValueError:
        return None


class Recognised(msgspec.Struct, frozen=True):
    """A format, and why it was taken, in words for the user. `reads_calls`: False where it reads
    none of those that the template writes; `unread`: markers in those that it doesn't read.
    """

    format: Format
    why: str
    reads_calls: bool = True
    unread: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True):
    """A format is taken where all texts of `all_of` occur and none of `none_of`."""

    format: str
    all_of: tuple[str, ...]
    none_of: tuple[str, ...] = ()

    def fits(self, text: str) -> bool:
        """The rule's texts are as they should be."""
        return all(part in text for part in self.all_of) and not any(
            part in text for part in self.none_of
        )


RULES = (
    Rule("beam", ("<rfl:parameter",)),
    Rule("inkling", ("<|content_invoke_tool_json|>",)),
    Rule("harmony", ("<|channel|>", "<|message|>")),
    Rule("muse", ("<atem:function_calls>", "<|eom|>")),
    Rule("functionary_v3_2", (">>>all", ">>>${recipient}")),
    Rule("kimi_k3_xtml", ("<|open|>", "<|close|>", "<|end_of_msg|>")),
    Rule("kimi_k2", ("<|tool_calls_section_begin|>",)),
    Rule("minimax_m3", ("]<]minimax[>[",)),
    Rule("minimax_m2", ("<minimax:tool_call>",)),
    Rule("deepseek_v4_dsml", ("DSML", "tool_calls"), none_of=("function_calls",)),
    Rule("deepseek_v4_dsml", ("DSML", " calls>"), none_of=("function_calls",)),
    Rule("deepseek_v32_dsml", ("DSML", "function_calls")),
    Rule("solar_open", ("<|tool_call:begin|>", "<|tool_call:args|>")),
    Rule("cohere_cmd3", ("<|START_ACTION|>",)),
    Rule("cohere_action_json", ("Action:", "<|CHATBOT_TOKEN|>")),
    Rule("lfm2_pythonic", ("<|tool_list_start|>",)),
    Rule("lfm2_pythonic", ("<|tool_call_start|>",)),
    Rule("lfm2_pythonic", ("List of tools: [",)),
    Rule("gemma4", ("<|tool_call>", "<tool_call|>")),
    Rule("functiongemma", ("<start_function_call>",)),
    Rule("seed_oss_xml", ("<seed:tool_call>",)),
    Rule("apertus", ("<|tools_prefix|>",)),
    Rule("longcat_json", ("<longcat_tool_call>",)),
    Rule("hy3", ("<tool_sep", "<arg_key")),
    Rule("glm45", ("<arg_key>",)),
    Rule("minicpm5_xml", ('<function name="', '<param name="')),
    Rule("step3_steptml", ("<steptml:invoke",)),
    Rule("qwen3_coder_xml", ("<tool_call>", "<function=", "<parameter=")),
    Rule("deepseek_v3", ("<｜tool▁calls▁begin｜>",)),
    Rule("internlm2", ("<|action_start|>",)),
    Rule("mistral_v11", ("[TOOL_CALLS]", "[ARGS]")),
    Rule("mistral_v3", ("[TOOL_CALLS]",)),
    Rule("nemotron_v2", ("<TOOLCALL>",)),
    Rule("apriel", ("[BEGIN FINAL RESPONSE]",)),
    Rule("gigachat31", ("<|role_sep|>", "<|message_sep|>")),
    Rule("olmo3_pythonic", ("<function_calls>",)),
    Rule("hunyuan_a13b", ("<tool_calls>[", "你")),
    Rule("minimax_m1", ("<tool_calls>", "<beginning_of_sentence>")),
    Rule("jamba", ("<tool_calls>", "<|bom|>")),
    Rule("functionary_v3_1", ("<function=", "</function>"), none_of=("<parameter=",)),
    Rule("granite_20b_fc", ("<function_call>",)),
    Rule("phi4_mini", ("functools[",)),
    Rule("granite33_think", ("<|start_of_role|>", "<response>"), none_of=("<tool_call>\\n",)),
    Rule("granite32_phrases", ("<|start_of_role|>", "Here is my thought process:")),
    Rule("granite_array", ("<|tool_call|>",)),
    Rule("granite_array", ("<|start_of_role|>",), none_of=("<tool_call>\\n",)),
    Rule("ernie45", ("<tool_call>", "<response>")),
    Rule("hermes_json", ("<tool_call>",)),
    Rule("xlam_array", ("JSON array", '"tool_call')),
    Rule("llama3_json", ("<|python_tag|>",)),
    Rule("llama3_json", ("<|start_header_id|>", '"parameters": '), none_of=("[func_name1(",)),
    Rule("llama3_json", ("<|header_start|>", '"parameters": '), none_of=("[func_name1(",)),
    Rule("pythonic", ("[func_name1(",)),
    Rule("kimi_vl_think", ("◁think▷",)),
)

# Reasoning markers where the format's own entry has none, the most specific first.
REASONING = tuple(
    markers
    for name in (
        *("seed_oss_xml", "minimax_m3", "longcat_json", "mistral_v11", "kimi_vl_think"),
        *("cohere_cmd3", "apertus", "think_text"),
    )
    if (markers := FORMATS[name].reasoning) is not None
)

# Where neither template nor special tokens decide: `model_type`s of models' configurations.
_TYPES: Mapping[str, str] = {
    "apertus": "apertus",
    "deepseek_v3": "deepseek_v3",
    "gemma4": "gemma4",
    "glm45": "glm4_moe",
    "harmony": "gpt_oss",
    "hermes_json": "qwen2 qwen2_moe qwen3 qwen3_moe smollm3 exaone4 granitemoehybrid",
    "jamba": "jamba",
    "lfm2_pythonic": "lfm2 lfm2_moe",
    "minimax_m2": "minimax_m2",
    "olmo3_pythonic": "olmo3",
    "pythonic": "llama4",
    "qwen3_coder_xml": "qwen3_5 qwen3_5_moe",
    "seed_oss_xml": "seed_oss",
}
MODEL_TYPES = {one: entry for entry, types in _TYPES.items() for one in types.split()}

# What Hunyuan 3's checkpoints append to every marker, in a marker or as a variable of the template.
_SUFFIX = re.compile(r"""(?:<tool_calls|["'])(:\w+)[>"']""")


def recognise(
    *,
    template: str | None,
    control_tokens: Sequence[str] = (),
    model_type: str = "",
    response_template: str | None = None,
) -> Recognised:
    """The format of a model, from its tokenizer's declaration, template, tokens or type."""
    return (
        _declared(response_template)
        or _by_rule(template or "", "the chat template contains")
        or _by_rule(" ".join(control_tokens), "the vocabulary has the special tokens")
        or _by_type(model_type)
        or _by_reasoning(" ".join((template or "", *control_tokens)))
        or Recognised(FORMATS["plain"], "no known marker in the chat template or the vocabulary")
    )


def _declared(response_template: str | None) -> Recognised | None:
    """What the tokenizer declares; the table's entry where it has one for these markers."""
    if not response_template:
        return None
    where = "the tokenizer's response template declares"
    known = _by_rule(declared_texts(response_template), where)
    if known is None and (declared := declared_format(response_template)) is not None:
        return Recognised(declared, f"{where} its markers")
    return known


def _by_rule(text: str, where: str) -> Recognised | None:
    for rule in RULES:
        if rule.fits(text):
            why = f"{where} {' and '.join(map(repr, rule.all_of))}"
            return Recognised(_as_marked(FORMATS[rule.format], text), why)
    return None


def _by_type(model_type: str) -> Recognised | None:
    if model_type not in MODEL_TYPES:
        return None
    return Recognised(FORMATS[MODEL_TYPES[model_type]], f"the model type is {model_type!r}")


def _by_reasoning(text: str) -> Recognised | None:
    markers = _reasoning_in(text)
    if markers is None:
        return None
    entry = msgspec.structs.replace(FORMATS["think_text"], reasoning=markers)
    return Recognised(entry, f"only reasoning is marked: {markers.open!r}")


def _as_marked(format: Format, text: str) -> Format:
    """The format with the markers as this template spells them."""
    if format.id == "hy3" and (found := _SUFFIX.search(text)):
        return hunyuan_3(found[1], "")
    if format.headers is not None:
        return format
    if format.reasoning is not None and any(marker in text for marker in format.reasoning.opens):
        return format
    markers = _reasoning_in(text)
    return format if markers is None else msgspec.structs.replace(format, reasoning=markers)


def _reasoning_in(text: str) -> ReasoningMarkers | None:
    return next((markers for markers in REASONING if markers.open in text), None)
