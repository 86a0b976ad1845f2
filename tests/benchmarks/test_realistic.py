"""Models of the sizes that are named, and what is said of threads there."""

from pathlib import Path

import pytest

from backends.engines.llamacpp.layout import context_length
from backends.engines.llamacpp.recognition import recognise
from benchmarks import ahead
from benchmarks.answers import Figures
from benchmarks.realistic import SIZES, table, targets, weights, write
from benchmarks.report import AUTO, Row, row, share_of_fixed, with_threads
from benchmarks.turns import ROUNDS
from config.engines import LlamaCppOptions
from tests.every import for_every


def rows(one: float, two: float, auto: float) -> list[Row]:
    speeds = {with_threads(1): one, with_threads(2): two, AUTO: auto}
    return [row(name, 1, [Figures(tokens_per_second=speed)]) for name, speed in speeds.items()]


@for_every("size", SIZES)
def test_a_model_has_about_the_weights_that_it_is_called_by(size: str) -> None:
    assert weights(SIZES[size]) == pytest.approx(int(size.removesuffix("M")) * 1e6, rel=0.02)


def test_the_smallest_is_a_model_for_llama_cpp(tmp_path: Path) -> None:
    files = recognise(write(tmp_path / "small.gguf", SIZES["1M"]))
    assert files is not None
    assert context_length(files, LlamaCppOptions()) == 4096


def test_auto_is_related_to_the_best_fixed_number_of_threads() -> None:
    speeds = {with_threads(1): 50.0, with_threads(2): 100.0, AUTO: 98.0}
    assert share_of_fixed(speeds, (1, 2)) == 0.98
    assert share_of_fixed(speeds, (1,)) == 1.96


def test_servers_without_tokens_have_no_share() -> None:
    assert share_of_fixed({with_threads(1): 0.0, AUTO: 0.0}, (1,)) == 0.0


def test_the_table_has_a_line_for_each_size() -> None:
    lines = table({"1M": rows(2000.0, 1000.0, 1900.0), "27M": rows(600.0, 725.0, 725.0)}, (1, 2))
    assert lines.splitlines() == [
        "| weights | 1 thread | 2 threads | auto | auto relative to the best |",
        "|--:|--:|--:|--:|--:|",
        "| 1M | 2,000 | 1,000 | 1,900 | 95% |",
        "| 27M | 600 | 725 | 725 | 100% |",
    ]


def test_auto_is_judged_at_each_size() -> None:
    judged = targets({"1M": rows(100.0, 90.0, 96.9), "27M": rows(90.0, 100.0, 97.0)}, (1, 2))
    assert [(target.outcome, target.met) for target in judged] == [
        ("96.9%", False),
        ("97.0%", True),
    ]


def test_llama_server_is_compared_by_medians_of_eight_turns() -> None:
    parts, effort = ahead.arguments([])
    assert list(parts) == list(ahead.PARTS)
    assert effort.rounds == ROUNDS >= 8
    assert ahead.arguments(["--parts", "real", "--quick"])[0] == ["real"]
