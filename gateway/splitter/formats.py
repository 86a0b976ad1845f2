"""The table of formats: how each family of models marks reasoning and writes tool calls. Data only.

Above each entry are the families that write so. A new one that uses a known syntax is one entry,
one rule in `recognition.py` and one case in the tests.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gateway.splitter.payloads.syntax import (
    THINK,
    BareDictCalls,
    ElementCalls,
    Format,
    Headers,
    JsonCalls,
    KeyValueCalls,
    NamedJsonCalls,
    NestedElementCalls,
    PastCalls,
    PythonicCalls,
    ReasoningMarkers,
    Syntax,
)

_HERMES_TAG = JsonCalls(
    openers=("<tool_call>",), closers=("</tool_call>",), fences=("```json", "```")
)
_TOOL_CALLS_ARRAY = JsonCalls(openers=("<tool_calls>",), closers=("</tool_calls>",))
_GRANITE_CALLS = JsonCalls(openers=("<tool_call>", "<|tool_call|>"), closers=("</tool_call>",))
_GRANITE_PAST = PastCalls("<|tool_call|>[", '{"name": "', '", "arguments": ', "}", ", ", "]")
_MISTRAL = NamedJsonCalls(
    openers=("[TOOL_CALLS]",),
    call_opens=("[TOOL_CALLS]",),
    id_opens=("[CALL_ID]",),
    name_ends=("[ARGS]",),
    or_array=JsonCalls(id_keys=("id",)),
)


def _entry(id: str, *syntaxes: Syntax, **more: Any) -> Format:
    """A format with the syntaxes in which its calls are written."""
    return Format(id=id, syntaxes=syntaxes, **more)


Tags: TypeAlias = Callable[[str], tuple[str, ...]]  # by a name, all ways to write a tag of it


def _pairs(tags: Tags, **more: Any) -> KeyValueCalls:
    return KeyValueCalls(
        call_opens=tags("tool_call"),
        call_closes=tags("/tool_call"),
        key_opens=tags("arg_key"),
        key_closes=tags("/arg_key"),
        value_opens=tags("arg_value"),
        value_closes=tags("/arg_value"),
        **more,
    )


def hunyuan_3(*suffixes: str) -> Format:
    """Hunyuan 3 with what a checkpoint appends to the name in every marker: ":opensource"."""

    def tags(name: str) -> tuple[str, ...]:
        return tuple(f"<{name}{suffix}>" for suffix in suffixes)

    openers = (*tags("tool_calls"), *tags("tool_call"))
    return _entry(
        "hy3",
        _pairs(tags, openers=openers, closers=tags("/tool_calls"), name_ends=tags("tool_sep")),
        reasoning=ReasoningMarkers(tags("think"), tags("/think")),
        special_tokens=True,
    )


def _dsml(id: str, section: str) -> Format:
    """DeepSeek's markup; V4.1 puts a space before every tag name."""
    return _entry(
        id,
        ElementCalls(
            openers=(f"<｜DSML｜{section}>", f"<｜DSML｜ {section}>", "<｜DSML｜ calls>"),
            closers=(f"</｜DSML｜{section}>", f"</｜DSML｜ {section}>", "</｜DSML｜ calls>"),
            call_opens=("<｜DSML｜invoke", "<｜DSML｜ invoke"),
            call_closes=("</｜DSML｜invoke>", "</｜DSML｜ invoke>"),
            parameter_opens=("<｜DSML｜parameter", "<｜DSML｜ parameter"),
            parameter_closes=("</｜DSML｜parameter>", "</｜DSML｜ parameter>"),
            typing="string",
        ),
        reasoning=THINK,
    )


def _markup(
    *openers: str, call: str = "<function=", parameter: str = "<parameter=", **more: Any
) -> ElementCalls:
    """Elements, each closed by its name; so is what an opener begins that is no call."""
    return ElementCalls(
        openers=openers,
        closers=tuple(_closing(opener) for opener in openers if opener != call),
        call_opens=(call,),
        call_closes=(_closing(call),),
        parameter_opens=(parameter,),
        parameter_closes=(_closing(parameter),),
        **more,
    )


def _closing(opener: str) -> str:
    return f"</{opener.strip('<=>').split()[0]}>"


_BEAM_OPENS = ("<|start|>assistant to=", "to=")
_INKLING_KINDS = ("<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>")


