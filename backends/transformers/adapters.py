"""LoRA adapters on a model, by peft itself.

transformers has a way of its own to load them, which starts some of their tensors anew at random
(DoRA's magnitudes) and says so in a log alone. peft puts its layers into the model it is given, so
that the model stays the same object.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import transformers

from backends.catalog import command
from backends.errors import BackendMissing, LoadFailed
from backends.transformers.memory import ran_out

FILES = ("adapter_config.json", "adapter_model.safetensors")  # pickled ones could run code


def add(model: Any, adapters: Mapping[str, str]) -> None:
    """All of them (name to folder), active together.

    Raises BackendMissing without peft, LoadFailed with the adapter's name.
    """
    if not adapters:
        return
    if not transformers.utils.is_peft_available():
        raise BackendMissing(f"LoRA adapters need peft: {command('adapters')}")
    around = None
    slots = [f"adapter-{number}" for number in range(len(adapters))]
    for slot, (name, given) in zip(slots, adapters.items(), strict=True):
        folder = Path(given).expanduser()
        with _named(name):
            _check_folder(folder)
            around = _add(model, around, slot, folder)
    assert around is not None
    around.base_model.set_adapter(slots, inference_mode=True)


def _check_folder(folder: Path) -> None:
    """Raises LoadFailed: peft would request a missing folder from the hub."""
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise LoadFailed(f"{folder} lacks {' and '.join(missing)}")


def _add(model: Any, around: Any, slot: str, folder: Path) -> Any:
    """`around` is what peft keeps of the model, None before the first adapter; returns it.

    `slot` is the adapter's name within peft, which takes no dots.
    """
    import peft  # noqa: PLC0415 - takes a second, and few want it

    if around is None:
        config = peft.PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning:
            raise LoadFailed("it changes the prompt, not the model; LoRA and its like can be used")
        config.inference_mode = True
        around = peft.PeftModel(model, config, slot, autocast_adapter_dtype=False)
    found = around.load_adapter(
        str(folder), slot, torch_device=str(model.device), autocast_adapter_dtype=False
    )
    missing = (key for key in found.missing_keys if slot in key.split("."))
    if odd := next(missing, None) or next(iter(found.unexpected_keys), None):
        raise LoadFailed(f"it was made for another model: {odd} doesn't fit this one")
    return around


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Every failure names the adapter at fault, except out of memory."""
    try:
        yield
    except Exception as error:
        if ran_out(error):
            raise
        words = shorten(str(error), 300, placeholder=" …")  # peft lists every layer
        raise LoadFailed(f"adapter {name!r} can't be used: {words}") from error
