import msgspec

from benchmarks.answers import Figures
from benchmarks.conversation import Turn
from benchmarks.footprint import Footprint
from benchmarks.loop_cost import STEP, LoopCost
from benchmarks.loop_cost import targets as loop_targets
from benchmarks.report import (
    LLAMA_SERVER,
    OURS,
    PEER,
    PEER_IN_LINE,
    RAW,
    raw_speed,
    row,
    table,
    targets,
)

FIGURES = Figures(
    tokens_per_second=700.0,
    ttft_p50=0.004,
    ttft_p99=0.009,
    gap_p50=0.001,
    gap_p99=0.002,
    answers=10,
    errors=0,
    cut_off=0,
)
FOOTPRINT = Footprint(
    gateway=70_000_000, bundled=200_000_000, weights=2_000_000, cache=60_000_000, started_in=1.0
)


def speed(tokens_per_second: float) -> Figures:
    return msgspec.structs.replace(FIGURES, tokens_per_second=tokens_per_second)


def turn(computed: int) -> Turn:
    return Turn(prompt_tokens=100 + computed, cached_tokens=100, answer_tokens=5, seconds=0.1)


def test_a_row_shows_the_middle_and_adds_up_what_went_wrong() -> None:
    flawed = msgspec.structs.replace(speed(100.0), cut_off=2, ttft_p50=None)
    middle = row(OURS, 4, [speed(300.0), flawed, speed(200.0)]).middle
    assert (middle.tokens_per_second, middle.cut_off, middle.ttft_p50) == (200.0, 2, 0.004)


def test_a_candidate_without_waits_has_none() -> None:
    raw = msgspec.structs.replace(FIGURES, ttft_p50=None)
    assert row(RAW[1], 1, [raw, raw]).middle.ttft_p50 is None


def test_the_table_relates_everybody_to_the_raw_loop() -> None:
    lines = table([row(RAW[1], 1, [speed(1000.0)]), row(OURS, 1, [speed(700.0)])]).splitlines()
    assert "| 1 | Roundhouse | 700 | 70% | 4.0 | 9.0 | 1.0 | 2.0 | 10 | 0 | 0 |" in lines


def test_the_share_of_the_raw_loop_is_judged_at_each_number_of_streams() -> None:
    rows = [
        row(who, streams, [speed(value)])
        for who, streams, value in (
            (RAW[1], 4, 1000.0),
            (OURS, 4, 700.0),
            (RAW[1], 16, 1000.0),
            (OURS, 16, 699.0),
        )
    ]
    assert [target.met for target in targets(rows, None, ())] == [True, False]


def test_the_raw_loop_counts_with_the_threads_that_suit_it_best() -> None:
    rows = [row(RAW[1], 4, [speed(800.0)]), row(RAW[2], 4, [speed(1000.0)])]
    assert raw_speed(rows, 4) == 1000.0
    assert raw_speed(rows, 16) == 0.0


def test_the_peer_counts_in_its_better_mode() -> None:
    rows = [
        row(PEER, 16, [speed(1.0)]),
        row(PEER_IN_LINE, 16, [speed(300.0)]),
        row(OURS, 16, [speed(700.0)]),
    ]
    (target,) = targets(rows, None, ())
    assert (target.outcome, target.met) == ("2.3 times", False)


def test_a_slow_first_token_misses_its_target() -> None:
    slow = msgspec.structs.replace(FIGURES, ttft_p50=0.010)
    assert [target.met for target in targets([row(OURS, 1, [slow])], None, ())] == [False]


def test_memory_besides_the_model_leaves_out_weights_and_cache() -> None:
    assert [target.met for target in targets([], FOOTPRINT, ())] == [True, False, True]


def test_a_conversation_must_not_grow_dearer() -> None:
    dearer = targets([], None, (turn(9), turn(30), turn(31)))
    alike = targets([], None, (turn(9), turn(30), turn(30)))
    assert [target.met for target in (*dearer, *alike)] == [False, True]


def test_llama_server_is_met_in_speed_and_before_it_in_the_first_text() -> None:
    late = msgspec.structs.replace(speed(700.0), ttft_p50=0.0041)
    rows = [row(OURS, 4, [speed(700.0)]), row(LLAMA_SERVER, 4, [late])]
    assert [target.met for target in targets(rows, None, ())] == [True, True]
    rows = [row(OURS, 4, [late]), row(LLAMA_SERVER, 4, [speed(700.1)])]
    assert [target.met for target in targets(rows, None, ())] == [False, False]


def cost(engine: str, streams: int, loop: float, figures: Figures) -> LoopCost:
    return LoopCost(engine=engine, streams=streams, loop=loop, others=1.0, figures=figures)


def test_the_loop_is_judged_by_its_cpu_and_many_streams_by_their_pace() -> None:
    pace = msgspec.structs.replace(speed(1 / STEP), gap_p99=1.4 * STEP)
    slow = msgspec.structs.replace(speed(64 / STEP / 1.03), gap_p99=1.6 * STEP)
    costs = [
        cost("scripted", 1, 99.0, pace),
        cost("scripted", 16, 20.0, pace),
        cost("scripted", 64, 9.0, slow),
        cost("llama.cpp", 16, 20.1, pace),
    ]
    assert [target.met for target in loop_targets(costs)] == [True, False, False, False]
    costs[2] = cost("scripted", 64, 9.0, msgspec.structs.replace(pace, tokens_per_second=64 / STEP))
    assert [target.met for target in loop_targets(costs)] == [True, False, True, True]
