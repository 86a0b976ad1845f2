"""What exllamav2's own image encoders see: random weights, and the numbers of transformers."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from PIL import Image as Pillow
from safetensors.torch import load_file, save_file

from backends.contract.protocol import Generation, Image, ModelContainer, Pixels
from backends.contract.samplers import Sampling
from config.engines import ExLlamaV2Options
from tests.backends import random_vision
from tests.backends.container_contract import run
from tests.backends.parity import load
from tests.backends.random_vision import KINDS, MROPE, Kind
from tests.cardless.test_exllamav2_architectures import NEAR, ORDINARY

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPTIONS = ExLlamaV2Options(max_concurrent=2, context_length=256)
SIDE, PATCH = 32, 8
# exllamav2 takes widths of whole multiples of 32.
TEXT = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.1,
}
EYES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "initializer_range": 0.1,
}
SECTIONS = {"mrope_section": [4, 6, 6]}
QWEN_TEXT = {"rope_parameters": MROPE["rope_parameters"] | SECTIONS}


class Seeing(msgspec.Struct, frozen=True):
    """How `random_vision`'s model is made as wide, and how its files lie on the hub."""

    processor: str
    text: Mapping[str, Any] = {}
    eyes: Mapping[str, Any] = {}
    config: Mapping[str, Any] = {}  # of its eyes, as exllamav2 wants it
    prepares: Mapping[str, Any] = {}


PIXTRAL = Seeing(
    "PixtralImageProcessor",
    eyes={"hidden_act": "silu"},
    config={"rope_theta": 10000.0, "head_dim": 32},
)
QWEN_HUB = {"spatial_patch_size": PATCH, "spatial_merge_size": 2, "rope_theta": 10000.0}
QWEN_PREPARES = {
    "min_pixels": 256,
    "max_pixels": 2304,
    "patch_size": PATCH,
    "merge_size": 2,
    "temporal_patch_size": 2,
}
MODELS: Mapping[str, Seeing] = {
    "pixtral": PIXTRAL,
    "mistral3": PIXTRAL,
    "qwen2_vl": Seeing(
        "Qwen2VLImageProcessor",
        QWEN_TEXT,
        {"embed_dim": 64, "hidden_size": 128, "mlp_ratio": 2},
        QWEN_HUB,
        QWEN_PREPARES,
    ),
    "qwen2_5_vl": Seeing(
        "Qwen2VLImageProcessor",
        QWEN_TEXT,  # exllamav2 knows its eyes in one width
        {"hidden_size": 1280, "out_hidden_size": 128, "num_heads": 20, "initializer_range": 0.03},
        QWEN_HUB,
        QWEN_PREPARES,
    ),
    "gemma3": Seeing("Gemma3ImageProcessor", {"query_pre_attn_scalar": 32}),
}


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind that is as wide as exllamav2 wants it."""
    kind, seeing = KINDS[request.param], MODELS[request.param]
    config = {
        **kind.config,
        "text_config": {**kind.config["text_config"], **TEXT, **seeing.text},
        "vision_config": {**kind.config["vision_config"], **EYES, **seeing.eyes},
    }
    wide = msgspec.structs.replace(kind, config=config)
    monkeypatch.setitem(KINDS, request.param, wide)
    return str(request.param)


def as_on_the_hub(name: str, folder: Path) -> Path:
    """As older versions of transformers wrote it, which exllamav2 reads."""
    seeing = MODELS[name]
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["vision_config"] |= seeing.config
    if name.startswith("qwen"):
        scaling = {"rope_theta": 1e4, "rope_scaling": {"type": "mrope", **SECTIONS}}
        config = config["text_config"] | config | scaling
    path.write_text(json.dumps(config))
    path = folder / "preprocessor_config.json"
    prepares = json.loads(path.read_text()) | seeing.prepares
    path.write_text(json.dumps(prepares | {"image_processor_type": seeing.processor}))
    if name == "gemma3":
        path = folder / "model.safetensors"
        found = load_file(path)
        hub = {
            key.replace("vision_tower.", "vision_tower.vision_model."): found[key] for key in found
        }
        save_file(hub, path)
    return folder


def picture() -> Pillow.Image:
    rng = random.Random(3)
    return Pillow.frombytes("RGB", (SIDE, SIDE), rng.randbytes(SIDE * SIDE * 3))


async def chances(container: ModelContainer, kind: Kind) -> tuple[dict[int, float], int]:
    """Of nearly all tokens after a prompt with a picture, and how many tokens that has."""
    prompt = container.tokenize(random_vision.prompt(kind, 1), special=True)
    shown = Image(SIDE, SIDE, Pixels(picture().tobytes()))
    chosen = Sampling(temperature=0, logit_bias=((ORDINARY, 1000.0),))
    asked = Generation(prompt=prompt, images=(shown,), sampling=chosen, max_tokens=1, logprobs=768)
    pieces, ended = await run(container, asked)
    [logprob] = [found for piece in pieces for found in piece.logprobs]
    return {one.token: one.logprob for one in logprob.top}, ended.prompt_tokens


def expected(name: str, kind: Kind, folder: Path) -> tuple[list[float], int]:
    """The same, by transformers. Its processors want torchvision: what they put for a picture is
    written here.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    seen = kind.images()([picture()], return_tensors="pt")
    text = random_vision.prompt(kind, 1)
    if name.startswith("qwen"):
        count = int(seen["image_grid_thw"].prod()) // 4
        text, patch = text.replace("<|image_pad|>", "<|image_pad|>" * count), "<|image_pad|>"
        further: Callable[[torch.Tensor], dict[str, Any]] = lambda is_patch: {
            "image_grid_thw": seen["image_grid_thw"],
            "mm_token_type_ids": is_patch,
        }
    elif name == "gemma3":
        patch = "<image_soft_token>"
        shown = f"\n\n<start_of_image>{patch * 4}<end_of_image>\n\n"
        text = text.replace("<start_of_image>", shown)
        further = lambda is_patch: {"token_type_ids": is_patch}
    else:
        patch, side = "[IMG]", SIDE // PATCH // (2 if name == "mistral3" else 1)
        text = text.replace("[IMG]", "[IMG_BREAK]".join([patch * side] * side) + "[IMG_END]")
        further = lambda _: {"image_sizes": torch.tensor([[SIDE, SIDE]])}
    tokens = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    is_patch = (tokens == tokenizer.convert_tokens_to_ids(patch)).long()
    with torch.inference_mode():
        made = model(input_ids=tokens, pixel_values=seen["pixel_values"], **further(is_patch))
    return made.logits[0, -1].log_softmax(-1).tolist(), tokens.shape[1]


async def test_its_numbers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = as_on_the_hub(name, random_vision.write(name, tmp_path / "hub"))
    container = await load("exllamav2", OPTIONS, folder)
    assert container.info.modalities == ("text", "image")
    ours, length = await chances(container, KINDS[name])
    await container.aclose()
    theirs, count = expected(name, KINDS[name], random_vision.write(name, tmp_path / "now"))
    assert length == count
    assert max(abs(ours[token] - theirs[token]) for token in ours) < NEAR
    assert max(theirs) - min(theirs) > 1  # the model has an opinion
    blind = await load("exllamav2", msgspec.structs.replace(OPTIONS, vision=False), folder)
    assert blind.info.modalities == ("text",)
    await blind.aclose()
