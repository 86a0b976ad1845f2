"""Keeps models together that would take turns too often: each is loaded in a way that takes less of
the cards, when it would have been loaded anyway. Whether that is better, `sharing.py` judges.

Pure: it reads and marks the scheduler's records, and loads nothing.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from config.settings import SwapConfig
from gateway.registry.ledger import MemoryLedger
from gateway.registry.nodes import HERE, node_of
from gateway.registry.patience import WORTH
from gateway.registry.protocol import Bytes, Model, Smaller
from gateway.registry.record import NEVER, ModelRecord, Records
from gateway.registry.sharing import Agreement, Rival, Usage, agreed, is_outdone, on_cards


class Agreements(msgspec.Struct):
    """Puts in force, and ends, the agreements of `sharing` among the scheduler's `records`, by what
    was seen of each model.
    """

    records: Records
    room: MemoryLedger
    rules: SwapConfig
    _usages: defaultdict[str, Usage] = msgspec.field(default_factory=lambda: defaultdict(Usage))
    _agreements: dict[str, Agreement] = {}  # by each model that is part of it

    def apply(self, rules: SwapConfig) -> None:
        """From now on these are the rules, and other budgets, perhaps: all is judged anew."""
        self.rules = rules
        for name in tuple(self._agreements):
            self.end(name)

    def asked(self, name: str, now: float) -> None:
        """Somebody wants a lease."""
        self._usages[name].arrivals.append(now)
        if (agreement := self._agreements.get(name)) is not None:
            agreement.asked(name)

    def answered(self, name: str, seconds: float, speed: float) -> None:
        """A lease was given back; `speed`: the model's, as a part of its best."""
        self._usages[name].answered(seconds * speed)
        if (agreement := self._agreements.get(name)) is not None:
            agreement.lost[name] += seconds * (1.0 - speed)
            agreement.spent += seconds * (1.0 - speed)

    def together(
        self, claim: ModelRecord, victims: Sequence[ModelRecord]
    ) -> tuple[Bytes, tuple[ModelRecord, ...]] | None:
        """Where `claim` and those that would leave for it are better kept together: its way, and
        who has to leave all the same, to come back in a smaller one. None: they take turns, as
        those do that lie on other machines alone.
        """
        near = all(one.phase == "loaded" and HERE in one.nodes for one in victims)
        if self.rules.share == "never" or not near or claim.retrying is not None:
            return None
        group = (claim, *victims)
        rivals = [self._rival(one.model.name, one.model, one) for one in group]
        if not rivals[0].ways:
            return None
        rivals += self._absent(rivals)
        devices = {device for rival in rivals for way in rival.ways for device in way.need}
        room = {device: self.room.within_reach(device, group) for device in devices}
        agreement = agreed(rivals, room, stay=self.rules.min_stay, worth=WORTH)
        if agreement is None:
            return None
        way = agreement.way(claim.model.name, claim.model.all_ways)
        assert way is not None, "it was chosen of these"
        leavers = (one for one in victims if not agreement.keeps(one.model.name, one.held))
        for name in agreement.parts:
            self.end(name)
        self._agreements |= dict.fromkeys(agreement.parts, agreement)
        claim.share(way.need)
        return way.need, tuple(leavers)

    def end(self, name: str) -> None:
        """The agreement of that model is over, if there is one."""
        agreement = self._agreements.get(name)
        for member in agreement.parts if agreement else ():
            del self._agreements[member]
            if (record := self.records.get(member)) is not None:
                record.share(None)

    def forget(self, name: str) -> None:
        """There is no such model any more."""
        self.end(name)
        self._usages.pop(name, None)

    def _absent(self, rivals: Sequence[Rival]) -> list[Rival]:
        """Models that were asked for since the oldest request for `rivals` that is remembered, and
        are gone: they will want the same cards again.
        """
        cards = {card for one in rivals for way in one.ways for card in on_cards(way.need)}
        begin = min((one.arrivals[0] for one in rivals if one.arrivals), default=NEVER)
        names = {one.name for one in rivals}
        return [
            self._rival(name, usage.model, None)
            for name, usage in self._usages.items()
            if name not in names and usage.model is not None
            if usage.arrivals and usage.arrivals[-1] >= begin
            if cards & on_cards(usage.model.need).keys()
            if (record := self.records.get(name)) is None or not record.held
        ]

    def _rival(self, name: str, model: Model, record: ModelRecord | None) -> Rival:
        lies = None
        if record is not None and record.phase == "loaded":
            model, lies = record.whole, Smaller(record.held, record.speed)
        usage = self._usages[name]
        ways = (way for way in model.all_ways if node_of(way.need) == HERE)
        return Rival(
            name=name,
            load_seconds=model.load_seconds,
            seconds=usage.seconds,
            slots=model.slots,
            arrivals=tuple(usage.arrivals),
            ways=tuple(Smaller(way.need, model.relative(way.speed)) for way in ways),
            lies=lies,
        )

    def place(self, record: ModelRecord) -> None:
        """A model that is asked for and absent is to lie as was agreed, if one of the others is
        here, or asked for.
        """
        name = record.model.name
        agreement = self._agreements.get(name)
        record.share(None)
        self._usages[name].model = record.model
        if agreement is None or not any(map(self._is_around, agreement.parts.keys() - {name})):
            return
        way = agreement.way(name, record.model.all_ways)
        if way is not None and way.need != record.model.need:
            record.share(way.need)

    def _is_around(self, name: str) -> bool:
        record = self.records.get(name)
        return record is not None and (bool(record.held) or record.is_claim)

    def _is_regretted(
        self, agreement: Agreement, group: Sequence[ModelRecord], loads: float
    ) -> bool:
        """Whether the first of `group` had better have its full room."""
        if agreement.lost[group[0].model.name] > loads:
            return True
        if agreement.spent <= loads or len(group) < len(agreement.parts):
            return False
        agreement.spent = 0.0
        rivals = [self._rival(one.model.name, one.model, one) for one in group]
        return is_outdone(rivals, stay=self.rules.min_stay, worth=WORTH)

    def regret(self, record: ModelRecord) -> None:
        """A model falls idle that is kept together with others: it gets its full room back where
        giving way has cost more than it saved.
        """
        name = record.model.name
        agreement = self._agreements.get(name)
        if agreement is None or record.phase != "loaded" or record.model.pinned:
            return
        others = [self.records.get(other) for other in agreement.parts.keys() - {name}]
        group = [record, *(one for one in others if one is not None and one.phase == "loaded")]
        loads = sum(one.model.load_seconds for one in group)
        if not all(one.is_idle for one in group) or not self._is_regretted(agreement, group, loads):
            return
        self.end(name)
        whole = record.whole
        record.describe(
            msgspec.structs.replace(
                record.model,
                need=whole.need,
                others=whole.others,
                smaller=whole.smaller,
                speed=whole.speed,
            )
        )
        record.want(wanted=True)
        record.drain("share")
