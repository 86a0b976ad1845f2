"""The bundled model's folder with another `config.json`."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import bundled


def folder(tmp_path: Path, **changes: Any) -> Path:
    made = tmp_path / "model"
    shutil.copytree(bundled.SAFETENSORS, made)
    config = json.loads((made / "config.json").read_text()) | changes
    (made / "config.json").write_text(json.dumps(config))
    return made


def quantized(tmp_path: Path, method: str) -> Path:
    return folder(tmp_path, quantization_config={"quant_method": method, "bits": 4.0})


def with_experts(tmp_path: Path) -> Path:
    """Two of its layers have four experts of 2 KiB each, besides a layer's own gate."""
    made = folder(tmp_path, num_experts=4)
    tensors = {
        f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight": torch.zeros(32, 32).half()
        for layer in (1, 2)
        for expert in range(4)
    }
    tensors["model.layers.1.mlp.gate.weight"] = torch.zeros(4, 32).half()
    save_file(tensors, made / "experts.safetensors")
    (made / "model.safetensors").rename(made / "rest.safetensors")
    return made
