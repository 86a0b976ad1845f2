"""The table of formats: how each family of models marks reasoning and writes tool calls. Data only."""

from collections.abc import Mapping

from gateway.splitter.syntax import Format, JsonCalls, ReasoningMarkers

THINK = ReasoningMarkers(("<think>",), ("</think>",))

PLAIN = Format(id="plain", families=("Gemma 2/3", "Phi-3.5", "anything unknown"))
THINK_TEXT = Format(
    id="think_text",
    families=("DeepSeek-R1-Distill", "Magistral-2506", "any textual <think>"),
    reasoning=THINK,
)
HERMES_JSON = Format(
    id="hermes_json",
    families=(
        "Hermes 2/3", "Qwen2.5", "Qwen3", "QwQ", "MiMo-VL", "Granite 4.0/4.1", "EXAONE 4.0", "Bielik",
        "Reka Edge", "SmolLM3",
    ),
    reasoning=THINK,
    syntaxes=(JsonCalls(openers=("<tool_call>",), closers=("</tool_call>",)),),
    calls_end_reasoning=True,
)  # fmt: skip

_ENTRIES = (PLAIN, THINK_TEXT, HERMES_JSON)

FORMATS: Mapping[str, Format] = {entry.id: entry for entry in _ENTRIES} | {"qwen3_json": HERMES_JSON}
