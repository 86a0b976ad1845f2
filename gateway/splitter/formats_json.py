"""Formats whose calls are JSON: objects, arrays, or arguments after a name. Data only."""

from gateway.splitter.syntax import (
    THINK,
    Format,
    JsonCalls,
    NamedJsonCalls,
    PythonicCalls,
    ReasoningMarkers,
)

# ---- JSON objects in a tag


_HERMES_TAG = JsonCalls(
    openers=("<tool_call>",), closers=("</tool_call>",), fences=("```json", "```")
)

_HERMES = Format(
    id="hermes_json",
    families=(
        "Hermes 2/3",
        "Qwen2.5",
        "Qwen3",
        "QwQ",
        "MiMo-VL",
        "Granite 4.0/4.1",
        "EXAONE 4.0",
        "Bielik",
        "Reka Edge",
        "SmolLM3",
    ),
    reasoning=THINK,
    syntaxes=(_HERMES_TAG,),
    calls_end_reasoning=True,
)
_LONGCAT = Format(
    id="longcat_json",
    families=("LongCat-Flash",),
    reasoning=ReasoningMarkers(("<longcat_think>",), ("</longcat_think>",)),
    syntaxes=(JsonCalls(openers=("<longcat_tool_call>",), closers=("</longcat_tool_call>",)),),
    special_tokens=True,
    calls_end_reasoning=True,
)
_ERNIE = Format(
    id="ernie45",
    families=("ERNIE-4.5-Thinking",),
    reasoning=THINK,
    syntaxes=(_HERMES_TAG,),
    shell_opens=("<response>",),
    shell_closes=("</response>",),
    calls_end_reasoning=True,
)
_INTERNLM = Format(
    id="internlm2",
    families=("InternLM2.5/3", "Intern-S1"),
    reasoning=THINK,
    syntaxes=(
        JsonCalls(
            openers=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
            closers=("<|action_end|>",),
        ),
    ),
    special_tokens=True,
)
_GRANITE_20B = Format(
    id="granite_20b_fc",
    families=("Granite-20B-FC",),
    syntaxes=(JsonCalls(openers=("<function_call>",)),),
    special_tokens=True,
)
_GIGACHAT = JsonCalls(
    openers=("<|message_sep|>\n\nfunction call<|role_sep|>\n", "<|function_call|>")
)
_GIGACHAT_3 = Format(
    id="gigachat3",
    families=("GigaChat 3",),
    syntaxes=(_GIGACHAT,),
    shell_closes=("<|message_sep|>",),
    special_tokens=True,
)
_GIGACHAT_31 = Format(
    id="gigachat31",
    families=("GigaChat 3.1",),
    syntaxes=(_GIGACHAT,),
    shell_closes=("<|message_sep|>",),
    special_tokens=True,
)
_LLAMA_3 = Format(
    id="llama3_json",
    families=("Llama 3.1/3.2/3.3", "Llama 4 JSON"),
    syntaxes=(JsonCalls(at_start=True), PythonicCalls(at_start=True, method=".call")),
    shell_opens=("<|python_tag|>",),
    shell_closes=("<|eom_id|>", "<|eot_id|>"),
    special_tokens=True,
)
_MINIMAX_M1 = Format(
    id="minimax_m1",
    families=("MiniMax-M1",),
    reasoning=THINK,
    syntaxes=(JsonCalls(openers=("<tool_calls>",), closers=("</tool_calls>",)),),
)

# ---- JSON arrays


_TOOL_CALLS_ARRAY = JsonCalls(openers=("<tool_calls>",), closers=("</tool_calls>",))

