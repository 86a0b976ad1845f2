"""A cluster on the scheduler's virtual clock, smaller than the one that is measured."""

import pytest

from benchmarks.nodes import Cluster, Crowd
from config.settings import SwapConfig
from tests.backends.pairs import quick


@pytest.mark.parametrize("seed", quick(range(3), 0))
def test_memory_is_never_promised_twice_and_nobody_starves(seed: int) -> None:
    rules = SwapConfig(max_waiting=1_000_000, max_wait=60.0)
    crowd = Crowd(nodes=4, cards=4, models=80, rate=6.0, seconds=200.0, seed=seed)

    figures = Cluster(crowd, rules).run()  # it keeps its own books, and checks each load

    assert figures.refused == 0
    assert figures.answered == figures.requests > 1_000
    assert figures.copies > 0, "files were brought to where there was room"
    # Its turn, and for itself and each model before it a load, a quantum and the longest answer.
    assert figures.wait_most < 4 * (rules.max_wait + 130)