_ENTRIES = (
    # Gemma 2/3, Phi-3.5, anything unknown
    _entry("plain"),
    # DeepSeek-R1-Distill, Magistral-2506, any textual <think>
    _entry("think_text", reasoning=THINK),
    # Kimi-VL-Thinking
    _entry("kimi_vl_think", reasoning=ReasoningMarkers(("◁think▷",), ("◁/think▷",))),
    # Hermes 2/3, Qwen2.5, Qwen3, QwQ, MiMo-VL, Granite 4.0/4.1, EXAONE 4.0, Bielik, Reka Edge,
    # SmolLM3
    _entry("hermes_json", _HERMES_TAG, reasoning=THINK),
    # LongCat-Flash
    _entry(
        "longcat_json",
        JsonCalls(openers=("<longcat_tool_call>",), closers=("</longcat_tool_call>",)),
        reasoning=ReasoningMarkers(("<longcat_think>",), ("</longcat_think>",)),
        special_tokens=True,
    ),
    # ERNIE-4.5-Thinking
    _entry(
        "ernie45",
        _HERMES_TAG,
        reasoning=THINK,
        shell_opens=("<response>",),
        shell_closes=("</response>",),
    ),
    # InternLM2.5/3, Intern-S1
    _entry(
        "internlm2",
        JsonCalls(
            openers=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
            closers=("<|action_end|>",),
        ),
        reasoning=THINK,
        special_tokens=True,
    ),
    # Granite-20B-FC
    _entry("granite_20b_fc", JsonCalls(openers=("<function_call>",)), special_tokens=True),
    # GigaChat 3, GigaChat 3.1
    _entry(
        "gigachat31",
        JsonCalls(openers=("<|message_sep|>\n\nfunction call<|role_sep|>\n", "<|function_call|>")),
        shell_closes=("<|message_sep|>",),
        special_tokens=True,
    ),
    # Llama 3.1/3.2/3.3, Llama 4 JSON
    _entry(
        "llama3_json",
        JsonCalls(at_start=True),
        PythonicCalls(at_start=True, method=".call"),
        shell_opens=("<|python_tag|>",),
        shell_closes=("<|eom_id|>", "<|eot_id|>"),
        special_tokens=True,
    ),
    # MiniMax-M1
    _entry("minimax_m1", _TOOL_CALLS_ARRAY, reasoning=THINK),
    # Jamba
    _entry("jamba", _TOOL_CALLS_ARRAY, special_tokens=True),
    # Nemotron-Nano-9B-v2
    _entry(
        "nemotron_v2", JsonCalls(openers=("<TOOLCALL>",), closers=("</TOOLCALL>",)), reasoning=THINK
    ),
    # Apriel 1.5/1.6
    _entry(
        "apriel",
        _TOOL_CALLS_ARRAY,
        reasoning=ReasoningMarkers(("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",)),
        shell_closes=("[END FINAL RESPONSE]",),
    ),
    # Hunyuan-A13B
    _entry(
        "hunyuan_a13b",
        _TOOL_CALLS_ARRAY,
        reasoning=THINK,
        shell_opens=("<answer>",),
        shell_closes=("</answer>",),
    ),
    # Granite 3.0, Granite 3.1-3.3
    _entry("granite_array", _GRANITE_CALLS, past=_GRANITE_PAST, special_tokens=True),
    # Granite 3.3 thinking
    _entry(
        "granite33_think",
        _GRANITE_CALLS,
        reasoning=THINK,
        past=_GRANITE_PAST,
        shell_opens=("<response>",),
        shell_closes=("</response>",),
    ),
    # Granite 3.2
    _entry(
        "granite32_phrases",
        _GRANITE_CALLS,
        reasoning=ReasoningMarkers(
            ("Here is my thought process:", "Here's my thought process:"),
            ("Here is my response:", "Here's my response:"),
        ),
        past=_GRANITE_PAST,
    ),
    # Phi-4-mini, Firefunction v2
    _entry("phi4_mini", JsonCalls(openers=("functools",), needs_array=True)),
    # xLAM-2
    _entry(
        "xlam_array",
        JsonCalls(at_start=True, needs_array=True, fences=("```json", "```")),
        reasoning=THINK,
    ),
    # Command-R7B, Command-A, Command-A+, North / Cohere2 MoE
    _entry(
        "cohere_cmd3",
        JsonCalls(
            openers=("<|START_ACTION|>",),
            closers=("<|END_ACTION|>",),
            name_keys=("tool_name", "name"),
            id_keys=("tool_call_id",),
        ),
        reasoning=ReasoningMarkers(("<|START_THINKING|>",), ("<|END_THINKING|>",), anywhere=True),
        shell_opens=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        shell_closes=("<|END_RESPONSE|>", "<|END_TEXT|>"),
        special_tokens=True,
    ),
    # Command-R / R+
    _entry(
        "cohere_action_json",
        JsonCalls(
            openers=("Action:",),
            fences=("```json", "```"),
            needs_fence=True,
            name_keys=("tool_name", "name"),
        ),
        shell_opens=("<|CHATBOT_TOKEN|>",),  # its prompts end before it
    ),
    # Apertus
    _entry(
        "apertus",
        JsonCalls(openers=("<|tools_prefix|>",), closers=("<|tools_suffix|>",), named_by_key=True),
        reasoning=ReasoningMarkers(("<|inner_prefix|>",), ("<|inner_suffix|>",), anywhere=True),
        special_tokens=True,
    ),
    # Mistral-7B v0.3, Nemo, Mixtral, Large 2407
    _entry("mistral_v3", _MISTRAL, special_tokens=True, ids="mistral"),
    # Mistral Small 3.x, Devstral, Magistral, Ministral 3
    _entry(
        "mistral_v11",
        _MISTRAL,
        reasoning=ReasoningMarkers(("[THINK]",), ("[/THINK]",), anywhere=True),
        special_tokens=True,
        ids="mistral",
    ),
    # DeepSeek-V3, DeepSeek-R1-0528, DeepSeek-V3.1
    _entry(
        "deepseek_v3",
        NamedJsonCalls(
            openers=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
            closers=("<｜tool▁calls▁end｜>",),
            call_opens=("<｜tool▁call▁begin｜>",),
            call_closes=("<｜tool▁call▁end｜>",),
            name_prefixes=("function<｜tool▁sep｜>",),
            name_ends=("<｜tool▁sep｜>",),
            fences=("```json", "```"),
        ),
        reasoning=THINK,
        special_tokens=True,
    ),
    # Kimi K2, K2-Thinking, K2.5
    _entry(
        "kimi_k2",
        NamedJsonCalls(
            openers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
            closers=("<|tool_calls_section_end|>",),
            call_opens=("<|tool_call_begin|>",),
            call_closes=("<|tool_call_end|>",),
            name_ends=("<|tool_call_argument_begin|>",),
            numbered=True,
        ),
        reasoning=THINK,
        special_tokens=True,
        ids="kimi",
        past=PastCalls(
            *("<|tool_calls_section_begin|>", "<|tool_call_begin|>functions."),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
            *("", "<|tool_calls_section_end|>"),
            numbered=True,
        ),
    ),
    # Solar-Open-100B
    _entry(
        "solar_open",
        NamedJsonCalls(
            openers=("<|tool_calls|>", "<|tool_call:begin|>"),
            closers=("<|calls|>",),
            call_opens=("<|tool_call:begin|>",),
            call_closes=("<|tool_call:end|>",),
            id_end="<|tool_call:name|>",
            name_ends=("<|tool_call:args|>",),
        ),
        reasoning=ReasoningMarkers(("<|think|>",), ("<|end|>",), anywhere=True),
        shell_opens=("<|begin|>assistant", "<|content|>"),
        shell_closes=("<|end|>", "<|flush|>"),
        special_tokens=True,
    ),
    # Functionary 3.1
    _entry(
        "functionary_v3_1",
        NamedJsonCalls(
            openers=("<function=",),
            call_opens=("<function=",),
            call_closes=("</function>",),
            name_ends=(">",),
        ),
    ),
    # Functionary 3.2
    _entry(
        "functionary_v3_2",
        NamedJsonCalls(openers=(">>>",), call_opens=(">>>",), prose=True),
        shell_opens=(">>>all\n",),
        implied_opener=">>>",
    ),
    # Qwen3-Coder, Qwen3.5, Nemotron-3, Step-3.5, MiMo-V2, Granite 4.2
    _entry(
        "qwen3_coder_xml", _markup("<tool_call>", "<function=", trims_newline=True), reasoning=THINK
    ),
    # Seed-OSS
    _entry(
        "seed_oss_xml",
        _markup("<seed:tool_call>", "<function="),
        reasoning=ReasoningMarkers(("<seed:think>",), ("</seed:think>",)),
    ),
    # MiniMax-M2.x
    _entry(
        "minimax_m2",
        _markup("<minimax:tool_call>", call="<invoke", parameter="<parameter"),
        reasoning=THINK,
        special_tokens=True,
    ),
    # Step-3
    _entry(
        "step3_steptml",
        ElementCalls(
            openers=("<｜tool_calls_begin｜>",),
            closers=("<｜tool_calls_end｜>",),
            before_call=("<｜tool_call_begin｜>function<｜tool_sep｜>",),
            call_opens=("<steptml:invoke",),
            call_closes=("</steptml:invoke>",),
            after_call=("<｜tool_call_end｜>",),
            parameter_opens=("<steptml:parameter",),
            parameter_closes=("</steptml:parameter>",),
        ),
        reasoning=THINK,
        special_tokens=True,
    ),
    # MiniCPM5
    _entry(
        "minicpm5_xml",
        _markup("<function name=", call="<function name=", parameter="<param", cdata=True),
        reasoning=THINK,
    ),
    # MiniMax-M3
    _entry(
        "minimax_m3",
        NestedElementCalls(
            openers=("]<]minimax[>[<tool_call>",),
            closers=("]<]minimax[>[</tool_call>",),
            call_opens=("]<]minimax[>[<invoke",),
            call_closes=("]<]minimax[>[</invoke>",),
            prefix="]<]minimax[>[",
        ),
        reasoning=ReasoningMarkers(("<mm:think>",), ("</mm:think>",)),
        special_tokens=True,
    ),
    # GLM-4.5/4.6, GLM-4.7, GLM-5, Ling 3, Poolside Laguna, Spark 2.5
    _entry("glm45", _pairs(lambda name: (f"<{name}>",), openers=("<tool_call>",)), reasoning=THINK),
    # DeepSeek-V3.2
    _dsml("deepseek_v32_dsml", "function_calls"),
    # DeepSeek-V4/V4.1
    _dsml("deepseek_v4_dsml", "tool_calls"),
    # Kimi K3
    _entry(
        "kimi_k3_xtml",
        ElementCalls(
            openers=("<|open|>tools<|sep|>",),
            closers=("<|close|>tools<|sep|>",),
            call_opens=("<|open|>call",),
            head_ends=("<|sep|>",),
            call_closes=("<|close|>call<|sep|>",),
            parameter_opens=("<|open|>argument",),
            parameter_closes=("<|close|>argument<|sep|>",),
            name_attributes=("tool", "key"),
            typing="type",
        ),
        reasoning=ReasoningMarkers(
            ("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",), anywhere=True
        ),
        shell_opens=("<|open|>response<|sep|>",),
        shell_closes=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
        special_tokens=True,
    ),
    # Gemma 4
    _entry(
        "gemma4",
        BareDictCalls(openers=("<|tool_call>",), closers=("<tool_call|>",), quote='<|"|>'),
        reasoning=ReasoningMarkers(
            ("<|channel>thought", "<|channel>thought\n"), ("<channel|>",), anywhere=True
        ),
        special_tokens=True,
    ),
    # FunctionGemma
    _entry(
        "functiongemma",
        BareDictCalls(
            openers=("<start_function_call>",), closers=("<end_function_call>",), quote="<escape>"
        ),
        special_tokens=True,
    ),
    # Llama 3.2 pythonic, Llama 4 pythonic, ToolACE, Gemma 3 prompt-style
    _entry(
        "pythonic",
        PythonicCalls(at_start=True, needs_list=True),
        shell_opens=("<|python_start|>", "<|python_tag|>"),
        shell_closes=("<|python_end|>", "<|eom|>", "<|eom_id|>"),
        special_tokens=True,
    ),
    # Olmo 3
    _entry(
        "olmo3_pythonic",
        PythonicCalls(openers=("<function_calls>",), closers=("</function_calls>",)),
        reasoning=THINK,
    ),
    # LFM2, LFM2.5
    _entry(
        "lfm2_pythonic",
        PythonicCalls(
            openers=("<|tool_call_start|>",),
            closers=("<|tool_call_end|>",),
            or_objects=JsonCalls(closers=("<|tool_call_end|>",)),
        ),
        reasoning=THINK,
        special_tokens=True,
        past=PastCalls(
            "<|tool_call_start|>[", "", "(", ")", ", ", "]<|tool_call_end|>", pythonic=True
        ),
    ),
    # gpt-oss
    _entry(
        "harmony",
        reasoning=ReasoningMarkers(
            ("<|channel|>analysis<|message|>",), ("<|end|>",), anywhere=True
        ),
        headers=Headers(
            openers=("<|start|>", "<|channel|>"),
            starts=("to=",),
            inner=("<|start|>", "<|channel|>", "<|constrain|>"),
            ends=("<|message|>",),
            recipient="\\bto=functions\\.([\\w.:/-]+)",
            foreign="\\bto=([\\w.:/-]+)",
            channel="<\\|channel\\|>\\s*(\\w+)",
            reasoning=frozenset({"analysis"}),
            body_ends=("<|call|>", "<|end|>", "<|return|>"),
            turn="<|start|>assistant",
            thoughts=("<|channel|>analysis<|message|>",),
            answers=(
                "<|channel|>final<|message|>",
                "<|channel|>commentary<|message|>",
                "<|channel|>final <|constrain|>json<|message|>",
                "<|channel|>final<|constrain|>json<|message|>",
            ),
            calls=(
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
                "<|channel|>commentary to=functions.{name}<|constrain|>json<|message|>",
                "<|channel|>commentary to=functions.{name} json<|message|>",
                "<|channel|>commentary to=functions.{name}<|message|>",
                "<|channel|>analysis to=functions.{name} <|constrain|>json<|message|>",
                " to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>",
                " to=functions.{name}<|channel|>commentary<|constrain|>json<|message|>",
                " to=functions.{name}<|channel|>commentary json<|message|>",
                " to=functions.{name}<|channel|>commentary<|message|>",
                " to=functions.{name}<|channel|>analysis <|constrain|>json<|message|>",
                " to=functions.{name}<|channel|>analysis<|message|>",
            ),
        ),
        special_tokens=True,
    ),
    # Beam
    _entry(
        "beam",
        ElementCalls(
            openers=_BEAM_OPENS[:1],
            call_opens=_BEAM_OPENS,
            head_ends=(
                "<|channel|>analysis <|constrain|>xml<|message|>",
                "<|channel|>analysis<|message|>",
                ">",
            ),
            call_closes=("<|call|>", "<|end|>"),
            parameter_opens=("<rfl:parameter",),
            parameter_closes=("</rfl:parameter>",),
            at_start=True,
        ),
        reasoning=ReasoningMarkers(
            ("<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>analysis<|message|>"),
            ("<|end|>",),
            anywhere=True,
        ),
        shell_opens=(
            "<|channel|>final<|message|>",
            "<|start|>assistant<|channel|>final<|message|>",
        ),
        shell_closes=("<|end|>", "<|return|>"),
        special_tokens=True,
    ),
    # Inkling
    _entry(
        "inkling",
        JsonCalls(at_start=True, argument_keys=("args",)),
        reasoning=ReasoningMarkers(
            ("<|message_model|><|content_thinking|>", "<|content_thinking|>"),
            ("<|end_message|>",),
            anywhere=True,
        ),
        headers=Headers(
            openers=("<|message_model|>", *_INKLING_KINDS),
            ends=_INKLING_KINDS,
            channel="<\\|content_(\\w+)\\|>",
            reasoning=frozenset({"thinking"}),
            body_ends=("<|end_message|>", "<|content_model_end_sampling|>"),
            thoughts=("<|message_model|><|content_thinking|>", "<|content_thinking|>"),
            answers=("<|message_model|><|content_text|>", "<|content_text|>"),
            calls=(
                "<|message_model|>{name}<|content_invoke_tool_json|>",
                "<|message_model|><|content_invoke_tool_json|>",
            ),
        ),
        special_tokens=True,
    ),
    # Muse
    _entry(
        "muse",
        _markup("<atem:function_calls>", call="<atem:invoke", parameter="<atem:parameter"),
        reasoning=ReasoningMarkers(("to=self<|message|>",), ("<|eom|>",), anywhere=True),
        headers=Headers(
            openers=("<|start|>",),
            starts=("to=",),
            ends=("<|message|>",),
            channel="\\bto=(\\w+)",
            reasoning=frozenset({"self"}),
            body_ends=("<|eom|>", "<|eot|>"),
            turn="<|start|>assistant ",
            thoughts=("to=self<|message|>",),
            answers=("to=user<|message|>",),
            calls=("to={name}<|message|>",),
        ),
        special_tokens=True,
    ),
    # Hunyuan 3
    hunyuan_3("", ":opensource"),
)

_BY_ID = {entry.id: entry for entry in _ENTRIES}

# Other names under which a format is known: a family that shares another's entry.
_ALIASES = {
    "qwen3_json": "hermes_json",
    "glm47": "glm45",
    "gigachat3": "gigachat31",
    "cohere_cmd4": "cohere_cmd3",
    "deepseek_v31": "deepseek_v3",
    "hy3_suffixed": "hy3",
    "firefunction_v2": "phi4_mini",
}

FORMATS: Mapping[str, Format] = _BY_ID | {alias: _BY_ID[known] for alias, known in _ALIASES.items()}