_JAMBA = Format(id="jamba", families=("Jamba",), syntaxes=(_TOOL_CALLS_ARRAY,), special_tokens=True)
_NEMOTRON_V2 = Format(
    id="nemotron_v2",
    families=("Nemotron-Nano-9B-v2",),
    reasoning=THINK,
    syntaxes=(JsonCalls(openers=("<TOOLCALL>",), closers=("</TOOLCALL>",)),),
)
_APRIEL = Format(
    id="apriel",
    families=("Apriel 1.5/1.6",),
    reasoning=ReasoningMarkers(("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",)),
    syntaxes=(_TOOL_CALLS_ARRAY,),
    shell_closes=("[END FINAL RESPONSE]",),
    calls_end_reasoning=True,
)
_HUNYUAN_A13B = Format(
    id="hunyuan_a13b",
    families=("Hunyuan-A13B",),
    reasoning=THINK,
    syntaxes=(_TOOL_CALLS_ARRAY,),
    shell_opens=("<answer>",),
    shell_closes=("</answer>",),
)
_GRANITE_CALLS = JsonCalls(openers=("<tool_call>", "<|tool_call|>"), closers=("</tool_call>",))
_GRANITE_ARRAY = Format(
    id="granite_array",
    families=("Granite 3.0", "Granite 3.1-3.3"),
    syntaxes=(_GRANITE_CALLS,),
    special_tokens=True,
)
_GRANITE_33 = Format(
    id="granite33_think",
    families=("Granite 3.3 thinking",),
    reasoning=THINK,
    syntaxes=(_GRANITE_CALLS,),
    shell_opens=("<response>",),
    shell_closes=("</response>",),
)
_GRANITE_32 = Format(
    id="granite32_phrases",
    families=("Granite 3.2",),
    reasoning=ReasoningMarkers(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    syntaxes=(_GRANITE_CALLS,),
)
_PHI_4 = Format(
    id="phi4_mini",
    families=("Phi-4-mini", "Firefunction v2"),
    syntaxes=(JsonCalls(openers=("functools",), needs_array=True),),
)
_XLAM = Format(
    id="xlam_array",
    families=("xLAM-2",),
    reasoning=THINK,
    syntaxes=(JsonCalls(at_start=True, needs_array=True, fences=("```json", "```")),),
)
_COHERE_ACTION = JsonCalls(
    openers=("<|START_ACTION|>",),
    closers=("<|END_ACTION|>",),
    name_keys=("tool_name", "name"),
    id_keys=("tool_call_id",),
)
_COHERE_THINKING = ReasoningMarkers(("<|START_THINKING|>",), ("<|END_THINKING|>",), anywhere=True)
_COHERE_3 = Format(
    id="cohere_cmd3",
    families=("Command-R7B", "Command-A"),
    reasoning=_COHERE_THINKING,
    syntaxes=(_COHERE_ACTION,),
    shell_opens=("<|START_RESPONSE|>",),
    shell_closes=("<|END_RESPONSE|>",),
    special_tokens=True,
    calls_end_reasoning=True,
)
_COHERE_4 = Format(
    id="cohere_cmd4",
    families=("Command-A+", "North / Cohere2 MoE"),
    reasoning=_COHERE_THINKING,
    syntaxes=(_COHERE_ACTION,),
    shell_opens=("<|START_TEXT|>", "<|START_RESPONSE|>"),
    shell_closes=("<|END_TEXT|>", "<|END_RESPONSE|>"),
    special_tokens=True,
    calls_end_reasoning=True,
)
_COMMAND_R = Format(
    id="cohere_action_json",
    families=("Command-R / R+",),
    syntaxes=(
        JsonCalls(
            openers=("Action:",),
            fences=("```json", "```"),
            needs_fence=True,
            name_keys=("tool_name", "name"),
        ),
    ),
)
_APERTUS = Format(
    id="apertus",
    families=("Apertus",),
    reasoning=ReasoningMarkers(("<|inner_prefix|>",), ("<|inner_suffix|>",), anywhere=True),
    syntaxes=(
        JsonCalls(openers=("<|tools_prefix|>",), closers=("<|tools_suffix|>",), named_by_key=True),
    ),
    special_tokens=True,
)

# ---- JSON after a name


_MISTRAL = NamedJsonCalls(
    openers=("[TOOL_CALLS]",),
    call_opens=("[TOOL_CALLS]",),
    id_opens=("[CALL_ID]",),
    name_ends=("[ARGS]",),
    or_array=JsonCalls(id_keys=("id",)),
)
_MISTRAL_3 = Format(
    id="mistral_v3",
    families=("Mistral-7B v0.3", "Nemo", "Mixtral", "Large 2407"),
    syntaxes=(_MISTRAL,),
    special_tokens=True,
    ids="mistral",
)
_MISTRAL_11 = Format(
    id="mistral_v11",
    families=("Mistral Small 3.x", "Devstral", "Magistral", "Ministral 3"),
    reasoning=ReasoningMarkers(("[THINK]",), ("[/THINK]",), anywhere=True),
    syntaxes=(_MISTRAL,),
    special_tokens=True,
    ids="mistral",
)
_DEEPSEEK_CALLS = NamedJsonCalls(
    openers=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    closers=("<｜tool▁calls▁end｜>",),
    call_opens=("<｜tool▁call▁begin｜>",),
    call_closes=("<｜tool▁call▁end｜>",),
    name_prefixes=("function<｜tool▁sep｜>",),
    name_ends=("<｜tool▁sep｜>",),
    fences=("```json", "```"),
)
_DEEPSEEK_3 = Format(
    id="deepseek_v3",
    families=("DeepSeek-V3", "DeepSeek-R1-0528"),
    reasoning=THINK,
    syntaxes=(_DEEPSEEK_CALLS,),
    special_tokens=True,
    calls_end_reasoning=True,
)
_DEEPSEEK_31 = Format(
    id="deepseek_v31",
    families=("DeepSeek-V3.1",),
    reasoning=THINK,
    syntaxes=(_DEEPSEEK_CALLS,),
    special_tokens=True,
    calls_end_reasoning=True,
)
_KIMI_2 = Format(
    id="kimi_k2",
    families=("Kimi K2", "K2-Thinking", "K2.5"),
    reasoning=THINK,
    syntaxes=(
        NamedJsonCalls(
            openers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
            closers=("<|tool_calls_section_end|>",),
            call_opens=("<|tool_call_begin|>",),
            call_closes=("<|tool_call_end|>",),
            name_ends=("<|tool_call_argument_begin|>",),
            numbered=True,
        ),
    ),
    special_tokens=True,
    calls_end_reasoning=True,
    ids="kimi",
)
_SOLAR = Format(
    id="solar_open",
    families=("Solar-Open-100B",),
    reasoning=ReasoningMarkers(("<|think|>",), ("<|end|>",), anywhere=True),
    syntaxes=(
        NamedJsonCalls(
            openers=("<|tool_calls|>", "<|tool_call:begin|>"),
            closers=("<|calls|>",),
            call_opens=("<|tool_call:begin|>",),
            call_closes=("<|tool_call:end|>",),
            id_end="<|tool_call:name|>",
            name_ends=("<|tool_call:args|>",),
        ),
    ),
    shell_opens=("<|begin|>assistant", "<|content|>"),
    shell_closes=("<|end|>", "<|flush|>"),
    special_tokens=True,
    calls_end_reasoning=True,
)
_FUNCTIONARY_31 = Format(
    id="functionary_v3_1",
    families=("Functionary 3.1",),
    syntaxes=(
        NamedJsonCalls(
            openers=("<function=",),
            call_opens=("<function=",),
            call_closes=("</function>",),
            name_ends=(">",),
        ),
    ),
)
_FUNCTIONARY_32 = Format(
    id="functionary_v3_2",
    families=("Functionary 3.2",),
    syntaxes=(NamedJsonCalls(openers=(">>>",), call_opens=(">>>",), prose=True),),
    shell_opens=(">>>all\n",),
    implied_opener=">>>",
)

JSON_ENTRIES = (
    _HERMES,
    _LONGCAT,
    _ERNIE,
    _INTERNLM,
    _GRANITE_20B,
    _GIGACHAT_3,
    _GIGACHAT_31,
    _LLAMA_3,
    _MINIMAX_M1,
    _JAMBA,
    _NEMOTRON_V2,
    _APRIEL,
    _HUNYUAN_A13B,
    _GRANITE_ARRAY,
    _GRANITE_33,
    _GRANITE_32,
    _PHI_4,
    _XLAM,
    _COHERE_3,
    _COHERE_4,
    _COMMAND_R,
    _APERTUS,
    _MISTRAL_3,
    _MISTRAL_11,
    _DEEPSEEK_3,
    _DEEPSEEK_31,
    _KIMI_2,
    _SOLAR,
    _FUNCTIONARY_31,
    _FUNCTIONARY_32,
)
