"""A tiny Qwen2-VL with random weights, in transformers and as GGUF: the family whose rotary
embedding has three dimensions (M-RoPE), so that a picture takes fewer positions than cells.

Names and keys follow llama.cpp's `convert_hf_to_gguf.py` (Qwen2VLModel, Qwen2VLVisionModel).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

import bundled
from tests.backends import gguf_vision
from training import gguf_file

PATCH, MERGE = 8, 2
TILE = PATCH * MERGE  # pixels of an edge that one token covers
SECTIONS = (4, 6, 6)  # of a head's 16 rotary pairs, for time, height and width
START, PAD, END, VIDEO = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"
WORDS = "model.language_model."
ENCODER = "model.visual."
LAYER = {
    "attn.proj": "attn_out",
    "norm1": "ln1",
    "norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


class Peer:
    """The model in transformers."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(bundled.SAFETENSORS)
        self.tokenizer.add_tokens([START, PAD, END, VIDEO], special_tokens=True)
        self.pad: int = self.tokenizer.convert_tokens_to_ids(PAD)
        self.model = _model(self.tokenizer)
        self._images = Qwen2VLImageProcessorPil(
            patch_size=PATCH,
            merge_size=MERGE,
            temporal_patch_size=2,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
            size={"shortest_edge": TILE**2, "longest_edge": (64 * TILE) ** 2},
        )

    def answer(self, text: str, pictures: list[Any], count: int) -> tuple[list[int], list[float]]:
        """`count` tokens and their log probabilities; `PAD` stands for each picture in `text`."""
        seen = self._images(pictures, return_tensors="pt") if pictures else {}
        for height, width in [grid[1:].tolist() for grid in seen.get("image_grid_thw", ())]:
            text = text.replace(PAD, "@" * (height * width // MERGE**2), 1)
        text = text.replace("@", PAD)
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        made = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == self.pad).int(),
            **seen,
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = made.sequences[0, ids.shape[1] :].tolist()
        logprobs = [
            float(torch.log_softmax(logits[0], -1)[token])
            for logits, token in zip(made.logits, tokens, strict=True)
        ]
        return tokens, logprobs


def _model(tokenizer: Any) -> Any:
    ids = tokenizer.convert_tokens_to_ids
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": list(SECTIONS),
                "rope_theta": 10000.0,
            },
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
        },
        image_token_id=ids(PAD),
        video_token_id=ids(VIDEO),
        vision_start_token_id=ids(START),
        vision_end_token_id=ids(END),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.15)  # large enough that every position matters
    return model


def convert(peer: Peer, out: Path) -> Path:
    """Writes `qwen.gguf` and `mmproj-qwen.gguf` into `out`; returns the first one's path."""
    weights = {name: tensor.float() for name, tensor in peer.model.state_dict().items()}
    peer.tokenizer.save_pretrained(out)
    words = gguf.GGUFWriter(out / "qwen.gguf", "qwen2vl")
    gguf_file.add_metadata(words, peer.model.config.text_config)
    words.add_rope_dimension_sections([*SECTIONS, 0])
    gguf_file.add_tokenizer(words, Tokenizer.from_file(str(out / "tokenizer.json")))
    for name, tensor in weights.items():
        if name.startswith(WORDS):
            words.add_tensor(_words_name(name), numpy.ascontiguousarray(tensor.numpy()))
    gguf_file.finish(words)
    projector = gguf.GGUFWriter(out / "mmproj-qwen.gguf", "clip")
    gguf_vision.describe(
        projector,
        "qwen2vl_merger",
        into=64,
        image=8 * TILE,
        patch=PATCH,
        width=32,
        inner=64,
        layers=2,
        epsilon=1e-6,
        llava=False,
    )
    for name, tensor in weights.items():
        for target, part in _vision(name, tensor):
            projector.add_tensor(target, numpy.ascontiguousarray(part.numpy()))
    gguf_file.finish(projector)
    return out / "qwen.gguf"


def _words_name(name: str) -> str:
    stem, _, kind = name.replace(WORDS, "model.").rpartition(".")
    return gguf_file.gguf_name(f"{stem}.weight").removesuffix("weight") + kind


def _vision(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if not name.startswith(ENCODER):
        return
    inner, _, kind = name.removeprefix(ENCODER).rpartition(".")
    match inner.split(".", 2):
        case ["patch_embed", "proj"]:  # two frames of a video, so two convolutions
            yield "v.patch_embd.weight", tensor[:, :, 0]
            yield "v.patch_embd.weight.1", tensor[:, :, 1]
        case ["merger", "ln_q"]:
            yield f"v.post_ln.{kind}", tensor
        case ["merger", "mlp", number]:
            yield f"mm.{number}.{kind}", tensor
        case ["blocks", layer, "attn.qkv"]:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                yield f"v.blk.{layer}.attn_{letter}.{kind}", part
        case ["blocks", layer, rest]:
            yield f"v.blk.{layer}.{LAYER[rest]}.{kind}", tensor
