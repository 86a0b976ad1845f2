"""The tiny model that sees (`tests.backends.trained_vision`) as llama.cpp wants it: a GGUF file for
its words and a projector beside it, from the same weights.

Names and keys follow llama.cpp's `convert_hf_to_gguf.py` (LlavaVisionModel) and its
`tools/mtmd/clip.cpp` (projector type "mlp").
"""

from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText

from tests.backends import gguf_vision
from training import gguf_file

PREFIX = "model.vision_tower."
WHOLE = {
    "embeddings.patch_embedding.weight": "v.patch_embd.weight",
    "embeddings.patch_embedding.bias": "v.patch_embd.bias",
    "embeddings.position_embedding.weight": "v.position_embd.weight",
}
PROJECTOR = {"linear_1": "mm.0", "linear_2": "mm.2"}
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def convert(folder: Path, out: Path) -> Path:
    """Writes `seeing.gguf` and `mmproj-seeing.gguf` into `out`; returns the first one's path."""
    model = AutoModelForImageTextToText.from_pretrained(folder)
    weights = {name: tensor.float() for name, tensor in model.state_dict().items()}
    out.mkdir(parents=True, exist_ok=True)
    _write_words(out / "seeing.gguf", model.config.text_config, weights, folder)
    _write_projector(out / "mmproj-seeing.gguf", model.config, weights)
    return out / "seeing.gguf"


def _write_words(path: Path, config: Any, weights: dict[str, torch.Tensor], folder: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    gguf_file.add_metadata(writer, config)
    gguf_file.add_tokenizer(writer, Tokenizer.from_file(str(folder / "tokenizer.json")))
    for name, tensor in weights.items():
        if not name.startswith("model.language_model."):
            continue
        array = tensor.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            array = gguf_file.interleave_rotary(array, config.num_attention_heads)
        plain = name.replace("model.language_model.", "model.")
        writer.add_tensor(gguf_file.gguf_name(plain), numpy.ascontiguousarray(array))
    gguf_file.finish(writer)


def _write_projector(path: Path, config: Any, weights: dict[str, torch.Tensor]) -> None:
    writer = gguf.GGUFWriter(path, "clip")
    encoder = config.vision_config
    gguf_vision.describe(
        writer,
        "mlp",
        into=config.text_config.hidden_size,
        image=encoder.image_size,
        patch=encoder.patch_size,
        width=encoder.hidden_size,
        inner=encoder.intermediate_size,
        layers=encoder.num_hidden_layers,
        heads=encoder.num_attention_heads,
        epsilon=encoder.layer_norm_eps,
    )
    for name, tensor in weights.items():
        if (target := _vision_name(name)) is not None:
            writer.add_tensor(target, _array(tensor))
    gguf_file.finish(writer)


def _vision_name(name: str) -> str | None:
    """None for what belongs elsewhere; the last norm is behind the layer that is looked at."""
    kind = name.rpartition(".")[2]
    if name.startswith("model.multi_modal_projector."):
        return f"{PROJECTOR[name.split('.')[2]]}.{kind}"
    rest = name.removeprefix(PREFIX)
    if rest in WHOLE:
        return WHOLE[rest]
    if not rest.startswith("encoder.layers."):
        return None
    _, _, layer, inner = rest.split(".", 3)
    return f"v.blk.{layer}.{LAYER[inner.rpartition('.')[0]]}.{kind}"


def _array(tensor: torch.Tensor) -> NDArray[numpy.float32]:
    return numpy.ascontiguousarray(tensor.numpy().astype(numpy.float32))
