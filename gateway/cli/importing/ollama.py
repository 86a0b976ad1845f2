"""Ollama's store as models of this program: its blobs by their manifests' names.

A manifest lies at `manifests/HOST/OWNER/NAME/TAG` below the store's `models` folder: JSON with
`layers`, each with a `mediaType` and a `digest`; what the digest names is `blobs/sha256-…`.
Parameters are JSON, a template is Go's, which only Ollama can read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from backends.contract.catalog import BACKENDS
from config.errors import Source
from gateway.cli.importing.imported import SAMPLING, Data, Imported, given

Layers: TypeAlias = Mapping[str, tuple[Path, ...]]  # by the last word of their media type

OWN = "registry.ollama.ai/library/"  # is left out of names
OPTIONS = {"num_ctx": "context_length", "num_batch": "batch_size", "num_gpu": "gpu_layers"}
NOTES = {
    "template": "its Go template isn't read: the chat template in its GGUF file counts",
    "messages": "its first messages aren't taken over",
}


class _Layer(msgspec.Struct):
    media_type: str = msgspec.field(name="mediaType")
    digest: str


class _Manifest(msgspec.Struct):
    layers: list[_Layer]


def imported(store: Path) -> Imported:
    """The store at `store`: `~/.ollama`, or its folder `models`. Raises ConfigError."""
    root = store / "models" if (store / "models").is_dir() else store
    found, notes = [], []
    for manifest in sorted((root / "manifests").rglob("*")):
        if manifest.is_file() and not manifest.name.startswith("."):
            model, said = _model(root, manifest)
            notes += said
            found += [] if model is None else [model]
    if not found:
        raise Source(str(store)).error("$", "not Ollama's store: it has no manifests of models")
    return Imported({"models": found}, tuple(notes))


def _model(root: Path, manifest: Path) -> tuple[Data | None, list[str]]:
    *folder, tag = manifest.relative_to(root / "manifests").parts
    name = f"{'/'.join(folder)}:{tag}".removeprefix(OWN)
    try:
        layers = _layers(root, manifest)
        if "model" not in layers:
            return None, [f"{name}: it has no file of a model, or that was removed"]
        values, unknown = _parameters(layers)
        entry: Data = {"name": name, "path": str(layers["model"][0]), "backend": _reader()}
        entry |= _parts(layers, values)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        return None, [f"{name}: its files can't be read: {error}"]
    if tag == "latest":
        entry["aliases"] = [name.removesuffix(":latest")]
    notes = [note for layer, note in NOTES.items() if layer in layers]
    notes += [f"{parameter} has no equal" for parameter in unknown]
    return entry, [f"{name}: {note}" for note in notes]


def _parts(layers: Layers, values: Mapping[str, Data]) -> Data:
    """What `layers` and `values` say besides the model's file."""
    options = dict(values["options"])
    if "projector" in layers:
        options["mmproj"] = str(layers["projector"][0])
    if "adapter" in layers:
        named = enumerate(layers["adapter"])
        options["adapters"] = {f"adapter{number}": str(file) for number, file in named}
    texts = [file.read_text(encoding="utf-8") for file in layers.get("system", ())]
    return given(options=options, sampling=values["sampling"], system="\n".join(texts))


def _reader() -> str:
    # Blobs have no suffix by which an engine would know them.
    suffixes = ((one.name, one.files.SUFFIX) for one in BACKENDS.values())
    return next(name for name, suffix in suffixes if suffix and suffix.search("a.gguf"))


def _layers(root: Path, manifest: Path) -> Layers:
    found: dict[str, tuple[Path, ...]] = {}
    for layer in msgspec.json.decode(manifest.read_bytes(), type=_Manifest).layers:
        blob = root / "blobs" / layer.digest.replace(":", "-")
        if blob.parent == root / "blobs" and blob.is_file():
            kind = layer.media_type.rpartition(".")[2]
            found[kind] = (*found.get(kind, ()), blob)
    return found


def _parameters(layers: Layers) -> tuple[Mapping[str, Data], list[str]]:
    """Options and sampling, and the names that are neither. Texts to stop at belong to a template:
    the one that counts has its own.
    """
    found: dict[str, Data] = {"options": {}, "sampling": {}}
    unknown = []
    for file in layers.get("params", ()):
        for name, value in msgspec.json.decode(file.read_bytes(), type=Data).items():
            if name in OPTIONS:
                found["options"][OPTIONS[name]] = value
            elif name in SAMPLING:
                found["sampling"][SAMPLING[name]] = value
            elif name != "stop":
                unknown.append(name)
    return found, unknown
