"""The bundled demonstration model, in the two formats that Roundhouse loads.

It is a Llama of 0.85 million parameters that this project trains itself (see `training/`): a
demonstration and a test instrument, not an assistant. Both files hold the same weights.
"""

from pathlib import Path
from typing import Final

_HERE = Path(__file__).parent

SAFETENSORS: Final = _HERE / "roundhouse-tiny"
"""A Hugging Face folder: F16 safetensors, tokenizer and chat template."""

GGUF: Final = _HERE / "roundhouse-tiny.gguf"
"""The same model for llama.cpp, F16."""
