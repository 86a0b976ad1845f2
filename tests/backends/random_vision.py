"""Tiny models that see, with random weights: the architectures people use, each with its own
processor and its files as they lie on the hub. A tool of tests.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers

import bundled

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # so that attention matters
    "tie_word_embeddings": False,
}
EYES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 8,
    "image_size": 32,
    "initializer_range": 0.3,
}
SQUARE = {"height": 32, "width": 32}


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture: what its processor finds in a prompt, and what its classes are made of."""

    placeholder: str  # as a chat template writes one picture
    markers: tuple[str, ...]  # added to the vocabulary, the picture's own token first
    config: Mapping[str, Any]  # of its configuration class, but for the ids of markers
    ids: Mapping[str, str]  # field of the configuration -> the marker whose id it holds
    images: Callable[[], Any]  # its image processor
    processor: str
    settings: Mapping[str, Any] = {}  # of its processor
    named: Mapping[str, str] = {}  # tokens its tokenizer knows by a name
    needs: str | None = None  # a library besides Pillow


def _qwen_pictures() -> Any:
    return transformers.Qwen2VLImageProcessorPil(
        patch_size=8, min_pixels=16 * 16, max_pixels=48 * 48
    )


QWEN_MARKERS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
QWEN_EYES = {"depth": 2, "num_heads": 2, "patch_size": 8, "intermediate_size": 48}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}


def _qwen(processor: str, **eyes: Any) -> Kind:
    return Kind(
        placeholder="<|vision_start|><|image_pad|><|vision_end|>",
        markers=QWEN_MARKERS,
        config={"text_config": TEXT | MROPE, "vision_config": QWEN_EYES | eyes},
        ids=QWEN_IDS,
        images=_qwen_pictures,
        processor=processor,
    )


def _idefics(processor: str, images: Callable[[], Any], needs: str | None = None) -> Kind:
    rows = tuple(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))
    return Kind(
        placeholder="<image>",
        markers=(
            "<image>",
            "<fake_token_around_image>",
            "<end_of_utterance>",
            "<global-img>",
            *rows,
        ),
        config={
            "text_config": TEXT | {"model_type": "llama"},
            "vision_config": EYES,
            "scale_factor": 2,
        },
        ids={"image_token_id": "<image>"},
        images=images,
        processor=processor,
        settings={"image_seq_len": 4},
        needs=needs,
    )


