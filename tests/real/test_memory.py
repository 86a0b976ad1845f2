"""What a real model is promised, against the process that uses all of it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.real import lab

pytestmark = pytest.mark.slow
WITHIN = 1.15
FORMS = {
    "llamacpp, 4 bits": ("llamacpp", lab.smollm2),
    "llamacpp, 16 bits": ("llamacpp", lab.smollm2_half),
    "transformers, 32 bits": ("transformers", lab.smollm2_folder),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_process_takes_what_was_promised(form: tuple[str, Callable[[], Path]]) -> None:
    backend, model = form
    command = [sys.executable, "-m", "tests.backends.memory_taken", backend, str(model())]

    done = subprocess.run(command, capture_output=True, check=True, timeout=900)

    taken = msgspec.json.decode(done.stdout)
    assert taken["resident"] / WITHIN < taken["estimate"] < taken["resident"] * WITHIN, taken
