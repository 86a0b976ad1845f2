"""Lists of models: what is read of them, and what makes no sense."""

from typing import Any

import msgspec
import pytest

from backends.contract.errors import UpstreamError
from backends.places.upstream.lists import read_list


def listed(**fields: Any) -> Any:
    return read_list(msgspec.json.encode({"data": [{"id": "m", **fields}]}))


def test_a_roundhouse_tells_how_its_models_do() -> None:
    found = listed(
        owned_by="roundhouse",
        state="loading",
        status={"value": "loading", "percent": 40},
        missing_bytes=7,
        in_use=1,
        waiting=2,
    )
    one = found.standings["m"]

    assert (one.state, one.percent, one.missing, one.in_use, one.waiting) == (
        "loading",
        40,
        7,
        1,
        2,
    )


def test_other_servers_tell_none() -> None:
    found = listed(owned_by="vllm", state="loaded")

    assert [offer.id for offer in found.offers] == ["m"]
    assert found.standings is None


@pytest.mark.parametrize(
    "odd",
    [
        {"state": "dancing"},
        {"state": "loading", "status": {"percent": 101}},
        {"state": "loaded", "in_use": -1},
        {"state": "unloaded", "missing_bytes": 2**80},
        {},
    ],
)
def test_a_standing_that_makes_no_sense_is_none(odd: dict[str, Any]) -> None:
    found = listed(owned_by="roundhouse", **odd)

    assert [offer.id for offer in found.offers] == ["m"]
    assert found.standings == {}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": 1}', b"[" * 100_000, b"\xff"])
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(UpstreamError):
        read_list(body)
