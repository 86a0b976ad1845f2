"""A machine for the scheduler: it carries orders out on paper, and objects to what must not be.

It keeps its own books from the orders alone, so that a mistake in the scheduler's can't hide
itself.
"""

import itertools
from collections.abc import Iterable

from config.settings import SwapConfig
from gateway.registry.protocol import (
    Bytes,
    CancelLoad,
    Grant,
    Load,
    Model,
    Order,
    Refuse,
    Ticket,
    Unload,
)
from gateway.registry.scheduler import Scheduler


class SimulatedMachine:
    """One machine, its models, its clients. Time is moved by `advance`."""

    def __init__(self, budgets: dict[str, int], rules: SwapConfig, models: Iterable[Model]) -> None:
        self.budgets = budgets
        self.rules = rules
        self.models = {model.name: model for model in models}
        self.scheduler = Scheduler(budgets, rules)
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.waiting: dict[int, tuple[Ticket, str]] = {}
        self.using: dict[int, tuple[Ticket, str]] = {}
        self.refused: dict[int, Refuse] = {}
        self.waits: dict[int, float] = {}
        self.loading: dict[str, dict[str, int]] = {}
        self.present: dict[str, dict[str, int]] = {}
        self.leaving: dict[str, dict[str, int]] = {}
        self.parking: set[str] = set()  # of those that leave
        self.parked: dict[str, dict[str, int]] = {}
        self.loads = 0

    # ------------------------------------------------------------------------------- events

    def request(
        self, name: str, *, holds: bool = True, keep_alive: float | None = None, owner: str = ""
    ) -> list[Order]:
        ticket = Ticket(
            number=next(self.numbers),
            arrived=self.now,
            holds=holds,
            keep_alive=keep_alive,
            owner=owner,
        )
        self.waiting[ticket.number] = ticket, name
        return self.carry_out(self.scheduler.requested(self.now, ticket, self.models[name]))

    def cancel(self, number: int) -> list[Order]:
        _, name = self.waiting.pop(number)
        return self.carry_out(self.scheduler.cancelled(self.now, name, number))

    def release(self, number: int) -> list[Order]:
        _, name = self.using.pop(number)
        return self.carry_out(self.scheduler.released(self.now, name, number))

    def finish_load(self, name: str, took: dict[str, int] | None = None) -> list[Order]:
        held = self.loading.pop(name) if took is None else took
        self.loading.pop(name, None)
        self.present[name] = held
        seconds = self.models[name].load_seconds
        return self.carry_out(self.scheduler.loaded(self.now, name, held, seconds))

    def fail_load(self, name: str, *, memory: bool = False) -> list[Order]:
        del self.loading[name]
        free: Bytes | None = {} if memory else None
        return self.carry_out(self.scheduler.load_failed(self.now, name, "it broke", free=free))

    def finish_unload(self, name: str) -> list[Order]:
        """A model that was to be parked is."""
        del self.leaving[name]
        if name not in self.parking:
            return self.carry_out(self.scheduler.unloaded(self.now, name))
        self.parking.discard(name)
        self.parked[name] = dict(self.models[name].parks or {})
        return self.carry_out(self.scheduler.unloaded(self.now, name, self.parked[name]))

    def break_parked(self, name: str) -> list[Order]:
        """Its process ends by itself."""
        return self.carry_out(self.scheduler.broke(self.now, name, "it broke"))

    def ask_unload(self, name: str, *, again: bool = False) -> list[Order]:
        return self.carry_out(self.scheduler.unload_asked(self.now, name, again=again))

    def break_down(self, name: str) -> list[Order]:
        """Someone who uses it finds it broken."""
        orders = self.carry_out(self.scheduler.broke(self.now, name, "it broke"))
        assert self.scheduler.phase(name) in ("draining", "leaving"), f"{name} is broken, but stays"
        return orders

    def describe(self, model: Model) -> list[Order]:
        self.models[model.name] = model
        return self.carry_out(self.scheduler.described(self.now, model))

    def replace(self, name: str) -> list[Order]:
        return self.carry_out(self.scheduler.replaced(self.now, name))

    def remove(self, name: str) -> list[Order]:
        return self.carry_out(self.scheduler.removed(self.now, name))

    def reconfigure(self, budgets: dict[str, int]) -> list[Order]:
        self.budgets = budgets
        return self.carry_out(self.scheduler.apply(self.now, budgets, self.rules))

    def close(self) -> list[Order]:
        return self.carry_out(self.scheduler.closing(self.now))

    def advance(self, seconds: float) -> list[Order]:
        """Let time pass, with a tick whenever the scheduler asked for one."""
        end, orders = self.now + seconds, []
        while (wake := self.scheduler.wakes_at(self.now)) is not None and wake <= end:
            assert wake > self.now, "the scheduler asks to be woken in the past"
            self.now = wake
            orders += self.carry_out(self.scheduler.tick(self.now))
        self.now = end
        return orders + self.carry_out(self.scheduler.tick(self.now))

    # ------------------------------------------------------------------------------- orders

    def carry_out(self, orders: list[Order]) -> list[Order]:
        for order in orders:
            self._carry_out(order)
        self._check()
        return orders

    def _carry_out(self, order: Order) -> None:
        match order:
            case Load(model=name, need=need):
                self._load(name, need)
            case CancelLoad(model=name):
                assert name in self.loading, f"{name} is not loading, but its load is cancelled"
                self.leaving[name] = self.loading.pop(name)
            case Unload(model=name, why=why, parks=parks):
                self._unload(name, why, parks=parks)
            case Grant(ticket=number):
                self._grant(number)
            case Refuse(ticket=number):
                assert number in self.waiting, f"ticket {number} is refused, but doesn't wait"
                del self.waiting[number]
                self.refused[number] = order

    def _load(self, name: str, need: Bytes) -> None:
        assert name not in self.loading, f"{name} is loaded twice at once"
        assert name not in self.present, f"{name} is loaded though it is there"
        assert name not in self.leaving, f"{name} is loaded before it has left"
        self.parked.pop(name, None)
        self.loading[name] = dict(need)
        self.loads += 1
        for device in need:
            promised, budget = self.promised(device), self.budgets[device]
            assert promised <= budget, f"{promised} of {budget} bytes are promised on {device}"

    def _unload(self, name: str, why: str, *, parks: bool) -> None:
        if name in self.parked:
            assert not parks, f"{name} is parked twice"
            self.leaving[name] = self.parked.pop(name)
            return
        assert name in self.present, f"{name} is unloaded but not there"
        assert not self.users(name), f"{name} is unloaded while it is used"
        pinned = self.models[name].pinned
        assert why in ("asked", "broken", "config") or not pinned, (
            f"{name} is pinned, but unloaded: {why}"
        )
        held = self.leaving[name] = self.present.pop(name)
        if parks:
            kept = self.models[name].parks or {}
            both = {*held, *kept}
            self.leaving[name] = {one: max(held.get(one, 0), kept.get(one, 0)) for one in both}
            self.parking.add(name)

    def _grant(self, number: int) -> None:
        assert number in self.waiting, f"ticket {number} is granted, but doesn't wait"
        ticket, name = self.waiting.pop(number)
        self.waits[number] = self.now - ticket.arrived
        assert name in self.present, f"{name} is granted, but not there"
        if not ticket.holds:
            return
        earlier = [
            other
            for other in self.line(name)
            if other < number and self.waiting[other][0].owner == ticket.owner
        ]
        assert not earlier, f"ticket {number} overtook {earlier} in the line of {name}"
        self.using[number] = ticket, name
        assert len(self.users(name)) <= self.models[name].slots, f"{name} has too many users"

    # ------------------------------------------------------------------------------- books

    def promised(self, device: str) -> int:
        books = (self.loading, self.present, self.leaving, self.parked)
        return sum(held.get(device, 0) for book in books for held in book.values())

    def users(self, name: str) -> list[int]:
        return [number for number, (_, model) in self.using.items() if model == name]

    def line(self, name: str) -> list[int]:
        """The tickets that wait for a lease of `name`."""
        return [
            number
            for number, (ticket, model) in self.waiting.items()
            if model == name and ticket.holds
        ]

    def _check(self) -> None:
        """What holds at any moment."""
        in_line = sum(ticket.holds for ticket, _ in self.waiting.values())
        assert in_line == self.scheduler.waiting(), "a ticket was forgotten"
        assert in_line <= self.rules.max_waiting, "more wait than may"
        for name in self.present:
            if self.scheduler.phase(name) == "loaded" and self.line(name):
                free = self.models[name].slots - len(self.users(name))
                assert free == 0, f"{name} is there and free, but {self.line(name)} wait for it"
        if self.waiting and not (self.loading or self.leaving or self.using):
            wake = self.scheduler.wakes_at(self.now)
            assert wake is not None, f"{len(self.waiting)} wait, and nothing will ever happen"
