"""`roundhouse check`: what `serve` would do with a configuration, without doing it."""

import os
from argparse import Namespace
from collections.abc import Mapping

from backends.catalog import BACKENDS, CPU
from backends.protocol import Sampling
from config.loader import load_config
from gateway.cli.configured import with_downloads, with_models
from gateway.cli.listing import size, table
from gateway.cli.serve import check_formats
from gateway.registry import ModelEntry, ModelLibrary
from gateway.registry.gauges import SystemGauge


def run(arguments: Namespace) -> int:
    """A row for each model, and what is wrong; status 1 where something is. Raises ConfigError."""
    config = load_config(arguments.config, os.environ, sampling=Sampling)
    config = with_downloads(with_models(config, arguments.models))
    check_formats(config)
    library, total = ModelLibrary(config), SystemGauge().total()
    budgets = {**total, **config.swap.memory}
    print(", ".join(f"{device}: {size(amount)}" for device, amount in budgets.items()))
    rows = [_row(entry, total, budgets) for entry in library.entries()]
    table(("MODEL", "ENGINE", "FILES", "NEEDS", "ON", "FITS"), rows)
    unusable = library.unusable()
    for one in unusable:
        print(f"{one.name}: {one.reason}")
    return 1 if unusable or any(row[-1] != "yes" for row in rows) else 0


def _row(
    entry: ModelEntry, total: Mapping[str, int], budgets: Mapping[str, int]
) -> tuple[str, ...]:
    files = BACKENDS[entry.files.backend].files
    need = files.estimate(entry.files, entry.options).total
    cards = {name: amount for name, amount in total.items() if name != CPU}
    parts = files.placement(entry.options, cards)
    short = [device for device, part in parts.items() if need * part > budgets.get(device, 0)]
    return (
        entry.name,
        entry.files.backend,
        size(entry.files.size_bytes),
        size(need),
        ", ".join(parts),
        f"not on {', '.join(short)}" if short else "yes",
    )
