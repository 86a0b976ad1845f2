"""What is refused of a header's attention is what llama.cpp would not survive, and what it bears is
loaded and answers.
"""

from pathlib import Path
from typing import Any

import pytest

from backends.errors import LoadFailed
from backends.llamacpp.files import recognise
from tests.backends import gguf_grown, gguf_search

TURNED, SLIDING = "rope.dimension_count", "rope.dimension_count_swa"
KEY, VALUE, SHARED = "attention.key_length", "attention.value_length", "attention.head_count_kv"
WINDOW, SECTIONS = "attention.sliding_window", "rope.dimension_sections"
PATTERN = "attention.sliding_window_pattern"

# An architecture and its numbers, which load and answer.
SOUND: list[tuple[str, dict[str, Any]]] = [
    ("starcoder", {TURNED: 0}),  # positions are learned
    ("bloom", {TURNED: 0}),  # and these are biases of the scores
    ("mamba2", {"attention.head_count": 0, TURNED: 0}),
    ("nemotron_h", {TURNED: 0}),
    ("granitehybrid", {TURNED: 0, "rope.scaling.finetuned": False}),
    ("deepseek2", {TURNED: 0, KEY: 32}),
    ("minicpm3", {TURNED: 0}),
    ("cohere2", {TURNED: 0, SLIDING: 16}),  # turned in layers that slide alone
    ("gemma2", {TURNED: 0, SLIDING: 16}),  # what is given of the first layer, which slides, counts
    ("llama4", {TURNED: 0, SLIDING: 16}),
    ("phi2", {TURNED: 8}),
    ("glm4", {TURNED: 8}),
    ("glm4", {SECTIONS: [0, 8, 8, 8]}),  # one kind of position, as the first is 0
    ("glm4moe", {SECTIONS: [2, 3, 3, 0]}),
    ("llama", {SHARED: 2, TURNED: 16}),
    ("qwen3", {KEY: 8, VALUE: 8}),
    ("gemma4", {SHARED: [2, 1, 2, 1]}),
    ("lfm2", {}),
    ("lfm2", {WINDOW: 7}),
    ("falcon-h1", {}),
    ("phi3", {}),
    ("qwen35", {}),
]


@pytest.mark.parametrize(("architecture", "numbers"), SOUND)
def test_what_is_sound_loads_and_answers(
    architecture: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    path = gguf_grown.write(architecture, tmp_path / "model.gguf", numbers)
    assert recognise(path) is not None
    assert gguf_search.tried(path) == "computed"


# An architecture, its numbers and words of the refusal. Without it each of them ends the process,
# or never ends.
UNSOUND: list[tuple[str, dict[str, Any], str]] = [
    ("phi2", {TURNED: 0}, "rope.dimension_count is 0 of 16"),
    ("glm4", {TURNED: 0}, "rope.dimension_count is 0 of 16"),
    ("qwen2", {TURNED: 0}, "rope.dimension_count is 0 of 16"),
    ("lfm2", {TURNED: 0}, "rope.dimension_count is 0 of 16"),
    ("granitehybrid", {TURNED: 0}, "rope.dimension_count is 0 of 16"),
    ("cohere2", {TURNED: 16, SLIDING: 0}, "rope.dimension_count_swa is 0 of 16"),
    ("gemma4", {TURNED: 0, SLIDING: 16}, "rope.dimension_count is 0 of 16"),
    ("gemma2", {TURNED: 16, SLIDING: 3}, "rope.dimension_count_swa is 3 of 16"),
    ("deepseek2", {TURNED: 24, KEY: 56}, "rope.dimension_count is 24 of 24"),
    ("deepseek2", {KEY: 34}, "key_length is 34 .* 32 .* 8"),
    ("mistral4", {}, "rope.dimension_count is 16 of 16"),
    ("glm4", {SECTIONS: [2, 8, 0, 8]}, r"dimension_sections are .* of 16 values"),
    ("minicpm3", {TURNED: 3}, "rope.dimension_count is 3 of 24"),
    ("gpt-oss", {TURNED: 8}, "rope.dimension_count is 8 of 16"),
    ("qwen3", {KEY: 8}, "key_length is 8 and .*value_length 16"),
    ("qwen3", {SHARED: 3}, "4 heads .* share 3"),
    ("gemma2", {SHARED: [2, 2, 2, 0]}, "4 heads .* share 0"),
    ("llama", {SHARED: [2, 1, 2, 1]}, "head_count_kv differs"),
    ("qwen2", {KEY: 8, VALUE: 8}, "key_length is 8; 4 heads share 64"),
    ("gemma2", {KEY: 16, "attention.key_length_swa": 8}, "key_length_swa"),
    ("gemma2", {PATTERN: [False] * 4}, "leaves no layer with the window"),
    ("step35", {"attention.value_length_swa": 8}, "value_length_swa is not its"),
    ("lfm2", {"attention.key_length_swa": 5, WINDOW: 7}, "key_length_swa is not its"),
    ("qwen3tts", {SECTIONS: [8, 8, 0, 1]}, r"dimension_sections are .* of 16 values"),
    ("step35", {TURNED: 2}, "rope.dimension_count is 1 of 16"),
]


@pytest.mark.parametrize(
    ("architecture", "numbers", "words"), UNSOUND, ids=[f"{one[0]}: {one[2]}" for one in UNSOUND]
)
def test_what_would_end_the_process_is_refused_by_its_key(
    architecture: str, numbers: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = gguf_grown.write(architecture, tmp_path / "model.gguf", numbers)
    with pytest.raises(LoadFailed, match=f"not a usable GGUF file: .*{words}"):
        recognise(path)
