"""Annotated types of option values, with their limits, which the JSON schema has too."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]  # 0: any free one

# A number that may be written with a unit, see config/units.py.
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

# An option that runs code which comes with a model. As with files, a request may not set it.
RUNS_CODE = Meta(extra={"runs_code": True})

# A file or folder: `~` is the home, a relative one starts at the folder of the configuration file.
# A text with a scheme (https://…, hf:owner/name) is no path and stays as it is written.
PathText: TypeAlias = Annotated[str, Meta(min_length=1, extra={"path": True})]
