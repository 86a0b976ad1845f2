"""What each model is to be loaded with, and what it will take. Moves nothing."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from backends.catalog import MemoryNeed
from backends.errors import BackendError
from config.check import convert
from config.engines import EngineOptions
from config.errors import ConfigError, Source
from gateway.errors import InvalidRequest, ModelUnavailable
from gateway.registry.history import History
from gateway.registry.library import ModelEntry
from gateway.registry.loader import Loader
from gateway.registry.memory import corrected, placement, shares
from gateway.registry.orders import Bytes, Model

SLOTS_PER_STREAM = 2  # leases per job that an engine computes at once: the next one stands ready
READING_SPEED = 1e9  # bytes a second; a guess at a load's time before the first was measured


class Cargo(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it is to be loaded."""

    entry: ModelEntry
    options: EngineOptions  # the entry's own, or what an administrator asked for
    need: MemoryNeed
    measured: bool  # `need` is what an earlier load took, not an estimate
    devices: Bytes  # `need` per device
    load_seconds: float  # of the last load, or a guess


class Manifest:
    """`devices` are those this machine has."""

    def __init__(self, loader: Loader, history: History, devices: Collection[str]) -> None:
        self._loader = loader
        self._history = history
        self._devices = devices
        self._options: dict[str, EngineOptions] = {}
        self._cargo: dict[str, Cargo] = {}
        self._entries: dict[str, ModelEntry] = {}

    def cargo(self, entry: ModelEntry) -> Cargo:
        """What a load of `entry` takes now. Raises ModelUnavailable where it can't be estimated."""
        options = self.options(entry)
        known = self._cargo.get(entry.name)
        if known is None or known.entry is not entry or known.options != options:
            known = self._cargo[entry.name] = self._estimated(entry, options)
        return known

    def known(self, entry: ModelEntry) -> Cargo | None:
        """As `cargo`, but None where it can't be estimated."""
        try:
            return self.cargo(entry)
        except ModelUnavailable:
            return None

    def planned(self, name: str) -> Cargo:
        """The cargo of the entry that was asked for last under this name."""
        return self.cargo(self._entries[name])

    def model(self, entry: ModelEntry) -> Model:
        """What the scheduler is to know of `entry`, which is asked for. Raises as `cargo`."""
        cargo = self.cargo(entry)
        self._entries[entry.name] = entry
        return Model(
            name=entry.name,
            need=cargo.devices,
            load_seconds=cargo.load_seconds,
            slots=cargo.options.max_concurrent * SLOTS_PER_STREAM,
            pinned=entry.pinned,
            ttl=entry.ttl,
        )

    def options(self, entry: ModelEntry) -> EngineOptions:
        """The options in force."""
        return self._options.get(entry.name, entry.options)

    def change_options(self, entry: ModelEntry, changes: Mapping[str, Any]) -> None:
        """Put `changes` over the entry's options. Raises InvalidRequest for the one at fault."""
        kind = type(entry.options)
        try:
            new = convert(dict(changes), kind, Source(entry.name), path="$.options")
        except ConfigError as error:
            field = error.path.removeprefix("$.options").lstrip(".")
            text = f"{entry.files.backend}: {field}: {error.problem}"
            raise InvalidRequest(text, param=field or "options") from None
        values = {name: getattr(new, name) for name in changes}
        self._options[entry.name] = msgspec.structs.replace(entry.options, **values)

    def forget_options(self, name: str) -> None:
        """Back to the entry's own."""
        self._options.pop(name, None)

    def held(self, cargo: Cargo, measured: int | None) -> Bytes:
        """What a model just loaded is known to hold; the next `cargo` is made from it, too."""
        self._cargo.pop(cargo.entry.name, None)
        return self._spread(cargo.options, corrected(cargo.need, measured))

    def _estimated(self, entry: ModelEntry, options: EngineOptions) -> Cargo:
        try:
            guess = self._loader.estimate(entry.files, options)
        except (BackendError, OSError, ValueError) as error:
            raise ModelUnavailable(f"{entry.name}: {error}", param="model") from error
        last = self._history.get(entry.files, options)
        size = last.size if last else None
        need = corrected(guess, size)
        return Cargo(
            entry=entry,
            options=options,
            need=need,
            measured=size is not None,
            devices=self._spread(options, need),
            load_seconds=last.load_seconds if last else entry.files.size_bytes / READING_SPEED,
        )

    def _spread(self, options: EngineOptions, need: MemoryNeed) -> Bytes:
        return shares(need, placement(options, self._devices))
