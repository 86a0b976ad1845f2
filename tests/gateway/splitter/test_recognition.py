"""A model's format is read from its files, and the start of its turn from the rendered prompt."""

# ruff: noqa: E501 — a table is read along its rows

import json
from typing import Any

import pytest

from gateway.splitter import FORMATS, Splitter, recognise, starts_in_reasoning
from gateway.splitter.recognition import MODEL_TYPES, RULES
from gateway.terms.request import Tool
from tests.every import for_every
from tests.gateway.splitter.corpus import CASES, join

# What a template of each family contains, apart from what all templates contain.
TEMPLATES = [
    ("harmony", "<|channel|>analysis<|message|> <|start|>"),
    ("beam", "<|channel|> <|message|> <rfl:parameter"),
    ("inkling", "<|content_invoke_tool_json|>"),
    ("muse", "<atem:function_calls> <|eom|> to=self<|message|>"),
    ("functionary_v3_2", ">>>all\\n ... >>>${recipient}"),
    ("kimi_k3_xtml", "<|open|>think<|sep|> <|close|> <|end_of_msg|>"),
    ("kimi_k2", "<|tool_calls_section_begin|> <think>"),
    ("minimax_m3", "]<]minimax[>[<tool_call> <mm:think>"),
    ("minimax_m2", "<minimax:tool_call> <invoke name="),
    ("deepseek_v4_dsml", "<｜DSML｜tool_calls>"),
    ("deepseek_v4_dsml", "<｜DSML｜ calls>"),
    ("deepseek_v32_dsml", "<｜DSML｜function_calls> tool_calls"),
    ("solar_open", "<|tool_call:begin|> <|tool_call:args|>"),
    ("cohere_cmd3", "<|START_ACTION|> <|START_TEXT|>"),
    ("cohere_cmd3", "<|START_ACTION|> <|START_RESPONSE|>"),
    ("cohere_action_json", "<|CHATBOT_TOKEN|> Action:"),
    ("lfm2_pythonic", "List of tools: <|tool_list_start|>["),
    ("lfm2_pythonic", "List of tools: ["),
    ("gemma4", "<|tool_call>call: <tool_call|> <|channel>thought"),
    ("functiongemma", "<start_function_call>"),
    ("seed_oss_xml", "<seed:tool_call> <function= <parameter= <seed:think>"),
    ("apertus", "<|tools_prefix|> <|inner_prefix|>"),
    ("longcat_json", "<longcat_tool_call>"),
    ("hy3", "<tool_sep> <arg_key>"),
    ("glm45", "<tool_call> <arg_key> <think>"),
    ("minicpm5_xml", '<function name="f"> <param name="k">'),
    ("step3_steptml", "<steptml:invoke <｜tool_calls_begin｜>"),
    ("qwen3_coder_xml", "<tool_call> <function= <parameter= </function>"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜> ```json"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>"),
    ("internlm2", "<|action_start|>"),
    ("mistral_v11", "[TOOL_CALLS] [ARGS] [THINK]"),
    ("mistral_v3", "[TOOL_CALLS]"),
    ("nemotron_v2", "<TOOLCALL>"),
    ("apriel", "[BEGIN FINAL RESPONSE] <tool_calls>"),
    ("gigachat31", "<|function_call|> <|role_sep|> <|message_sep|>"),
    ("gigachat31", "<|role_sep|> <|message_sep|>"),
    ("olmo3_pythonic", "<function_calls>"),
    ("hunyuan_a13b", "<tool_calls>[ 你"),
    ("minimax_m1", "<tool_calls> <beginning_of_sentence>"),
    ("jamba", "<tool_calls> <|bom|>"),
    ("functionary_v3_1", "<function= </function>"),
    ("granite_20b_fc", "<function_call>"),
    ("phi4_mini", "functools["),
    ("granite33_think", "<|start_of_role|> <think></think> <response></response>"),
    ("granite32_phrases", "<|start_of_role|> Here is my thought process:"),
    ("granite_array", "<|start_of_role|> <|tool_call|>"),
    ("granite_array", "<|start_of_role|>"),
    ("hermes_json", "<|start_of_role|> <tool_call>\\n"),
    ("ernie45", "<tool_call> <response>"),
    ("hermes_json", "<tool_call> <think>"),
    ("xlam_array", 'JSON array "tool_call'),
    ("llama3_json", "<|python_tag|>"),
    ("llama3_json", '<|start_header_id|> "parameters": '),
    ("pythonic", '<|start_header_id|> "parameters": [func_name1('),
    ("kimi_vl_think", "◁think▷"),
    ("think_text", "{% if thinking %}<think>{% endif %}"),
    ("plain", "<start_of_turn>model"),
]


@for_every(("id", "template"), TEMPLATES)
def test_by_template(id: str, template: str) -> None:
    recognised = recognise(template=template)
    assert recognised.format.id == id
    assert recognised.why


def test_the_reason_is_reported() -> None:
    assert recognise(template="<arg_key>").why == "the chat template contains '<arg_key>'"
    assert recognise(template="x").why == "no known marker in the chat template or the vocabulary"


def test_every_rule_and_every_type_leads_to_an_entry() -> None:
    assert {rule.format for rule in RULES} | set(MODEL_TYPES.values()) <= set(FORMATS)


def test_every_entry_but_the_last_resorts_has_a_rule() -> None:
    ids = {entry.id for entry in FORMATS.values()}
    assert ids - {rule.format for rule in RULES} == {"plain", "think_text"}


def test_by_special_tokens_without_a_template() -> None:
    recognised = recognise(template=None, control_tokens=["<s>", "<|tool_call_start|>"])
    assert recognised.format.id == "lfm2_pythonic"
    assert recognised.why == "the vocabulary has the special tokens '<|tool_call_start|>'"


def test_by_model_type_where_nothing_else_tells() -> None:
    assert recognise(template="<think>", model_type="smollm3").format.id == "hermes_json"
    assert recognise(template=None, model_type="unheard_of").format.id == "plain"


@pytest.mark.parametrize(
    ("template", "open", "close"),
    [
        ("<seed:think>", "<seed:think>", "</seed:think>"),
        ("[TOOL_CALLS] [ARGS] <think>", "<think>", "</think>"),
        ("[TOOL_CALLS] [THINK]", "[THINK]", "[/THINK]"),
        ("<tool_call>", "<think>", "</think>"),
        ("<tool_call> <tool_sep> <arg_key set X = ':open'", "<think:open>", "</think:open>"),
    ],
)
def test_reasoning_is_marked_as_the_template_spells_it(
    template: str, open: str, close: str
) -> None:
    reasoning = recognise(template=template).format.reasoning
    assert reasoning is not None
    assert (reasoning.open, reasoning.close) == (open, close)


def response_template(**fields: Any) -> str:
    return json.dumps({"version": 1, "start_anchor": "<|assistant|>", "fields": fields})


class TestResponseTemplate:
    """Hugging Face's declaration is read first."""

    def test_known_markers_lead_to_the_entry_that_streams_them(self) -> None:
        declared = response_template(
            tool_calls={"open_pattern": r"\s*<tool_call>\s*<function=(?P<name>\w+)>", "content": "xml-inline",
                        "content_args": {"tag_pattern": "<parameter=(?P<key>.*?)>"}},
        )  # fmt: skip
        recognised = recognise(template="[TOOL_CALLS]", response_template=declared)
        assert recognised.format.id == "qwen3_coder_xml"
        assert recognised.why.startswith("the tokenizer's response template declares '<tool_call>'")

    def test_unknown_markers_make_a_format(self) -> None:
        declared = response_template(
            thinking={"open": ["<muse>", "<ponder>"], "close": "</muse>"},
            tool_calls={"open_pattern": r"\s*<<call>>", "close": "<</call>>", "content": "json"},
        )
        entry = recognise(template=None, response_template=declared).format
        splitter = Splitter(entry, in_reasoning=False)
        assert splitter.feed("<muse>Hm.</muse>Yes.")
        assert entry.reasoning is not None
        assert entry.reasoning.opens == ("<muse>", "<ponder>")
        assert [syntax.openers for syntax in entry.syntaxes] == [("<<call>>",)]

    @pytest.mark.parametrize(
        ("calls", "written"),
        [
            (
                {"open_pattern": r"<<(?P<name>\w+)>>\s*", "close": "<</>>", "content": "json"},
                '<<f>>\n{"k": 1}<</>>',
            ),
            (
                {"open_pattern": r"(?:<\[t\]>)?to=(?P<name>.+?)<\[c\]>", "close": ["<[e]>", "<[x]>"], "content": "xml-inline",
                 "content_args": {"tag_pattern": r'<p name=\"(?P<key>[^\"]+)\">(?P<value>.*?)</p>'}},
                'to=f<[c]>\n<p name="k">1</p><[x]>',
            ),
            (
                {"open_pattern": r"<call=(?P<name>\w+)>", "close": "</call>", "content": "xml-inline",
                 "content_args": {"tag_pattern": r"<arg=(?P<key>\w+)>(?P<value>.*?)</arg>"}},
                "<call=f><arg=k>1</arg></call>",
            ),
            (
                {"open_pattern": r"<<(?P<name>\w+)>>", "close": "<</>>", "content": "kv-lines"},
                "<<f>>\nk: 1\nno pair\n<</>>",
            ),
            (
                {"open_pattern": r"<<(?P<name>\w+)>>", "close": "<</>>", "content": "kv-lines",
                 "content_args": {"kv_sep": "="}},
                "<<f>>k=1<</>>",
            ),
        ],
    )  # fmt: skip
    def test_calls_whose_name_a_pattern_finds(self, calls: Any, written: str) -> None:
        declared = response_template(tool_calls=calls)
        entry = recognise(template=None, response_template=declared).format
        schema = {"type": "object", "properties": {"k": {"type": "integer"}}}
        splitter = Splitter(entry, in_reasoning=False, tools=[Tool(name="f", parameters=schema)])
        answer = join([*splitter.feed(written), *splitter.finish("stop")])
        assert (*answer.names, *map(json.loads, answer.arguments)) == ("f", {"k": 1})
        assert answer.content == ""

    @pytest.mark.parametrize(
        "calls",
        [
            {"open_pattern": r"<<(?P<name>\w+)>>", "content": "kv-lines"},  # nothing ends it
            {
                "open_pattern": r"<<(?P<name>\w+)>>",
                "close": "x",
                "content": "kv-lines",
                "content_args": {"line_sep": ";"},
            },
            {"open_pattern": r"(?P<name>\w+)>>", "content": "json"},
            {"open": "<<call>>", "content": "kv-lines"},
            {"open": "<<call>>", "content": "json", "content_args": {"unquoted_keys": True}},
            {"content": "json"},
            "no field",
        ],
    )
    def test_calls_that_need_more_are_left_alone(self, calls: Any) -> None:
        declared = response_template(reasoning={"open": "<a>", "close": "<b>"}, tool_calls=calls)
        entry = recognise(template=None, response_template=declared).format
        assert entry.id == "declared"
        assert entry.syntaxes == ()

    def test_lines_that_were_cut_are_no_call(self) -> None:
        calls = {"open_pattern": r"<<(?P<name>\w+)>>", "close": "<</>>", "content": "kv-lines"}
        entry = recognise(
            template=None, response_template=response_template(tool_calls=calls)
        ).format
        splitter = Splitter(entry, in_reasoning=False, tools=[Tool(name="f")])
        answer = join([*splitter.feed("<<f>>\nk: 1"), *splitter.finish("length")])
        assert (answer.names, answer.content) == ((), "<<f>>\nk: 1")

    @pytest.mark.parametrize("declared", ["", "no JSON", "[1]", response_template(content={})])
    def test_nothing_usable_leaves_it_to_the_template(self, declared: str) -> None:
        assert recognise(template="<arg_key>", response_template=declared).format.id == "glm45"


TAILS = json.loads((CASES / "prompt_tails.json").read_text(encoding="utf-8"))
# Which tails open reasoning, by model, with thinking on and off; no other tail does.
OPEN_ON = {
    "Bielik-11B-v3.0-Instruct", "GLM-4.7-Flash", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen-QwQ-32B", "Qwen3.5-4B",
    "Reka-Edge", "Spark2.5", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4-Flash-0731", "deepseek-ai-DeepSeek-V4",
    "inclusionai-ling-3.0-flash", "llama-cpp-rwkv-world", "openbmb-MiniCPM5-1B", "poolside-Laguna-S-2.1",
    "poolside-Laguna-XS-2.1", "poolside-Laguna-XS.2",
}  # fmt: skip
OPEN_ALWAYS = {
    "Cohere2MoE", "Kimi-K3", "MiniMax-M2", "NVIDIA-Nemotron-Nano-v2", "StepFun3.5-Flash", "llama-cpp-deepseek-r1",
    "Apriel-1.6-15b-Thinker-fixed", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
}  # fmt: skip
SPEAKS = {"Cohere2MoE": "cohere_cmd3", "Kimi-K3": "kimi_k3_xtml", "Apriel-1.6-15b-Thinker-fixed": "apriel",
          "google-gemma-4-31B-it": "gemma4", "ByteDance-Seed-OSS": "seed_oss_xml", "tencent-Hy3": "hy3",
          "openai-gpt-oss-120b": "harmony", "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_cmd3"}  # fmt: skip


@for_every("file", sorted(TAILS))
def test_the_prompt_tells_whether_reasoning_has_begun(file: str) -> None:
    model = file.removesuffix(".jinja")
    entry = FORMATS[SPEAKS.get(model, "hermes_json")]
    thinking, silent = TAILS[file]["thinking_on"], TAILS[file]["thinking_off"]
    assert starts_in_reasoning(entry, thinking) == (model in OPEN_ON | OPEN_ALWAYS)
    assert starts_in_reasoning(entry, silent) == (model in OPEN_ALWAYS)


@pytest.mark.parametrize(
    ("tail", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\nFirst, I", True),
        ("<|im_start|>assistant\n<think>\nHm.</think>Yes", False),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("[INST]What is <think>?[/INST]", False),
        ("User: What is <think>?\n\nAssistant:", False),
        ("<｜User｜>What is <think>?<｜Assistant｜>", False),
        ("", False),
    ],
)
def test_only_the_turn_to_be_written_counts(tail: str, opened: bool) -> None:
    assert starts_in_reasoning(FORMATS["hermes_json"], tail) == opened


def test_a_family_without_reasoning_never_begins_in_it() -> None:
    assert not starts_in_reasoning(FORMATS["plain"], "<think>")


def test_harmony_continued_in_its_analysis() -> None:
    entry = FORMATS["harmony"]
    assert starts_in_reasoning(entry, "<|start|>assistant<|channel|>analysis<|message|>Hm")
    assert not starts_in_reasoning(
        entry, "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    )
