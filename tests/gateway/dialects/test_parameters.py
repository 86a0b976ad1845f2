"""What several APIs call by one name."""

import pytest

from gateway.dialects.fields import fields_of
from gateway.dialects.parameters import read_keep_alive


@pytest.mark.parametrize(
    ("wire", "seconds"),
    [
        ("1us", 1e-6),
        ("+5m", 300.0),
        ("1h30m", 5400.0),
        ("-1", -1.0),
        ("-5m", -1.0),
        ("250ms", 0.25),
    ],
)
def test_a_model_is_kept_for_a_duration_as_go_writes_it(wire: str, seconds: float) -> None:
    kept = read_keep_alive(fields_of({"keep_alive": wire}), wire)
    assert kept == pytest.approx(seconds)
