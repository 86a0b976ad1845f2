"""Where a command's memory is promised before it is measured."""

import pytest

from backends.contract.catalog import Cards, Placement
from backends.places.command.files import estimate, named, placed, placements
from config.engines import CommandOptions

CARDS = {"cuda:0": 30, "cuda:1": 10}
ELSEWHERE = {"box-b/cuda:0": 60, "box-c/cuda:0": 20}


@pytest.mark.parametrize(
    ("options", "cards", "size", "placement"),
    [
        (CommandOptions(), CARDS, 0, {"cuda:0": 0.75, "cuda:1": 0.25}),
        (CommandOptions(), {}, 0, {"cpu": 1.0}),
        (CommandOptions(memory=8), CARDS, 8, {"cuda:0": 0.75, "cuda:1": 0.25}),
        (CommandOptions(memory=8), {}, 8, {"cpu": 1.0}),
        (CommandOptions(memory={"cpu": 2, "cuda:1": 6}), CARDS, 8, {"cpu": 0.25, "cuda:1": 0.75}),
        (CommandOptions(memory={"cpu": 0}), CARDS, 0, {"cpu": 1.0}),
        # on other machines, and begun on this one
        (
            CommandOptions(memory=ELSEWHERE),
            CARDS,
            80,
            {"cpu": 0.0, "box-b/cuda:0": 0.75, "box-c/cuda:0": 0.25},
        ),
    ],
)
def test_memory_is_promised_where_the_configuration_says_or_on_all_cards(
    options: CommandOptions, cards: Cards, size: int, placement: Placement
) -> None:
    files = named("far", None)
    assert estimate(files, options).total == size
    assert placements(files, options, cards) == (placement,)


def test_a_figure_for_all_devices_is_one_for_each_where_the_model_lies() -> None:
    whole = CommandOptions(memory=8)
    (placement,) = placements(None, whole, CARDS)
    assert placed(whole, placement, CARDS) == CommandOptions(memory={"cuda:0": 6, "cuda:1": 2})
    per_device = CommandOptions(memory={"cpu": 8})
    assert placed(per_device, {"cpu": 1.0}, CARDS) is per_device
