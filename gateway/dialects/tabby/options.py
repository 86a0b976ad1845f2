"""TabbyAPI's load options as the options of our engines. An option that an engine lacks is named.

A name that TabbyAPI doesn't have passes through: it may be one of ours, and the load refuses it if
it isn't. Options that run code or name files are the configuration's alone.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from gateway.dialects.tabby.request import LOAD_OPTIONS
from gateway.errors import InvalidRequest

Options: TypeAlias = dict[str, Any]
Translation: TypeAlias = Callable[[Any], Mapping[str, Any]]

_ANY: Mapping[str, Translation] = {
    "max_seq_len": lambda value: {"context_length": value},
    "max_batch_size": lambda value: {"max_concurrent": value},
}

# What frontends send in every body, and what it then means: nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "max_seq_len": (-1,),
    "rope_scale": (1.0,),
    "rope_alpha": (1.0, "auto"),
    "gpu_split": ([],),
    "gpu_split_auto": (True, False),  # a split itself says that it is not automatic
    "autosplit_reserve": ([],),
    "cache_mode": ("FP16", "fp16"),
    "tensor_parallel": (False,),
    "tensor_parallel_backend": ("native",),
    "output_chunking": (True, False),
    "skip_queue": (True, False),
    "fasttensors": (True, False),
}


def engine_options(
    asked: Mapping[str, Any],
    backend: str,
    own: Mapping[str, Translation],
    configured_only: Collection[str],
) -> Options:
    """The options of `backend` that `asked` means. `own`: how it translates TabbyAPI's; what is
    `configured_only` no request may set.

    Raises InvalidRequest, which names the option as the client wrote it.
    """
    known = {**_ANY, **own}
    automatic = asked.get("gpu_split_auto") is True  # then a split is only a leftover of the form
    options: Options = {}
    for name, value in asked.items():
        if value in _NEUTRAL.get(name, ()) or (automatic and name == "gpu_split"):
            continue
        if name in configured_only:
            text = f"{name} runs code or names files, so it is set in the configuration alone"
            raise InvalidRequest(text, param=name)
        if name in known:
            options |= _translated(known[name], name, value)
        elif name in LOAD_OPTIONS:
            raise InvalidRequest(f"{backend} has no option like {name}", param=name)
        else:
            options[name] = value
    return options


def _translated(translation: Translation, name: str, value: Any) -> Mapping[str, Any]:
    try:
        return translation(value)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from None
