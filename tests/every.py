"""One promise tried on a whole corpus in one test.

`pytest.mark.parametrize` makes a test of each case, which is right for a table that is read. For
hundreds of cases of one corpus, or a product of all formats and all depths, this makes one test,
which tries them all and reports those that broke the promise together.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

NOTHING = "a promise that is tried on nothing is not tested"
REPORTED = 5  # failures in full; the others by their labels

Test: TypeAlias = Callable[..., None]


def for_every(
    names: str | tuple[str, ...],
    values: Iterable[Any] | Callable[[], Iterable[Any]],
    label: Callable[[Any], str] = repr,
) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, in one test. `names`: "format", or ("place", "escape") where
    values are pairs. `values`: of a corpus that is costly to read, what reads it when the test
    runs. `label`: how a value is reported.

    Nothing that a test changes may be shared between cases: no `tmp_path`.
    """
    arguments = (names,) if isinstance(names, str) else names
    read = values if callable(values) else list(values).copy
    assert callable(values) or read(), NOTHING

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def all_of_them(**fixtures: Any) -> None:
            broken = {}
            cases = list(read())
            assert cases, NOTHING
            for case in cases:
                given = dict(zip(arguments, case if len(arguments) > 1 else (case,), strict=True))
                try:
                    test(**fixtures, **given)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next case is tried
                    error.add_note(f"for {label(case)}")
                    broken[label(case)] = error
            if broken:
                text = f"{len(broken)} of {len(cases)} failed: {', '.join(broken)}"
                raise ExceptionGroup(text, [*broken.values()][:REPORTED])

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in arguments]
        all_of_them.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return all_of_them

    return decorate
