"""Runs a module of this package in a process of its own, with JSON in and out."""

import subprocess
import sys
from typing import TypeVar

import msgspec

from benchmarks.peers import ROOT

Result = TypeVar("Result")


def run(
    module: str, order: msgspec.Struct, kind: type[Result], patience: float, *arguments: str
) -> Result:
    """`python -m module` with `order` as JSON on its input and a `kind` as JSON on its output.

    Raises CalledProcessError when it fails and TimeoutExpired after `patience` seconds. What it has
    to say goes to stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        input=msgspec.json.encode(order),
        stdout=subprocess.PIPE,
        timeout=patience,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=kind)
