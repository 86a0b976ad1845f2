"""Each fault of the study once: no other stream breaks, and nothing is left."""

import asyncio

import pytest

from benchmarks.faults import FAULTS, STREAMS, cluster, trials


@pytest.mark.slow
def test_the_end_of_a_node_s_worker_ends_its_own_streams_and_leaves_nothing() -> None:
    with cluster() as there:
        found = asyncio.run(trials(there, [*FAULTS], 1))
    assert [one.kind for one in found] == [*FAULTS]
    for one in found:
        assert one.broken == 0, one
        assert not one.left, one
        assert one.over < STREAMS, f"all had ended before: {one}"
