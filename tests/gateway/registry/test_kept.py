"""How much memory conversations may have: what is configured, and never what models need."""

from pathlib import Path

import pytest

from config.errors import ConfigError
from config.settings import KeptConfig
from gateway.registry.kept import Conversations
from gateway.registry.ledger import MemoryLedger
from gateway.registry.protocol import Model
from gateway.registry.record import Records

BUDGET = 1_000_000


def ledger(taken: int = 0) -> MemoryLedger:
    need = {"cpu": taken}
    model = Model(name="one", need=need, load_seconds=1.0, slots=1)
    records = Records()
    records.open(model).hold(need)
    return MemoryLedger({"cpu": BUDGET}, records)


@pytest.mark.parametrize(
    ("configured", "models", "allowed"),
    [
        ("auto", 0, BUDGET // 4),
        ("auto", BUDGET * 9 // 10, BUDGET // 10),
        ("auto", BUDGET * 2, 0),
        (BUDGET // 2, 0, BUDGET // 2),
        (BUDGET // 2, BUDGET * 3 // 4, BUDGET // 4),
        (0, 0, 0),
    ],
)
def test_models_come_first(configured: object, models: int, allowed: int) -> None:
    kept = Conversations(KeptConfig(memory=configured), ledger(models))  # type: ignore[arg-type]
    assert kept.store.counts().memory_limit == allowed


def test_another_limit_is_in_force_at_once() -> None:
    kept = Conversations(KeptConfig(), ledger())
    kept.apply(KeptConfig(memory=5_000))
    assert kept.store.counts().memory_limit == 5_000


def test_files_that_can_not_be_encrypted_are_no_start(tmp_path: Path) -> None:
    config = KeptConfig(folder=str(tmp_path), encrypt="a secret")
    try:
        import cryptography  # noqa: F401 - an extra
    except ImportError:
        with pytest.raises(ConfigError, match="cryptography"):
            Conversations(config, ledger())
    else:
        Conversations(config, ledger())
