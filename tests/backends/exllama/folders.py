"""The bundled model's folder with another `config.json`."""

import json
import shutil
from pathlib import Path
from typing import Any

import bundled


def folder(tmp_path: Path, **changes: Any) -> Path:
    made = tmp_path / "model"
    shutil.copytree(bundled.SAFETENSORS, made)
    config = json.loads((made / "config.json").read_text()) | changes
    (made / "config.json").write_text(json.dumps(config))
    return made


def quantized(tmp_path: Path, method: str) -> Path:
    return folder(tmp_path, quantization_config={"quant_method": method, "bits": 4.0})
