"""Changes of models that may be in memory, and how they are put in force: another configuration,
other options of one of them, files that were overwritten.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from gateway.registry.entry import Known, ModelEntry
from gateway.registry.library import ModelLibrary
from gateway.registry.orders import Orders, RegistryParts
from gateway.terms.errors import ModelUnavailable

log = structlog.get_logger(__name__)


class ModelChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Names of models, in the order of their lists."""

    added: tuple[str, ...]
    removed: tuple[str, ...]  # leave as their last answer ends
    reloaded: tuple[str, ...]  # other files or options: those in memory are loaded anew
    updated: tuple[str, ...]  # stay in memory: the next request has them as they are now


class PreparedModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a configuration that was checked, to be put in force."""

    library: ModelLibrary
    changes: ModelChanges


def prepared(library: ModelLibrary, follower: ModelLibrary) -> PreparedModels:
    """How each model changes where `follower` takes the library's place."""
    before, after = library.known(), follower.known()
    both = [name for name in before if name in after and before[name] != after[name]]
    reloaded = [name for name in both if not _is_loaded_alike(before[name], after[name])]
    changes = ModelChanges(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        reloaded=tuple(reloaded),
        updated=tuple(name for name in both if name not in reloaded),
    )
    return PreparedModels(library=follower, changes=changes)


def _is_loaded_alike(before: Known, after: Known) -> bool:
    """Whether a load would give the same."""
    if not (isinstance(before, ModelEntry) and isinstance(after, ModelEntry)):
        return False
    if after.of is not None:  # nothing is loaded under its name
        return before.of is not None
    then, now = before.files.elsewhere, after.files.elsewhere
    if then is not None and now is not None:  # nothing is in memory: its next request plans anew
        return (then.upstream, then.model) == (now.upstream, now.model)
    return all(getattr(before, it) == getattr(after, it) for it in ("files", "options", "turn"))


class Reconfiguration(RegistryParts, kw_only=True):
    """Puts changes in force in all parts that know a model, between two steps of the event loop."""

    orders: Orders

    def apply(self, prepared: PreparedModels, known: Mapping[str, Known]) -> None:
        """From now on these are the models; `known`: those there were."""
        self.names.library = prepared.library
        for name in prepared.changes.removed:
            self._remove(name)
        for entry in prepared.library.entries():
            if entry.name in known and known[entry.name] != entry:
                self._describe(entry, replaced=entry.name in prepared.changes.reloaded)

    def change_options(self, entry: ModelEntry, options: Mapping[str, Any]) -> None:
        """A model that is loaded with other options is unloaded and loaded again. Raises
        ModelUnavailable where it would not fit with them.
        """
        plan = self.planner.proposed(entry, options)
        if (obstacle := self.scheduler.room.obstacle(entry.name, plan.needs)) is not None:
            hint = self.planner.hint(entry.name, plan)
            raise ModelUnavailable(obstacle + hint, param="model")
        self.planner.adopt(plan)
        there = self.moves.residents.get(entry.name) or self.moves.loading.get(entry.name)
        if there is not None and there.plan.options != plan.options:
            self.load_again(entry.name)

    async def reread(self, entry: ModelEntry) -> ModelEntry:
        """A model whose files were changed since it was loaded is unloaded as its last lease ends,
        and loaded as they are now: what is mapped into memory may be gone, or another file's.
        """
        if not await self._is_outdated(entry.name):
            return entry  # it leaves already
        await self.names.scanned()  # its header may say something else now
        if await self._is_outdated(entry.name):
            text = "the files of a loaded model were changed; it is loaded again"
            log.warning(text, model=entry.name)
            self.load_again(entry.name)
        return self.names.resolve(entry.name)

    async def _is_outdated(self, name: str) -> bool:
        """It takes requests, though its files were written over."""
        return await self.moves.are_files_changed(name) and self.scheduler.phase(name) == "loaded"

    def load_again(self, name: str) -> None:
        """It is unloaded as its last lease ends, and loaded for those in line, who stay."""
        orders = self.scheduler.unload_asked(self.clock.now(), name, again=True)
        self.orders.carry_out(orders, name)

    def _remove(self, name: str) -> None:
        self.names.present.pop(name, None)
        self.planner.forget_options(name)
        self.orders.carry_out(self.scheduler.removed(self.clock.now(), name), name)

    def _describe(self, entry: ModelEntry, *, replaced: bool) -> None:
        name = entry.name
        if replaced:
            self.planner.forget_options(name)
            self.orders.carry_out(self.scheduler.replaced(self.clock.now(), name), name)
        else:
            self.moves.describe(entry)
            if name in self.names.present:
                self.names.present[name] = entry
        if self.scheduler.residency(name):
            self.orders.describe([entry])
        else:
            self.orders.carry_out((), name)  # it is listed otherwise
