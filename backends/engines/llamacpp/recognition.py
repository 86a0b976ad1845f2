"""GGUF on disk: recognising it, and what its header says. Imports no engine.

A file carries sampling defaults: what its model's `generation_config.json` said when it was
converted (llama.cpp's `gguf-py/gguf/constants.py`, `general.sampling.*`). The order of samplers
that it may name is not read: it is the same on every engine here.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from backends.contract import bounds
from backends.contract.catalog import ModelFiles
from backends.contract.errors import HeaderCutOff, LoadFailed
from backends.contract.samplers import NEUTRAL, Sampling
from backends.engines import model_folder
from backends.engines.llamacpp import cpu_layouts, memory, projectors
from backends.engines.llamacpp.cpu_layouts import CpuLayouts
from backends.engines.llamacpp.gguf import (
    EMBEDDING,
    MAGIC,
    POSITIONS,
    BrokenFile,
    CutOff,
    Header,
    Tensor,
    read_header,
    rows,
)
from backends.engines.llamacpp.libraries import FIRST_OF_IK
from backends.machine import ik

GENERAL = "general."  # the keys of what makers write of a model (llama.cpp, docs of GGUF)
MOST_DESCRIPTIONS, LONGEST_DESCRIPTION = 32, 300  # of them, and characters of each
# Its names behind `general.sampling.`, and ours.
NAMES: Mapping[str, str] = {
    "temp": "temperature",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "penalty_range",
    "mirostat": "mirostat_mode",
    **{name: name for name in ("top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold")},
    **{name: name for name in ("mirostat_tau", "mirostat_eta")},
}


def generation_defaults(header: Header, path: Path) -> Sampling:
    """What the header names, in no odd way, or else the file beside it."""
    named = {name: header.metadata.get(f"general.sampling.{name}") for name in NAMES}
    carried = {
        NAMES[name]: type(getattr(NEUTRAL, NAMES[name]))(value)
        for name, value in named.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    if carried:
        return bounds.recommended(carried)
    return model_folder.generation_defaults(path.parent)


PART = re.compile(r"-(\d{5})-of-(\d{5})(\.gguf)$", re.IGNORECASE)  # as gguf-split names them
SUFFIX = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
FOREIGN = "of a quantization that ik_llama.cpp alone reads (IQ4_KS, Q4_K_R4, …)"


def recognise(path: Path, layouts: CpuLayouts | None = None) -> ModelFiles | None:
    """A `.gguf` file (the first part stands for a split one), or a folder that holds exactly one
    model. `layouts`: None: those of this machine.

    Raises LoadFailed for a file that says it is GGUF and is broken.
    """
    if path.is_dir():
        models = _models(path)
        return recognise(models[0], layouts) if len(models) == 1 else None
    if not path.is_file() or not _is_ours(path) or not _is_first(path):
        return None
    try:
        return _describe(path, read_header(path), layouts or cpu_layouts.of_this_machine())
    except (BrokenFile, ValueError) as error:  # ValueError: an empty file can't be mapped
        kind = HeaderCutOff if isinstance(error, CutOff) else LoadFailed
        raise kind(f"{path} is not a usable GGUF file: {error}") from error


def _models(folder: Path) -> list[Path]:
    """The first files of the models in the folder, by their names."""
    files = [file for file in sorted(folder.iterdir()) if SUFFIX.search(file.name)]
    files = [file for file in files if _is_ours(file) and _is_first(file)]
    return [file for file in files if projectors.MARK not in file.name.lower()]


def _is_ours(path: Path) -> bool:
    """By its name, or where that has no suffix, as a blob's in a cache, by its first bytes. What
    macOS puts beside a file on a foreign disk has the file's name behind `._`.
    """
    if path.name.startswith("._") or SUFFIX.search(path.name):
        return not path.name.startswith("._")
    if path.suffix[1:].isalpha():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _is_first(path: Path) -> bool:
    part = PART.search(path.name)
    return part is None or int(part[1]) == 1


def parts(path: Path) -> tuple[Path, ...]:
    """All files of the model whose first file is `path`."""
    part = PART.search(path.name)
    if part is None:
        return (path,)
    stem = path.name[: part.start()]
    count = int(part[2])
    return tuple(
        path.with_name(f"{stem}-{n:05}-of-{count:05}{part[3]}") for n in range(1, count + 1)
    )


def _describe(path: Path, header: Header, layouts: CpuLayouts) -> ModelFiles | None:
    architecture = header.text("general.architecture")
    if architecture in ("", "clip") or header.text("general.type", "model") != "model":
        return None  # a projector, an adapter: part of a model, not one
    files = parts(path)
    if missing := [file.name for file in files if not file.is_file()]:
        raise LoadFailed(f"{path} is split and lacks {', '.join(missing)}")
    headers = [header, *map(read_header, files[1:])]
    tensors = [tensor for part in headers for tensor in part.tensors]
    types = sorted({tensor.kind for tensor in tensors})
    if types and types[-1] >= FIRST_OF_IK and (reason := ik.missing()):
        raise LoadFailed(f"{path.name} is {FOREIGN}: {reason}")
    encodes = architecture in memory.ENCODERS
    graph = memory.Graph(header, architecture, memory.layers_of(tensors))
    kept = graph.kept().values()
    sliding = sum(in_a_window for _, in_a_window, _ in kept)
    projector = projectors.beside(path, lambda: set(_models(path.parent)) <= {path})
    sizes = sum(file.stat().st_size for file in files)
    return ModelFiles(
        path=path,
        backend="llamacpp",
        format="gguf",
        architecture=architecture,
        size_bytes=sizes,
        added_bytes=cpu_layouts.added_bytes(tensors, layouts),
        types=tuple(types),
        repacked=layouts.bears(tensors),
        weights=None if encodes else memory.weights(graph, tensors, sizes),
        layers=header.number(f"{architecture}.block_count"),
        context_length=header.number(f"{architecture}.context_length", 2048),
        cache_bytes_per_token=0 if encodes else sliding + sum(cell for cell, _, _ in kept),
        state_bytes=4 * graph.state(),
        recurrent_layers=len(graph.recurrent()),
        chat_template=header.text("tokenizer.chat_template") or None,
        tool_template=header.text("tokenizer.chat_template.tool_use") or None,
        modalities=("text", "image") if projector else ("text",),
        parts=files,
        projector=projector,
        beside=(path.parent / model_folder.GENERATION_CONFIG,),
        generation_defaults=generation_defaults(header, path),
        vocab_size=rows(tensors, EMBEDDING),
        heads=header.number(f"{architecture}.attention.head_count"),
        activation_bytes=4 * max(graph.activations()),
        attention_bytes=4 * graph.activations()[1],
        window=graph.window() if sliding else 0,
        latent=header.number(f"{architecture}.attention.kv_lora_rank") > 0,
        sliding_bytes_per_token=0 if encodes else sliding,
        positions=rows(tensors, POSITIONS),
        task=memory.task(header),
        described={**described(header), **_sizes(header, tensors)},
    )


# llama.cpp's names of what most tensors of a file are, by `general.file_type`.
FILE_TYPES = (
    "F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M",
    "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S",
    "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M",
    "BF16", "", "", "", "TQ1_0", "TQ2_0", "MXFP4",
)  # fmt: skip


def _sizes(header: Header, tensors: Iterable[Tensor]) -> Mapping[str, str]:
    """As Ollama writes them."""
    count = sum(math.prod(tensor.shape) for tensor in tensors)
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"
    kind = dict(enumerate(FILE_TYPES)).get(header.number("general.file_type", -1), "")
    return {"parameter_size": size, "quantization_level": kind}


def described(header: Header) -> Mapping[str, str]:
    """What the makers wrote of it, without `general.`."""
    texts = {
        key.removeprefix(GENERAL): value[:LONGEST_DESCRIPTION]
        for key, value in header.metadata.items()
        if key.startswith(GENERAL) and isinstance(value, str) and value
    }
    return dict(itertools.islice(texts.items(), MOST_DESCRIPTIONS))
