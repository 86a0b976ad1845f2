"""`roundhouse check`: what `serve` would do with a configuration, without doing it."""

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from backends.contract.catalog import BACKENDS, CPU
from backends.contract.errors import UpstreamError
from backends.contract.samplers import Sampling
from backends.places.upstream.fleet import Roster
from backends.places.upstream.lists import read_list
from backends.places.upstream.replicas import Replica
from backends.places.upstream.upstream import Upstream
from config.loader import load_config, locate
from config.settings import Config
from config.values import UNITS, gibibytes
from gateway.answers.interpreter import Capabilities, Templates
from gateway.cli.configured import findings, obstacle, with_downloads, with_models
from gateway.cli.listing import of_devices, size, table
from gateway.cli.serve import check_formats
from gateway.http.metrics import Metrics
from gateway.hub.hub import cached_models, foreseen, present
from gateway.registry import ModelEntry, ModelStatus, Registry
from gateway.registry.gauges import Gauge, bandwidths
from gateway.registry.history import History, default_path
from gateway.registry.ledger import MemoryLedger
from gateway.registry.library import ModelLibrary
from gateway.registry.loaders import Loader
from gateway.registry.memory import by_use
from gateway.registry.nodes import without_turns
from gateway.registry.planning import LoadPlanner
from gateway.registry.record import Records
from gateway.serving.app import build
from gateway.terms.errors import ModelUnavailable

FITS = "yes"


def run(arguments: Namespace) -> int:
    """A row for each model and each upstream's server, and what is wrong; status 1 where something
    is. Raises ConfigError, as `serve` does.
    """
    file = arguments.config or locate(os.environ, Path.cwd())
    config = load_config(file, os.environ, sampling=Sampling)
    config = with_models(config, arguments.models, arguments.model_dir, file=arguments.config)
    return checked(config)


def checked(config: Config) -> int:
    """As `run`, of what `config` says."""
    check_formats(config)
    config, absent = present(with_downloads(config))
    with TemporaryDirectory() as folder:
        config, lines = foreseen(config, absent, Path(folder))
        return _checked(config, lines)


def _checked(config: Config, absent: Sequence[str]) -> int:
    """`absent`: lines of models that have to be downloaded."""
    library, total = ModelLibrary(config, cache=cached_models(config)), Gauge().total()
    build(config, Registry(library, config), Metrics())
    budgets = {**total, **config.swap.memory}
    print(of_devices(budgets))
    for model in config.models:
        budgets |= model.turn
    cards = {name: amount for name, amount in total.items() if name != CPU}
    (history := History(default_path())).begin(cards)
    room = MemoryLedger(budgets, Records())
    planner = LoadPlanner(Loader(), history, cards, room, bandwidths(cards))
    entries = library.entries()
    here = [one for one in entries if one.files.elsewhere is None and not one.replicas]
    together: Counter[str] = Counter()
    rows = [_row(entry, planner, together) for entry in here]
    table(("MODEL", "ENGINE", "FILES", "NEEDS", "ON", "FITS"), rows)
    if len([entry for entry in here if entry.of is None]) > 1:
        print(_turns(together, budgets))
    anyio.run(_formats, here)
    print(*absent, sep="\n", end="\n" if absent else "")
    wrong = [f"{one.name}: {one.reason}" for one in library.unusable()]
    silent = anyio.run(_upstreams, library.roster)
    library.refresh()  # with what the upstreams have
    wrong += [f"{one.path}: {one.problem}" for one in findings(config, library, total)]
    wrong += silent
    for line in wrong:
        print(line)
    return 1 if wrong or not all(row[-1].startswith(FITS) for row in rows) else 0


async def _upstreams(roster: Roster) -> Sequence[str]:
    """A row for each server; what is wrong with them."""
    rows, wrong = [], []
    for name, upstream in roster.upstreams.items():
        for replica in upstream.balance.replicas:
            try:
                body = await upstream.lists.probe(replica)
                rows.append((name, replica.url, _noted(upstream, replica, body)))
            except UpstreamError as error:
                rows.append((name, replica.url, "no answer"))
                wrong.append(f"upstream {name!r}: {replica.url}: {error}")
        await upstream.client.aclose()
    if rows:
        table(("UPSTREAM", "SERVER", "MODELS"), rows)
    return wrong


def _noted(upstream: Upstream, replica: Replica, body: bytes | None) -> str:
    """How many models a server lists, which it has from now on."""
    if body is None:
        return "-"
    listed = read_list(body)
    upstream.lists.note(replica, listed)
    return str(len(listed.offers))


async def _formats(entries: Sequence[ModelEntry]) -> None:
    """Say how each model's answers are read; of a preset they are as its model's."""
    capabilities = Capabilities(Templates(None))
    for entry in entries:
        status = ModelStatus(id=entry.name, state="unloaded", files=entry.files, entry=entry)
        if entry.of is None and (known := await capabilities.of(status)) is not None:
            print(f"{entry.name} answers as {known.recognised.format.id}: {known.recognised.why}")
        library = BACKENDS[entry.files.backend].library(entry.files, entry.options)
        if entry.of is None and library is not None:
            print(f"{entry.name} is computed by {library}")


def _turns(together: Mapping[str, int], budgets: Mapping[str, int]) -> str:
    """Whether models that need `together` this much can be in memory at once."""
    over = [
        f"{gibibytes(size)} of {device}, which has {gibibytes(budgets.get(device, 0))}"
        if size > UNITS
        else f"more than {device}"
        for device, size in together.items()
        if size > budgets.get(device, 0)
    ]
    return f"together they need {', '.join(over)}: they take turns" if over else "all fit together"


def _row(entry: ModelEntry, planner: LoadPlanner, together: Counter[str]) -> tuple[str, ...]:
    if entry.of is not None:
        return entry.name, entry.files.backend, "", "", "", f"{FITS}: same as {entry.of.name}"
    known = (entry.name, entry.files.backend, size(entry.files.size_bytes))
    if (share := entry.files.node) is not None:
        together.update(entry.turn)
        return (*known, by_use(share.need), share.node.name, FITS)
    try:
        plan, room = planner.plan(entry), planner.room
    except ModelUnavailable as error:
        return (*known, "", "", str(error))
    need = room.fitting(plan.needs)
    together.update({**entry.turn, **need})
    short = [device for device, size in need.items() if size > room.budgets.get(device, 0)]
    fits = f"{FITS}: {plan.note}" if plan.note else FITS
    fits = obstacle(entry) or (f"not on {', '.join(short)}" if short else fits)
    return (*known, by_use(plan.need), ", ".join(without_turns(need)), fits)
