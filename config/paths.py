"""The relative paths of a configuration file, made absolute. Whether they exist is not asked."""

from pathlib import Path

import msgspec

from config.models import Engines, engines_of, option_kinds
from config.settings import Config, ModelConfig
from config.shape import Kind, is_path, is_section, list_item, mapping_item, options


def rooted(config: Config, root: Path) -> Config:
    """`config` with its relative paths made absolute, from `root`.

    The models' options must have been checked.
    """
    whole: Config = _rooted(config, type(config), root)
    known = engines_of(type(config))
    models = tuple(_rooted_options(model, known, root) for model in whole.models)
    return msgspec.structs.replace(whole, models=models)


def _rooted_options(model: ModelConfig, known: Engines, root: Path) -> ModelConfig:
    """The same for a model's options, which aren't typed yet."""
    kinds = option_kinds(model, known)
    placed = {name: _rooted(value, kinds[name], root) for name, value in model.options.items()}
    return msgspec.structs.replace(model, options=placed)


def _rooted(value: Kind, kind: Kind, root: Path) -> Kind:
    if is_section(kind):
        below = options(kind).items()
        return msgspec.structs.replace(
            value, **{name: _rooted(getattr(value, name), inner, root) for name, inner in below}
        )
    if (item := list_item(kind)) is not None:
        return tuple(_rooted(part, item, root) for part in value)
    if (item := mapping_item(kind)) is not None:
        return {name: _rooted(part, item, root) for name, part in value.items()}
    return _rooted_text(value, root) if isinstance(value, str) and is_path(kind) else value


def _rooted_text(text: str, root: Path) -> str:
    scheme, colon, _ = text.partition(":")
    if colon and len(scheme) > 1 and scheme.isalpha():  # https://…, hf:owner/name
        return text
    return str(root / Path(text).expanduser())
