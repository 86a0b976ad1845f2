"""Times and sizes as people write them: `5m`, `1h30m`, `8GB`, `24GiB`. Times are seconds, sizes
bytes. Knows no option.
"""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["seconds", "bytes"]

_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
_POWERS = {letter: power for power, letter in enumerate("KMGT", 1)}
_SIZES = {
    "B": 1,
    **{f"{letter}B": 1000**power for letter, power in _POWERS.items()},
    **{f"{letter}iB": 1024**power for letter, power in _POWERS.items()},
}
FACTORS: Mapping[Unit, Mapping[str, float]] = {
    "seconds": {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400},
    "bytes": _SIZES,
}
# What an error says is expected, and JSON schemas too.
SPELLINGS: Mapping[Unit, str] = {
    "seconds": "a time: seconds, or with a unit (ms, s, m, h, d) like 5m",
    "bytes": "a size: bytes, or with a unit (KB, MB, GB, KiB, MiB, GiB) like 8GB",
}
_ONE: Mapping[Unit, str] = {
    unit: rf"{_NUMBER} ?({'|'.join(sorted(factors, key=len, reverse=True))})"
    for unit, factors in FACTORS.items()
}
PATTERNS: Mapping[Unit, str] = {
    "seconds": rf"^({_ONE['seconds']})+$",
    "bytes": f"^{_ONE['bytes']}$",
}


def quantity(text: str, unit: Unit) -> float | None:
    """`text` in seconds or bytes; None where it is no such text. Bytes are whole."""
    if not re.match(PATTERNS[unit], text):
        return None
    factors = FACTORS[unit]
    found = sum(float(number) * factors[name] for number, name in re.findall(_ONE[unit], text))
    return round(found) if unit == "bytes" else found
