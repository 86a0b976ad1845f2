"""A model with adapters says what peft would have it say; one that can't be used is named."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import bundled
from backends.contract.errors import LoadFailed
from backends.contract.protocol import Generation, ModelContainer
from tests.backends.batching import STORY
from tests.backends.container_contract import GREEDY, run
from tests.backends.engines.transformers.test_container import OPTIONS, load
from tests.backends.pairs import quick

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.anyio

LENGTH = 20  # tokens of an answer
KINDS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": ["v_proj"]},
    "another": {"target_modules": ["q_proj", "down_proj"], "r": 4},
    "dora": {"target_modules": ["v_proj"], "use_dora": True},
}


def bare(dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(bundled.SAFETENSORS, dtype=dtype)


def adapter(kind: str, folder: Path) -> Path:
    torch.manual_seed(len(kind))
    wishes = peft.LoraConfig(init_lora_weights=False, lora_alpha=64, **KINDS[kind])
    peft.get_peft_model(bare(), wishes).save_pretrained(folder)
    return folder


async def adapted(*folders: Path) -> ModelContainer:
    names = {f"adapter v1.{number}": str(folder) for number, folder in enumerate(folders)}
    return await load(msgspec.structs.replace(OPTIONS, adapters=names))


async def answer(container: ModelContainer) -> list[int]:
    prompt = container.tokenize(STORY, special=True)
    pieces, _ = await run(container, Generation(prompt=prompt, sampling=GREEDY, max_tokens=LENGTH))
    return [token for piece in pieces for token in piece.tokens]


def by_peft(prompt: Sequence[int], folders: Sequence[Path]) -> list[int]:
    model = peft.PeftModel.from_pretrained(bare(), folders[0], "0")
    for number, folder in enumerate(folders[1:], 1):
        model.load_adapter(folder, str(number))
    model.base_model.set_adapter([str(number) for number in range(len(folders))])
    tokens = model.eval().generate(
        input_ids=torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False
    )
    written: list[int] = tokens[0, len(prompt) :].tolist()
    return written


TOGETHER = [("lora",), ("dora",), ("lora", "another")]


@pytest.mark.parametrize("kinds", quick(TOGETHER, ("lora",)), ids=" and ".join)
async def test_it_says_what_peft_would_have_it_say(kinds: Sequence[str], tmp_path: Path) -> None:
    folders = [adapter(kind, tmp_path / kind) for kind in kinds]
    plain = await load()
    container = await adapted(*folders)
    try:
        assert container.info.max_concurrent > 1  # batched
        said = await answer(container)
        assert said == by_peft(container.tokenize(STORY, special=True), folders)[: len(said)]
        assert said != await answer(plain)
    finally:
        await container.aclose()
        await plain.aclose()


def _for_another(folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = ["k_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(config))


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "lacks adapter_config.json"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "lacks"),
    "broken weights": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"none"),
        "header",
    ),
    "broken config": (lambda folder: (folder / "adapter_config.json").write_text("{"), "line 1"),
    "another model's": (_for_another, "trained for another model"),
}


@pytest.mark.parametrize("how", BREAKS)
async def test_one_that_can_t_be_used_is_named(how: str, tmp_path: Path) -> None:
    good, broken = adapter("another", tmp_path / "good"), adapter("lora", tmp_path / "broken")
    breaks, reason = BREAKS[how]
    breaks(broken)
    with pytest.raises(LoadFailed, match=rf"adapter 'adapter v1\.1' can't be used: .*{reason}"):
        await adapted(good, broken)
