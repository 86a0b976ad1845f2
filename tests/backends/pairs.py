"""Which kinds of models are tried in which ways: all pairs would take an hour."""

from collections.abc import Container, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def pairs(
    kinds: Iterable[Any], ways: Sequence[str], quick: Container[str] = ()
) -> list[ParameterSet]:
    """Parameters of a test: each kind in the `quick` ways, with the kind's own marks, and, among
    the slow tests, in one other way, in turn. The rest is left to tests that are long.
    """
    taken = []
    others = [way for way in ways if way not in quick]
    for at, kind in enumerate(kinds):
        (name,), marks = (
            (kind.values, kind.marks) if isinstance(kind, ParameterSet) else ((kind,), ())
        )
        taken += [pytest.param(name, way, marks=marks) for way in ways if way in quick]
        if others:
            taken.append(pytest.param(name, others[at % len(others)], marks=pytest.mark.slow))
    return taken


def every(kinds: Sequence[Any], step: int, start: int = 0) -> list[Any]:
    """One of `step` kinds, the first of them at `start`."""
    return list(kinds[start::step])


def quick(kinds: Iterable[Any], *tried: Any) -> list[ParameterSet]:
    """All kinds, of which those `tried` are tried each time, the others among the slow tests."""
    known = list(kinds)
    assert all(one in known for one in tried), "what is tried is one of them"
    return [pytest.param(one, marks=() if one in tried else pytest.mark.slow) for one in known]


def kinds_of(request: pytest.FixtureRequest) -> list[str]:
    """Which kinds the chosen tests of this module ask for."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    calls = [item.callspec for item in items if item.module is request.module]
    return list(dict.fromkeys(str(call.params["kind"]) for call in calls))