KINDS: Mapping[str, Kind] = {
    "qwen2_vl": _qwen("Qwen2VLProcessor", embed_dim=32, hidden_size=32),
    "qwen2_5_vl": _qwen(
        "Qwen2_5_VLProcessor",
        hidden_size=32,
        out_hidden_size=32,
        window_size=32,
        fullatt_block_indexes=[1],
    ),
    "qwen3_vl": _qwen(
        "Qwen3VLProcessor",
        hidden_size=32,
        out_hidden_size=32,
        num_position_embeddings=16,
        deepstack_visual_indexes=[0],
    ),
    "gemma3": Kind(
        placeholder="<start_of_image>",
        markers=("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        named={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        config={
            "text_config": TEXT
            | {
                "sliding_window": 16,
                "layer_types": ["sliding_attention", "full_attention"],
                "query_pre_attn_scalar": 8,
            },
            "vision_config": EYES,
            "mm_tokens_per_image": 4,
        },
        ids={
            "image_token_index": "<image_soft_token>",
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
        },
        images=lambda: transformers.Gemma3ImageProcessorPil(size=SQUARE),
        processor="Gemma3Processor",
        settings={"image_seq_length": 4},
    ),
    "idefics3": _idefics(
        "Idefics3Processor",
        lambda: transformers.Idefics3ImageProcessorPil(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
        ),
    ),
    "smolvlm": _idefics(
        "SmolVLMProcessor",
        lambda: transformers.SmolVLMImageProcessorPil(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
        ),
        needs="num2words",
    ),
    "llava_next": Kind(
        placeholder="<image>",
        markers=("<image>",),
        config={
            "text_config": TEXT | {"model_type": "mistral"},
            "vision_config": EYES | {"model_type": "clip_vision_model"},
            "image_grid_pinpoints": [[32, 64], [64, 32]],
        },
        ids={"image_token_index": "<image>"},
        images=lambda: transformers.LlavaNextImageProcessorPil(
            size=SQUARE, crop_size=SQUARE, image_grid_pinpoints=[[32, 64], [64, 32]]
        ),
        processor="LlavaNextProcessor",
        settings={
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "internvl": Kind(
        placeholder="<IMG_CONTEXT>",
        markers=("<IMG_CONTEXT>", "<img>", "</img>", "<video>"),
        named={
            "context_image_token": "<IMG_CONTEXT>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "video_token": "<video>",
        },
        config={
            "text_config": TEXT | {"model_type": "qwen2"},
            "vision_config": EYES | {"image_size": [32, 32], "patch_size": [8, 8]},
        },
        ids={"image_token_id": "<IMG_CONTEXT>"},
        images=lambda: transformers.GotOcr2ImageProcessorPil(size=SQUARE),
        processor="InternVLProcessor",
        settings={"image_seq_length": 4},
    ),
    "pixtral": Kind(
        placeholder="[IMG]",
        markers=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        config={
            "model_type": "llava",
            "text_config": TEXT | {"model_type": "mistral"},
            "vision_config": EYES | {"model_type": "pixtral"},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        ids={"image_token_index": "[IMG]"},
        images=lambda: transformers.PixtralImageProcessorPil(
            size={"longest_edge": 32}, patch_size=8
        ),
        processor="PixtralProcessor",
        settings={"patch_size": 8},
        needs="torchvision",
    ),
    "mistral3": Kind(
        placeholder="[IMG]",
        markers=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        config={
            "text_config": TEXT | {"model_type": "mistral"},
            "vision_config": EYES | {"model_type": "pixtral"},
            "spatial_merge_size": 2,
        },
        ids={"image_token_index": "[IMG]"},
        images=lambda: transformers.PixtralImageProcessorPil(
            size={"longest_edge": 32}, patch_size=8
        ),
        processor="PixtralProcessor",
        settings={"patch_size": 8, "spatial_merge_size": 2},
        needs="torchvision",
    ),
}


def template(kind: Kind) -> str:
    return (
        "{%- for message in messages -%}<|im_start|>{{ message.role }}\n"
        "{%- if message.content is string -%}{{ message.content }}{%- else -%}"
        "{%- for part in message.content -%}"
        "{%- if part.type == 'image' -%}" + kind.placeholder + "{%- else -%}{{ part.text }}"
        "{%- endif -%}{%- endfor -%}{%- endif -%}<|im_end|>\n{%- endfor -%}"
        "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
    )


def prompt(kind: Kind, pictures: int) -> str:
    """As the template renders one user message: pictures between texts."""
    shown = " and ".join([kind.placeholder] * pictures)
    return f"<|im_start|>user\nHere: {shown}Describe it.<|im_end|>\n<|im_start|>assistant\n"


def write(name: str, folder: Path) -> Path:
    """The model called `name` in `KINDS` and everything beside it."""
    kind = KINDS[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundled.SAFETENSORS)
    tokenizer.add_tokens(list(kind.markers), special_tokens=True)
    tokenizer.chat_template = template(kind)
    _model(name, kind, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    kind.images().save_pretrained(folder)
    _amend(folder / "preprocessor_config.json", processor_class=kind.processor)
    _amend(folder / "tokenizer_config.json", **kind.named)
    _amend(folder / "processor_config.json", processor_class=kind.processor, **kind.settings)
    return folder


def _model(name: str, kind: Kind, tokenizer: Any) -> Any:
    torch.manual_seed(0)
    known = {field: tokenizer.convert_tokens_to_ids(text) for field, text in kind.ids.items()}
    fields = {**kind.config, **known}
    fields["text_config"] = fields["text_config"] | {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    config = transformers.AutoConfig.for_model(fields.pop("model_type", name), **fields)
    return transformers.AutoModelForImageTextToText.from_config(config).eval()


def _amend(path: Path, **fields: Any) -> None:
    present = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(present | fields))
