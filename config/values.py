"""Annotated types of option values, with their limits, which the JSON schema has too; how they are
written, and where this program keeps what it makes for itself. Knows no option.

Times (seconds) and sizes (bytes) may be written as people do: `5m`, `1h30m`, `8GB`, `24GiB`.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta, Struct

Made = TypeVar("Made", bound=Struct)

Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]  # 0: any free one

# A number that may be written with a unit, see `quantity`.
TIME, SIZE = Meta(extra={"unit": "seconds"}), Meta(extra={"unit": "bytes"})
Seconds: TypeAlias = Annotated[float, Meta(ge=0), TIME]
PositiveSeconds: TypeAlias = Annotated[float, Meta(gt=0), TIME]
IdleSeconds: TypeAlias = Annotated[float, Meta(ge=-1), TIME]  # -1: never
Bytes: TypeAlias = Annotated[int, Meta(ge=1), SIZE]
Budget: TypeAlias = Annotated[int, Meta(ge=0), SIZE]  # bytes
AtLeastOne: TypeAlias = Annotated[int, Meta(ge=1)]
# What engines count in 32 bits: a larger number would reach them as another one.
Counted: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
NotNegative: TypeAlias = Annotated[int, Meta(ge=0)]
# ggml takes 512 at most (GGML_MAX_N_THREADS)
Threads: TypeAlias = Annotated[int, Meta(ge=1, le=512)] | Literal["auto", "all"]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]

# What may be written as the place of a secret instead, see config/secrets.py.
SECRET = Meta(extra={"secret": True})
Secret: TypeAlias = Annotated[str, Meta(min_length=1), SECRET]

# What may hold a secret, though it is written as it is.
HIDDEN = Meta(extra={"hidden": True})
Hidden: TypeAlias = Annotated[str, HIDDEN]

# An option that runs code which comes with a model. As with files, a request may not set it.
RUNS_CODE = Meta(extra={"runs_code": True})

# The name of another model, or a file or folder. As with files, a request may not set it.
DRAFT_MODEL = Meta(min_length=1, extra={"runs_code": True})

# A file or folder: `~` is the home, a relative one starts at the folder of the configuration file.
# A text with a scheme (https://…, hf:owner/name) is no path and stays as it is written.
PathText: TypeAlias = Annotated[str, Meta(min_length=1, extra={"path": True})]


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
    "bytes": "a size: bytes, or with a unit (KiB, MiB, GiB; or KB, MB, GB) like 8GiB",
}
_ONE: Mapping[Unit, str] = {
    unit: rf"{_NUMBER} ?({'|'.join(sorted(factors, key=len, reverse=True))})"
    for unit, factors in FACTORS.items()
}
PATTERNS: Mapping[Unit, str] = {
    "seconds": rf"^({_ONE['seconds']})+$",
    "bytes": f"^{_ONE['bytes']}$",
}


def fault(read: Callable[[str], object], text: str) -> str | None:
    """The text of the ValueError that `read` raises for `text`; None: it takes it."""
    try:
        read(text)
    except ValueError as error:
        return str(error)
    return None


GIB, MIB = 2**30, 2**20
UNITS = 100  # so few are no bytes, but shares of what only makes models take turns


def gibibytes(size: int) -> str:
    """`5.1 GiB`; small sizes in MiB, so that a small model isn't 0.0."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{max(size / MIB, min(size, 0.1)):.1f} MiB"


def command_fault(read: Callable[[], object]) -> str | None:
    """What is wrong with a command line that `read` divides into words; None: it can be run."""
    try:
        return None if read() else "a command is needed"
    except ValueError as error:
        return f"not a command line: {error}"


def quantity(text: str, unit: Unit) -> float | None:
    """`text` in seconds or bytes; None where it is no such text. Bytes are whole."""
    if not re.match(PATTERNS[unit], text):
        return None
    factors = FACTORS[unit]
    found = sum(float(number) * factors[name] for number, name in re.findall(_ONE[unit], text))
    return round(found) if unit == "bytes" else found


def alike(kind: type[Made], value: object) -> Callable[..., Made]:
    """`kind`, a struct, with what `value` has by the same names; a call gives the other fields, and
    those in which they differ.
    """
    names = [name for name in kind.__struct_fields__ if hasattr(value, name)]
    return partial(kind, **{name: getattr(value, name) for name in names})


def user_folder() -> Path:
    """Ours in the user's cache folder (XDG Base Directory Specification); it may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "roundhouse"


NO_HEADER = "not a header: a name of letters, a value in one line of ASCII"
_HEADER = re.compile(r"[A-Za-z0-9_-]+")


def is_header(name: str, value: str) -> bool:
    """Whether HTTP takes it as one."""
    plain = value.isascii() and value.isprintable()
    return plain and _HEADER.fullmatch(name) is not None


UNIX = "unix:"  # and a path: an address of this machine alone (unix(7))
LONGEST_URL = 2048  # characters


def requested(url: str) -> SplitResult:
    """The parts of a URL that requests can be sent to, by what sends them. Raises ValueError with
    the reason.
    """
    import httpx  # noqa: PLC0415 - takes a tenth of a second, and many configurations have no URL

    if len(url) > LONGEST_URL:
        raise ValueError(f"not a URL: it has more than {LONGEST_URL} characters")
    if not url.isprintable() or " " in url:
        raise ValueError("not a URL: it contains a space, or a character that isn't shown")
    try:
        _, parts = httpx.URL(url).host, urlsplit(url)
        _ = parts.port
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected a URL like http://host:8000/v1")
    return parts


HUB = "hf:"  # before the name of a model on a hub; gateway.hub.repository has what lists its models


def is_on_hub(text: str) -> bool:
    """Whether `text` is no path but names a model on a hub."""
    return text.startswith(HUB)


def hub_id(text: str) -> str:
    """The id on the hub of what may be named with the hub before it."""
    return text.removeprefix(HUB)
