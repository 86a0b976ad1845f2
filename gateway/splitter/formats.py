"""The table of formats: how each family of models marks reasoning and writes tool calls. Data only.

A new family that uses a known syntax is one entry, one rule in `recognition.py` and one case in the
tests.
"""

from collections.abc import Mapping

from gateway.splitter import formats_json, formats_marked
from gateway.splitter.syntax import THINK, Format, ReasoningMarkers

# ---- no calls


_PLAIN = Format(id="plain", families=("Gemma 2/3", "Phi-3.5", "anything unknown"))
_THINK_TEXT = Format(
    id="think_text",
    families=("DeepSeek-R1-Distill", "Magistral-2506", "any textual <think>"),
    reasoning=THINK,
)
_KIMI_VL = Format(
    id="kimi_vl_think",
    families=("Kimi-VL-Thinking",),
    reasoning=ReasoningMarkers(("◁think▷",), ("◁/think▷",)),
)

_ENTRIES = (
    _PLAIN,
    _THINK_TEXT,
    _KIMI_VL,
    *formats_json.JSON_ENTRIES,
    *formats_marked.MARKED_ENTRIES,
)

_BY_ID = {entry.id: entry for entry in _ENTRIES}

# Other names under which a format is known: a family that shares another's entry.
_ALIASES = {
    "qwen3_json": "hermes_json",
    "glm47": "glm45",
    "hy3_suffixed": "hy3",
    "firefunction_v2": "phi4_mini",
}

FORMATS: Mapping[str, Format] = _BY_ID | {alias: _BY_ID[known] for alias, known in _ALIASES.items()}
