"""Sequences in llama.cpp's cache: where a job starts and what it finds there, what of it is taken
back, put into the store and put back, and what makes room. Only the engine's thread calls it.
"""

from collections.abc import Collection
from functools import partial

import msgspec

from backends.contract.beginnings import Coming, Found, Pace
from backends.contract.errors import OutOfMemory
from backends.contract.protocol import ModelInfo
from backends.engines.cells import COPIED, FEW, WORTHWHILE, Placement, Slot, Snapshot, place
from backends.engines.draft_model import ModelDrafter
from backends.engines.llamacpp.batch import LlamaJob
from backends.engines.llamacpp.kv_cache import KvCache
from backends.engines.llamacpp.loading import LlamaModel
from backends.engines.llamacpp.pieces import PART, WHOLE, Filling
from backends.engines.prefill import BLOCK
from backends.engines.sequences import Restoring, Sequences
from backends.engines.speculation import Speculation

# Bytes of idle cells, of the weights', beside which conversations stay in a pool: a token of others
# takes 3 % longer then (SmolLM2 on a CPU, where a masked cell costs a sixth of reading its bytes).
IDLE = 0.15
GROWTH = 64  # cells kept free for each answer in a shared pool before another one starts


class LlamaSequences(Sequences[LlamaJob]):
    """Those of all jobs of the model `loaded`."""

    def __init__(self, loaded: LlamaModel, speculation: Speculation | None, pace: Pace) -> None:
        # A pool remembers more sequences than run: the last is the stage of what is put back.
        self._layout = layout = loaded.layout
        staged = not layout.split and layout.slots > loaded.info.max_concurrent
        slots = [Slot(index) for index in range(layout.slots - staged)]
        stage = len(slots) if staged else None
        self._cache = KvCache(loaded.context, split=layout.split, stage=stage, piece=pace.piece)
        super().__init__(
            slots,
            loaded.snapshot_bytes,
            loaded.info.context_length,
            speculation or _speculation(loaded, self._cache),
            pace,
        )
        self._loaded = loaded
        self._adapters: tuple[float, ...] = ()  # how strongly each counts in the coming passes
        moved = self._cache.copied(layout.cells // layout.slots) * loaded.cell_bytes
        self._spare = FEW + moved // COPIED
        self._together: frozenset[int] = frozenset()  # whose last pass was without prompts
        self.takes_snapshots = not self._cache.goes_anywhere and loaded.snapshot_bytes > 0
        self.info: ModelInfo = msgspec.structs.replace(
            loaded.info,
            heeds_marks=self.takes_snapshots,
            drafts=self._cache.goes_back > 0 and not self._speculation.is_off,
        )

    def _start(self, running: LlamaJob) -> bool:
        """Give the sequence a slot and what is already computed; False: better wait, see below."""
        if not self._fits(running):
            return False
        placement = self._place_of(running)
        if placement is None:
            return False
        slot, source = self._slots[placement.slot], self._slots[placement.source]
        started = (other for other in self._running.values() if other.slot is not None)
        found = self._sought(running, placement, started, marks=self.takes_snapshots)
        if isinstance(found, Coming):
            return False
        self._put_away({slot.index, source.index})
        if found is not None:
            self._restore(slot, found, running, placement.parted)
            return True
        keep = self._take_over(slot, source, running, placement.keep)
        self._begin(running, slot, keep, placement.parted)
        return True

    def _begin(self, running: LlamaJob, slot: Slot, keep: int, parted: int) -> None:
        super()._begin(running, slot, keep, parted)
        slot.adapters, slot.named = self._adapters, running.job.slot is not None
        if running.job.reports_progress:
            self._read += running.progress()

    def _place_of(self, running: LlamaJob) -> Placement | None:
        """None: all are busy, or the one that the job names is. There it finds that slot's cells
        alone.
        """
        for slot in self._slots:
            slot.cuts_from = self._cache.cuts_from(slot.index, len(slot.tokens))
        named = running.job.slot
        slots = self._slots if named is None else [self._slots[named]]
        if all(slot.busy for slot in slots):
            return None
        return place(
            running.known,
            slots,
            compact=self._layout.split,
            spare=self._spare,
            owner=running.job.cached_for,
            adapters=self._adapters,
        )

    def _fits(self, running: LlamaJob) -> bool:
        """A shared pool must hold it beside the running jobs, with room for their next ones."""
        started = [other for other in self._running.values() if other.slot is not None]
        if self._layout.split or not started:
            return True
        taken = sum(len(other.tokens) + GROWTH for other in started)
        return taken + len(running.tokens) + GROWTH <= self._layout.cells

    def _longer(self, running: LlamaJob, keep: int) -> Found | Coming | None:
        """A job that names its slot finds what is there alone."""
        if running.job.slot is not None or self._adapters != self.info.adapter_scales():
            return None
        return self.kept.longest(running.job.cached_for, running.known, keep)

    def _put_away(self, staying: Collection[int]) -> None:
        """Idle conversations of a pool, the least useful first, into the store: each token of the
        others looks at their cells, too. Before a prompt gets its cells, so that these are the
        first ones: no token looks behind the last cell that is used.
        """
        idle = [one for one in self._slots if one.tokens and not one.busy]
        cells = sum(len(one.tokens) for one in idle)
        for slot in sorted(idle, key=lambda slot: slot.used):
            if self._layout.split or cells * self._loaded.cell_bytes <= IDLE * self.info.size_bytes:
                return
            if slot.index not in staying and slot.owner is not None and not slot.named:
                nearly = len(slot.tokens) - 2 * BLOCK
                if self._take_out(slot, 0) or self.kept.longest(slot.owner, slot.tokens, nearly):
                    cells -= len(slot.tokens)
                    self._empty(slot)

    def _take_out(self, slot: Slot, keep: int) -> bool:
        cells = len(slot.tokens)
        if cells - keep < WORTHWHILE or self._is_elsewhere(slot):
            return True
        if slot.owner is None or slot.adapters != self.info.adapter_scales():
            return False  # the store has what the model is loaded with alone
        return self._put_in_store(
            slot,
            lost=cells - keep,
            size=self._cache.size(slot.index, WHOLE) + sum(one.size for one in slot.snapshots),
            cuts_from=self._cache.cuts_from(slot.index, cells),
            whole=partial(self._cache.stage.take, slot.index),
            part=lambda state: state,
        )

    def _is_elsewhere(self, slot: Slot) -> bool:
        """Another slot begins with the same, and can be gone on from there."""
        cells = len(slot.tokens)
        for other in self._slots:
            if other is slot or (other.owner, other.adapters) != (slot.owner, slot.adapters):
                continue
            if other.tokens[:cells] != slot.tokens:
                continue
            other.cuts_from = self._cache.cuts_from(other.index, len(other.tokens))
            alike = len(other.tokens) == cells
            if other.index < slot.index if alike else other.start(cells) > cells - WORTHWHILE:
                return True
        return False

    def _restore(self, slot: Slot, found: Found, running: LlamaJob, parted: int) -> None:
        """Begin to put a beginning back into `slot`, in place of what it holds."""
        self._empty(slot)
        end = found.start - running.lag_at(found.start)
        filling = self._cache.stage.fill(slot.index, found.taken.whole, end)
        slot.busy, running.slot = True, slot
        running.restoring = Restoring(found, filling, parted)

    def _yields(self, slot: Slot) -> bool:
        return not self._layout.split and self._empty_idle(besides=slot)

    def _adopt(self, running: LlamaJob, slot: Slot) -> int:
        restoring = running.restoring
        assert restoring is not None
        assert isinstance(restoring.filling, Filling)
        if not restoring.filling.is_right:
            return 0
        found = restoring.found
        slot.tokens = list(found.taken.tokens)
        snapshots = [
            Snapshot(cells, state, state.nbytes)
            for cells, state in found.taken.parts
            if cells <= found.start
        ]
        self._snapshots.adopt(slot, snapshots)
        return self._kept(slot, running, found.start)

    def _take_over(self, slot: Slot, source: Slot, running: LlamaJob, keep: int) -> int:
        """Leave no more than the first `keep` cells of `running` in `slot`; returns how many could
        really be kept.
        """
        copied = slot is not source and keep > 0
        if copied:
            slot.copy(source)
            if not self._cache.copy(source.index, slot.index):
                slot.shorten(0)
        return self._kept(slot, running, min(keep, len(slot.tokens)), copied=copied)

    def _kept(self, slot: Slot, running: LlamaJob, keep: int, *, copied: bool = False) -> int:
        """As `_take_over`, of the cells in `slot` itself."""
        keep = running.whole(keep)
        if self._cache.cut(slot.index, keep - running.lag_at(keep)):
            if copied and not self._cache.detach(slot.index):
                keep = 0
        else:
            keep = self._put_back(slot, running, keep)
        slot.shorten(keep)
        return keep

    def _put_back(self, slot: Slot, running: LlamaJob, cells: int) -> int:
        """Where no more than so many cells were there; returns how many."""
        snapshot = slot.snapshot(cells)
        if snapshot is None:
            self._cache.forget(slot.index)
            return 0
        position = snapshot.cells - running.lag_at(snapshot.cells)
        done = self._cache.put_back(slot.index, snapshot.state, position)
        return snapshot.cells if done else 0

    def _take_back(self, running: LlamaJob) -> None:
        """What was drafted and isn't fed; its next token may still be drawn."""
        if running.drafted:
            running.drafted.clear()
            assert running.slot is not None
            if not self._cache.turn_back(running.slot.index, running.position):
                self._go_back(running, running.fed)

    def _go_back(self, running: LlamaJob, keep: int) -> None:
        """Of its cells no more than the first `keep` are left; the others are computed again."""
        assert running.slot is not None
        self._take_back_all()
        self._together = frozenset()
        running.fed = self._kept(running.slot, running, keep)
        running.lag = running.lag_at(running.fed)

    def _take_back_all(self) -> None:
        """Before a state is written. As long as drafted tokens stand in the cache, cells that a
        window will attend to again without them look free to llama.cpp, and may be overwritten.
        """
        for running in self._running.values():
            self._take_back(running)

    def _feed(self, running: LlamaJob, count: int) -> None:
        """So many more of its cells are computed."""
        if running.feed(count) and self.takes_snapshots and not running.drafted:
            slot = running.slot
            assert slot is not None
            size = self._cache.size(slot.index, PART)
            state = partial(self._cache.read, slot.index, PART)
            self._snapshots.take(slot, running.prompt_tokens, size, state)

    def _make_room(self) -> None:
        """Forget the least recently used idle slot; else the youngest job's cells: it is computed
        again later.
        """
        if self._empty_idle():
            return
        started = [running for running in self._running.values() if running.slot is not None]
        if len(started) < 2:
            raise OutOfMemory("the KV cache is too small for this request")
        self._start_over(started[-1])

    def _empty_idle(self, besides: Slot | None = None) -> bool:
        """Forget the least recently used idle slot. False: there is none."""
        idle = [one for one in self._slots if one is not besides and not one.busy and one.tokens]
        if not idle:
            return False
        least = min(idle, key=lambda one: one.used)
        self._take_out(least, 0)
        self._empty(least)
        return True

    def _start_over(self, running: LlamaJob) -> None:
        """Take its cells away: the sequence is computed again from its beginning."""
        assert running.slot is not None
        slot = running.slot
        self._leave(running)
        self._empty(slot)
        running.fed = 0

    def _empty(self, slot: Slot) -> None:
        self._cache.forget(slot.index)
        slot.shorten(0)


def _speculation(loaded: LlamaModel, cache: KvCache) -> Speculation:
    """A pass over states has as many tokens of each sequence, as one over parts of a cache has."""
    drafter, options = None, loaded.options.speculation
    if loaded.draft_model is not None:
        drafter = ModelDrafter(
            loaded.draft_model,
            loaded.options.draft,
            loaded.vocabulary.size,
            measures=options.mode == "auto",
            most=cache.goes_back,
        )
    even = loaded.layout.split or cache.keeps_states
    return Speculation(options, even=even, drafter=drafter, most=cache.goes_back)
