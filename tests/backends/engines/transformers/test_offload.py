"""Which layers of a model larger than its card lie in main memory: a pure choice, tested with real
models' names, and with accelerate's own hooks on a CPU. What needs a card is the copying to one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import accelerate
import msgspec
import pytest
import torch
import transformers
from accelerate.utils import check_device_map

import bundled
from backends.contract.catalog import Room
from backends.engines.transformers import files as folder
from backends.engines.transformers.forward import Forward, batching_pattern
from backends.engines.transformers.grid import Grid
from backends.engines.transformers.offload import device_map, weights_of
from config.engines import TransformersOptions
from tests.backends.engines.transformers.test_forward import BATCHED, model_of, plain
from tests.backends.pairs import quick

OPTIONS = TransformersOptions()
CARD = "cuda:0"
LAYERS = 4  # of the bundled model


def names_of(model: torch.nn.Module) -> list[str]:
    tied = model.named_parameters(remove_duplicate=False)
    return [name for name, _ in (*tied, *model.named_buffers())]


NAMED = [kind for kind in BATCHED if kind not in ("gpt2", "falcon")]


@pytest.mark.parametrize("kind", quick(NAMED, "llama", "gemma3_text"))
def test_every_tensor_has_one_place_and_none_is_a_disk(kind: str) -> None:
    model = model_of(kind, BATCHED[kind])
    places = device_map(names_of(model), 2, CARD)
    check_device_map(model, dict(places))  # accelerate's own: nothing is left out
    assert set(places.values()) == {"cpu", CARD}
    away = {name for name, place in places.items() if place == "cpu"}
    assert len(away) == 2
    assert all(name.endswith((".layers.0", ".layers.1")) for name in away)


@pytest.mark.parametrize("away", [0, 1, 3])
def test_as_many_layers_are_away_as_was_asked_for(away: int) -> None:
    places = device_map(names_of(model_of("llama", {})), away, CARD)
    assert sum(place == "cpu" for place in places.values()) == away


def room(card: int, main: int = 1 << 40) -> Room:
    return Room(free={CARD: card, "cpu": main}, bandwidths={CARD: 900e9, "cpu": 10e9})


def fitted(card: int, main: int = 1 << 40, **changes: Any) -> Any:
    files = folder.recognise(bundled.SAFETENSORS)
    assert files is not None
    options = msgspec.structs.replace(OPTIONS, **changes)
    return files, folder.fit_on(files, options, (CARD,), room(card, main))


def test_what_fits_the_card_lies_there_as_a_whole() -> None:
    assert fitted(1 << 40)[1] is None


def test_as_few_layers_as_possible_are_away_and_never_more_is_promised_than_is_free() -> None:
    files, _ = fitted(1 << 40)
    size = folder.estimate(files, OPTIONS).total
    counts = []
    for card in range(size, 0, -size // 40):
        _, found = fitted(card)
        if found is None:
            continue
        held = {name: part * found.need.total for name, part in found.placement.items()}
        assert held.get(CARD, 0) <= card + 1
        counts.append(found.options.gpu_layers if CARD in held else 0)
        if CARD in held:
            assert found.options.device == CARD
            assert f"{LAYERS - found.options.gpu_layers} of {LAYERS} layers in RAM" in found.note
        else:
            assert found.options.device == "cpu"
            assert "all in RAM" in found.note
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_layers": 2},
        {"gpu_layers": -1},
        {"device": "cuda:0"},
        {"quantization": "bnb-4bit"},
        {"compile": True},
        {"adapters": {"a": "folder"}},
    ],
)
def test_what_was_decided_stays(changes: Mapping[str, Any]) -> None:
    assert fitted(1 << 20, **changes)[1] is None


def test_layers_are_found_by_the_tensors_names() -> None:
    tensors = {"model.layers.0.a": 3, "model.layers.1.a": 4, "lm_head.weight": 5}
    found = weights_of(tensors, 2, 1.0)
    assert found is not None
    assert ([layer.shared for layer in found.layers], found.output) == ([3, 4], 5)
    assert weights_of({"model.layers.0.a": 3}, 2, 1.0) is None
    assert weights_of({"h.0.a": 3}, 1, 1.0) is None


COPIED = ["llama", "qwen3", "qwen3_moe", "gemma3_text", "deepseek_v3"]


@pytest.mark.parametrize("kind", quick(COPIED, "llama"))
def test_a_model_whose_layers_are_copied_in_turn_computes_the_same(kind: str) -> None:
    """accelerate's hooks, with a CPU in the card's place: weights away lie on `meta` in between."""
    model = model_of(kind, BATCHED[kind])
    pattern = batching_pattern(model)
    assert pattern is not None
    expected = plain(model, [3, 5, 7, 11])
    for layer in model.get_decoder().layers[:2]:
        accelerate.cpu_offload(layer, execution_device=torch.device("cpu"))
    assert model.get_decoder().layers[0].self_attn.o_proj.weight.device.type == "meta"
    assert torch.equal(plain(model, [3, 5, 7, 11]), expected)
    grid = Grid(pattern.layers)
    grid.reshape(rows=1, capacity=16)
    with torch.inference_mode():
        (logits,) = Forward(model, grid, pattern).run(0, [[3, 5, 7, 11]], [0])
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-3)


def test_transformers_takes_the_map(tmp_path: Path) -> None:
    """A real folder, all of the map's places on the CPU."""
    plainly = transformers.AutoModelForCausalLM.from_pretrained(bundled.SAFETENSORS)
    places = dict.fromkeys(device_map(names_of(plainly), 2, CARD), "cpu")
    mapped = transformers.AutoModelForCausalLM.from_pretrained(
        bundled.SAFETENSORS, device_map=places
    )
    tokens = torch.tensor([[1, 2, 3, 4]])
    first, second = (
        model.generate(tokens, max_new_tokens=8, do_sample=False) for model in (plainly, mapped)
    )
    assert torch.equal(first, second)
