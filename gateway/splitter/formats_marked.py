"""Formats whose arguments are marked up otherwise than as JSON, and harmony. Data only."""

from gateway.splitter.syntax import (
    THINK,
    BareDictCalls,
    ElementCalls,
    Format,
    Headers,
    JsonCalls,
    KeyValueCalls,
    NestedElementCalls,
    PythonicCalls,
    ReasoningMarkers,
)

# ---- elements, typed by the schema


_QWEN_CODER = Format(
    id="qwen3_coder_xml",
    families=("Qwen3-Coder", "Qwen3.5", "Nemotron-3", "Step-3.5", "MiMo-V2", "Granite 4.2"),
    reasoning=THINK,
    syntaxes=(
        ElementCalls(
            openers=("<tool_call>", "<function="),
            closers=("</tool_call>",),
            call_opens=("<function=",),
            call_closes=("</function>",),
            parameter_opens=("<parameter=",),
            parameter_closes=("</parameter>",),
            trims_newline=True,
        ),
    ),
    calls_end_reasoning=True,
)
_SEED = Format(
    id="seed_oss_xml",
    families=("Seed-OSS",),
    reasoning=ReasoningMarkers(("<seed:think>",), ("</seed:think>",)),
    syntaxes=(
        ElementCalls(
            openers=("<seed:tool_call>", "<function="),
            closers=("</seed:tool_call>",),
            call_opens=("<function=",),
            call_closes=("</function>",),
            parameter_opens=("<parameter=",),
            parameter_closes=("</parameter>",),
        ),
    ),
    calls_end_reasoning=True,
)
_MINIMAX_M2 = Format(
    id="minimax_m2",
    families=("MiniMax-M2.x",),
    reasoning=THINK,
    syntaxes=(
        ElementCalls(
            openers=("<minimax:tool_call>",),
            closers=("</minimax:tool_call>",),
            call_opens=("<invoke",),
            call_closes=("</invoke>",),
            parameter_opens=("<parameter",),
            parameter_closes=("</parameter>",),
        ),
    ),
    special_tokens=True,
    calls_end_reasoning=True,
)
_STEP_3 = Format(
    id="step3_steptml",
    families=("Step-3",),
    reasoning=THINK,
    syntaxes=(
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
    ),
    special_tokens=True,
    calls_end_reasoning=True,
)
_MINICPM_5 = Format(
    id="minicpm5_xml",
    families=("MiniCPM5",),
    reasoning=THINK,
    syntaxes=(
        ElementCalls(
            openers=("<function name=",),
            call_opens=("<function name=",),
            call_closes=("</function>",),
            parameter_opens=("<param",),
            parameter_closes=("</param>",),
            cdata=True,
        ),
    ),
    calls_end_reasoning=True,
)
_MINIMAX_M3 = Format(
    id="minimax_m3",
    families=("MiniMax-M3",),
    reasoning=ReasoningMarkers(("<mm:think>",), ("</mm:think>",)),
    syntaxes=(
        NestedElementCalls(
            openers=("]<]minimax[>[<tool_call>",),
            prefix="]<]minimax[>[",
            section="tool_call",
            call="invoke",
        ),
    ),
    special_tokens=True,
    calls_end_reasoning=True,
)

# ---- keys and values, typed by the schema


_GLM = Format(
    id="glm45",
    families=("GLM-4.5/4.6", "GLM-4.7", "GLM-5", "Ling 3", "Poolside Laguna", "Spark 2.5"),
    reasoning=THINK,
    syntaxes=(
        KeyValueCalls(
            openers=("<tool_call>",),
            call_opens=("<tool_call>",),
            call_closes=("</tool_call>",),
            key_opens=("<arg_key>",),
            key_closes=("</arg_key>",),
            value_opens=("<arg_value>",),
            value_closes=("</arg_value>",),
        ),
    ),
    calls_end_reasoning=True,
)


def hunyuan_3(*suffixes: str) -> Format:
    """Hunyuan 3 with what a checkpoint appends to the name in every marker: ":opensource"."""

    def tags(name: str) -> tuple[str, ...]:
        return tuple(f"<{name}{suffix}>" for suffix in suffixes)

    return Format(
        id="hy3",
        families=("Hunyuan 3",),
        reasoning=ReasoningMarkers(tags("think"), tags("/think")),
        syntaxes=(
            KeyValueCalls(
                openers=(*tags("tool_calls"), *tags("tool_call")),
                closers=tags("/tool_calls"),
                call_opens=tags("tool_call"),
                call_closes=tags("/tool_call"),
                name_ends=tags("tool_sep"),
                key_opens=tags("arg_key"),
                key_closes=tags("/arg_key"),
                value_opens=tags("arg_value"),
                value_closes=tags("/arg_value"),
            ),
        ),
        special_tokens=True,
        calls_end_reasoning=True,
    )


# ---- typed by the text itself


