"""Chat templates that administrators put in place of a model's own, until they take them back."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from backends.protocol import SpecialTokens
from gateway.errors import InvalidRequest, InvalidTemplate
from gateway.paths import listed
from gateway.prompt import ChatTemplate
from gateway.registry import ModelEntry


class Chosen(msgspec.Struct, frozen=True):
    """A template by its name, and its text at the time it was chosen."""

    name: str
    source: str


class Templates:
    """`folder` holds NAME.jinja files; None: there is nothing to choose from."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._chosen: dict[str, Chosen] = {}

    def names(self) -> tuple[str, ...]:
        """What may be chosen now. Looks at the disk."""
        return tuple(self._files())

    def read(self, name: str) -> Chosen:
        """The template called `name`. Reads and tries it; blocks for some milliseconds.

        Raises InvalidRequest for an unknown name and for a template that can't be used.
        """
        param = "prompt_template_name"
        files = self._files()
        if name not in files:
            known = ", ".join(files) or "none"
            raise InvalidRequest(f"There is no template {name!r}; there is: {known}.", param=param)
        try:
            source = files[name].read_text("utf-8")
            ChatTemplate(source, SpecialTokens())
        except (OSError, UnicodeDecodeError, InvalidTemplate) as error:
            raise InvalidRequest(f"{name} can't be used: {error}", param=param) from error
        return Chosen(name, source)

    def switch(self, model: str, chosen: Chosen) -> None:
        """From the next request on `model` talks by `chosen`."""
        self._chosen[model] = chosen

    def unload(self, model: str) -> None:
        """Back to the model's own."""
        self._chosen.pop(model, None)

    def chosen(self, model: str) -> str | None:
        """The name of the template in place of the model's own."""
        found = self._chosen.get(model)
        return found.name if found else None

    def source(self, entry: ModelEntry) -> str | None:
        """The text in place of what the model carries: chosen, else configured."""
        found = self._chosen.get(entry.name)
        return found.source if found else entry.template

    def _files(self) -> Mapping[str, Path]:
        return listed(self._folder, (".jinja",))
