"""ik_llama.cpp's wheel: whether what is installed is the release that was tried. Imports none of
it.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from backends.contract.catalog import command

PACKAGE, TRIED = "ik-llama-cpp-python", "0.1.5"


@cache
def missing() -> str:
    """Why it can't be used here; "" where it can."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        return f"{PACKAGE} isn't installed: {command('ik')}"
    if found != TRIED:  # its structs differ from release to release
        return f"{PACKAGE} is {found}, and {TRIED} is wanted: {command('ik')}"
    return ""


def described() -> str:
    """Of the installed release, for people."""
    return f"{PACKAGE} {TRIED} for files of its own, and on processors where it is faster"