def _dsml(id: str, family: str, section: str) -> Format:
    """DeepSeek's markup; V4.1 puts a space before every tag name."""
    return Format(
        id=id,
        families=(family,),
        reasoning=THINK,
        syntaxes=(
            ElementCalls(
                openers=(f"<｜DSML｜{section}>", f"<｜DSML｜ {section}>", "<｜DSML｜ calls>"),
                closers=(f"</｜DSML｜{section}>", f"</｜DSML｜ {section}>", "</｜DSML｜ calls>"),
                call_opens=("<｜DSML｜invoke", "<｜DSML｜ invoke"),
                call_closes=("</｜DSML｜invoke>", "</｜DSML｜ invoke>"),
                parameter_opens=("<｜DSML｜parameter", "<｜DSML｜ parameter"),
                parameter_closes=("</｜DSML｜parameter>", "</｜DSML｜ parameter>"),
                typing="string",
            ),
        ),
        calls_end_reasoning=True,
    )


_DEEPSEEK_32 = _dsml("deepseek_v32_dsml", "DeepSeek-V3.2", "function_calls")
_DEEPSEEK_4 = _dsml("deepseek_v4_dsml", "DeepSeek-V4/V4.1", "tool_calls")
_KIMI_3 = Format(
    id="kimi_k3_xtml",
    families=("Kimi K3",),
    reasoning=ReasoningMarkers(
        ("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",), anywhere=True
    ),
    syntaxes=(
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
    ),
    shell_opens=("<|open|>response<|sep|>",),
    shell_closes=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
    special_tokens=True,
    calls_end_reasoning=True,
)
_GEMMA_4 = Format(
    id="gemma4",
    families=("Gemma 4",),
    reasoning=ReasoningMarkers(
        ("<|channel>thought", "<|channel>thought\n"), ("<channel|>",), anywhere=True
    ),
    syntaxes=(BareDictCalls(openers=("<|tool_call>",), closers=("<tool_call|>",), quote='<|"|>'),),
    special_tokens=True,
    calls_end_reasoning=True,
)
_FUNCTION_GEMMA = Format(
    id="functiongemma",
    families=("FunctionGemma",),
    syntaxes=(
        BareDictCalls(
            openers=("<start_function_call>",), closers=("<end_function_call>",), quote="<escape>"
        ),
    ),
    special_tokens=True,
)
_PYTHONIC = Format(
    id="pythonic",
    families=("Llama 3.2 pythonic", "Llama 4 pythonic", "ToolACE", "Gemma 3 prompt-style"),
    syntaxes=(PythonicCalls(at_start=True, needs_list=True),),
    shell_opens=("<|python_start|>", "<|python_tag|>"),
    shell_closes=("<|python_end|>", "<|eom|>", "<|eom_id|>"),
    special_tokens=True,
)
_OLMO_3 = Format(
    id="olmo3_pythonic",
    families=("Olmo 3",),
    reasoning=THINK,
    syntaxes=(PythonicCalls(openers=("<function_calls>",), closers=("</function_calls>",)),),
    calls_end_reasoning=True,
)
_LFM_2 = Format(
    id="lfm2_pythonic",
    families=("LFM2", "LFM2.5"),
    reasoning=THINK,
    syntaxes=(
        PythonicCalls(
            openers=("<|tool_call_start|>",),
            closers=("<|tool_call_end|>",),
            or_objects=JsonCalls(closers=("<|tool_call_end|>",)),
        ),
    ),
    special_tokens=True,
)

# ---- messages with headers


_HARMONY = Format(
    id="harmony",
    families=("gpt-oss",),
    reasoning=ReasoningMarkers(("<|channel|>analysis<|message|>",), ("<|end|>",), anywhere=True),
    headers=Headers(
        openers=("<|start|>", "<|channel|>"),
        starts=("to=",),
        inner=("<|start|>", "<|channel|>", "<|constrain|>"),
        end="<|message|>",
        recipient=r"\bto=functions\.([\w.:/-]+)",
        foreign=r"\bto=([\w.:/-]+)",
        channel=r"<\|channel\|>\s*(\w+)",
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
)
_MUSE = Format(
    id="muse",
    families=("Muse",),
    reasoning=ReasoningMarkers(("to=self<|message|>",), ("<|eom|>",), anywhere=True),
    headers=Headers(
        openers=("<|start|>",),
        starts=("to=",),
        end="<|message|>",
        recipient=r"(?!)",
        foreign=r"(?!)",
        channel=r"\bto=(\w+)",
        reasoning=frozenset({"self"}),
        body_ends=("<|eom|>", "<|eot|>"),
        turn="<|start|>assistant ",
        thoughts=("to=self<|message|>",),
        answers=("to=user<|message|>",),
    ),
    syntaxes=(
        ElementCalls(
            openers=("<atem:function_calls>",),
            closers=("</atem:function_calls>",),
            call_opens=("<atem:invoke",),
            call_closes=("</atem:invoke>",),
            parameter_opens=("<atem:parameter",),
            parameter_closes=("</atem:parameter>",),
        ),
    ),
    special_tokens=True,
)

MARKED_ENTRIES = (
    _QWEN_CODER,
    _SEED,
    _MINIMAX_M2,
    _STEP_3,
    _MINICPM_5,
    _MINIMAX_M3,
    _GLM,
    _DEEPSEEK_32,
    _DEEPSEEK_4,
    _KIMI_3,
    _GEMMA_4,
    _FUNCTION_GEMMA,
    _PYTHONIC,
    _OLMO_3,
    _LFM_2,
    _HARMONY,
    _MUSE,
    hunyuan_3("", ":opensource"),
)
