"""Models that a configuration or the command line names by their place on a hub:
`hf:owner/name`, and of a repository of GGUF files one quantization: `hf:owner/name:Q4_K_M`.
"""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from backends.catalog import BACKENDS
from gateway.errors import InvalidRequest
from gateway.hub.order import Order
from gateway.registry.library import HUB_SCHEME

SCHEME = HUB_SCHEME
_FORM = re.compile(r"hf:(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(:(?P<files>[\w.-]+))?")

Usable = Callable[[Path], bool]


class HubModel(msgspec.Struct, frozen=True):
    """`files`: a part of the names of the files that are wanted; None: all of them."""

    owner: str
    name: str
    files: str | None = None

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def folder(self) -> str:
        """Where a download of it lies, under the folder for downloads."""
        return self.name if self.files is None else f"{self.name}-{self.files}"

    @property
    def order(self) -> Order:
        if self.files is None:
            return Order(repository=self.repository, folder=self.folder)
        include = (f"*{self.files}*", *BACKENDS.companions)
        return Order(repository=self.repository, folder=self.folder, include=include)


def hub_model(text: str) -> HubModel:
    """What `text` names. Raises InvalidRequest where it has another form."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text!r} is not of the form hf:owner/name or hf:owner/name:part")
    return HubModel(match["owner"], match["name"], match["files"])


def snapshot(cache: Path, model: HubModel) -> Path:
    """Where the hub's own tools put the main branch, if they did (huggingface_hub's cache layout:
    `models--owner--name/refs/main` holds the commit, `snapshots/<commit>` its files).
    """
    root = cache / f"models--{model.owner}--{model.name}"
    try:
        commit = (root / "refs" / "main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = "none"
    return root / "snapshots" / commit
