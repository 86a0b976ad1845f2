"""Vectors of a model that writes are its last states, pooled as the options say."""

import pytest

pytest.importorskip("backends.engines.llamacpp.library")
pytest.importorskip("transformers")

import torch
from transformers import AutoModel

import bundled
from backends.contract import catalog
from backends.contract.encoder import values
from config.engines import LlamaCppOptions

pytestmark = pytest.mark.anyio

TEXT = "What is 3 + 4? The engine turns."


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
async def test_they_are_those_of_the_same_weights_in_transformers(pooling: str) -> None:
    options = LlamaCppOptions(pooling=pooling, gpu_layers=0, context_length=256)  # type: ignore[arg-type]
    backend = catalog.BACKENDS["llamacpp"]
    recognised = catalog.recognise(bundled.GGUF)
    assert recognised is not None
    files = backend.files.fitted(recognised, options)
    assert files.task == "embed"
    container = await backend.container.load_encoder(files, options, lambda _: None)
    read = container.read(TEXT)
    [vector] = await container.encode([read])
    await container.aclose()
    model = AutoModel.from_pretrained(bundled.SAFETENSORS, dtype=torch.float32)
    with torch.inference_mode():
        states = model(torch.tensor([read.tokens])).last_hidden_state[0]
    expected = {"mean": states.mean(0), "last": states[-1], "cls": states[0]}[pooling]
    found = torch.tensor(values(vector))
    assert torch.dot(found, expected / expected.norm()).item() == pytest.approx(1, abs=1e-3)
