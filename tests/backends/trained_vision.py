"""A tiny model that sees: a real architecture (LLaVA: SigLIP and Llama) with its real processor,
taught in seconds to name the colours of pictures. A tool of tests; run it to have the folder:
`python … FOLDER`.
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

import bundled

SIDE, PATCH = 24, 8
PATCHES = (SIDE // PATCH) ** 2  # tokens a picture takes
PLACEHOLDER = "<image>"
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 180, 40),
    "blue": (30, 40, 220),
    "white": (245, 245, 245),
    "black": (10, 10, 10),
}
TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n"
    "{%- if message.content is string -%}{{ message.content }}{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}<image>{%- else -%}{{ part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)
QUESTIONS = ("Describe the image.", "What colour is it?", "", "Which colours?")


def prompt(pictures: int, question: str, marker: str = PLACEHOLDER) -> str:
    """As the template renders one user message: pictures, then text."""
    asked = marker * pictures + question
    return f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"


def picture(colour: str, rng: random.Random, side: int = SIDE) -> Image.Image:
    shade = tuple(max(0, min(255, part + rng.randrange(-10, 11))) for part in COLOURS[colour])
    return Image.new("RGB", (side, side), shade)


def train(folder: Path, steps: int = 250) -> Path:
    """Writes the model and everything beside it into `folder`."""
    torch.set_num_threads(1)  # other sums round otherwise, and it learns less in as many steps
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(bundled.SAFETENSORS)
    tokenizer.add_tokens([PLACEHOLDER], special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    model = _model(tokenizer)
    images = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    processor = LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
        num_additional_image_tokens=0,
    )
    _teach(model, processor, steps)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _model(tokenizer: Any) -> Any:
    sees = SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    writes = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    place = tokenizer.convert_tokens_to_ids(PLACEHOLDER)
    config = LlavaConfig(
        vision_config=sees,
        text_config=writes,
        image_token_index=place,
        image_token_id=place,
        vision_feature_select_strategy="full",
    )
    return LlavaForConditionalGeneration(config)


def _teach(model: Any, processor: Any, steps: int) -> None:
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    calmer = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    model.train()
    for _ in range(steps):
        loss = _loss(model, processor, [_lesson(rng) for _ in range(12)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        calmer.step()
    model.eval()


def _lesson(rng: random.Random) -> tuple[list[Image.Image], str, str]:
    """One or two pictures, or none, a question, and the right answer."""
    colours = rng.choices(list(COLOURS), k=rng.choice((0, 1, 1, 1, 2)))
    pictures = [picture(colour, rng) for colour in colours]
    answer = " and ".join(colours) or "nothing"
    return pictures, prompt(len(colours), rng.choice(QUESTIONS)), f"{answer}<|im_end|>"


def _loss(
    model: Any, processor: Any, lessons: Sequence[tuple[list[Image.Image], str, str]]
) -> torch.Tensor:
    texts = [question + answer for _, question, answer in lessons]
    pictures = [images for images, _, _ in lessons]
    inputs = processor(
        text=texts, images=pictures, padding=True, padding_side="right", return_tensors="pt"
    )
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, (_, _, answer) in enumerate(lessons):
        length = int(inputs["attention_mask"][row].sum())
        own = len(processor.tokenizer(answer)["input_ids"])
        labels[row, length - own : length] = inputs["input_ids"][row, length - own : length]
    loss: torch.Tensor = model(**inputs, labels=labels).loss
    return loss


if __name__ == "__main__":
    train(Path(sys.argv[1]))
