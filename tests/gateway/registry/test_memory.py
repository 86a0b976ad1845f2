"""The arithmetic of memory, as it is told."""

from backends.contract.protocol import MemoryNeed
from config.values import GIB, MIB
from gateway.registry.memory import arithmetic, placed, shares
from gateway.registry.protocol import Evicted


def need(weights: float, cache: float, engine: float, unit: int = GIB) -> MemoryNeed:
    return MemoryNeed(
        weights=int(weights * unit), cache=int(cache * unit), engine=int(engine * unit)
    )


def test_the_sentence() -> None:
    sentence = arithmetic(need(4.4, 0.6, 0.1), int(3.2 * GIB), [Evicted("qwen3-8b", 212.4)])
    assert sentence == (
        "needs 5.1 GiB: weights 4.4, cache 0.6, engine 0.1; free 3.2; "
        "evicting qwen3-8b, idle for 212 s"
    )


def test_the_sentence_says_when_the_need_was_measured() -> None:
    sentence = arithmetic(need(4.4, 0.6, 0.1), 8 * GIB, measured=True)
    assert sentence == "needs 5.1 GiB (measured): weights 4.4, cache 0.6, engine 0.1; free 8.0"


def test_what_only_takes_turns_needs_no_memory_in_the_sentence() -> None:
    turns = need(1, 0, 0, unit=1)
    assert arithmetic(turns, 1) == ""
    assert arithmetic(turns, 1, [Evicted("a", 9.0)]) == "evicting a, idle for 9 s"


def test_small_models_are_reported_in_mebibytes() -> None:
    sentence = arithmetic(need(1.6, 12, 90, unit=2**20), 8 * GIB)
    assert sentence == "needs 103.6 MiB: weights 1.6, cache 12.0, engine 90.0; free 8192.0"


def test_shares_are_bytes_per_device() -> None:
    assert shares(MemoryNeed(weights=80, cache=20, engine=0), {"cuda:0": 0.75, "cuda:1": 0.25}) == {
        "cuda:0": 75,
        "cuda:1": 25,
    }


def test_where_a_model_lies_is_reported_with_its_layers() -> None:
    devices = {"cuda:0": 5 * GIB, "cpu": 312 * MIB}
    assert placed(devices, {}) == "cuda:0 5.0 GiB, cpu 312.0 MiB"
    sentence = placed(devices, {"cpu": 1, "cuda:0": 29})
    assert sentence == "cuda:0 5.0 GiB with 29 layers, cpu 312.0 MiB with 1 layer"
    assert placed({"cuda:0": 5 * GIB, "one of coders": 1}, {}) == "cuda:0 5.0 GiB, one of coders"
    assert placed({}, {"metal": 3}) == "metal with 3 layers"
