"""A load warns where others may change a file while it is mapped."""

import shutil
from pathlib import Path

import pytest

import bundled
from tests.served import Serve


@pytest.mark.parametrize("mapped", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_log_says_so_where_it_is_mapped(mapped: bool, tmp_path: Path, serve: Serve) -> None:
    model = Path(shutil.copy(bundled.GGUF, tmp_path))
    model.chmod(0o666)
    entry = {"name": "m", "path": str(model), "preload": True, "options": {"mmap": mapped}}
    server = serve({"models": [entry], "log": {"format": "json"}})
    server.log.wait_for("model loaded")
    warned = server.log.records("other users may write to a mapped model")
    assert len(warned) == mapped
    for record in warned:
        assert record["writable"] == str(model.resolve())
        assert "mmap: false" in record["remedy"]
