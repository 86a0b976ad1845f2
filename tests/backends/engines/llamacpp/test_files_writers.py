"""A load warns where others may change a file while it is mapped."""

import os
import shutil
from pathlib import Path

import pytest

import bundled
from backends.machine.writers import changeable
from tests.served import Serve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir(mode=0o755)
    shutil.copy(bundled.GGUF, folder / "tiny.gguf")
    (folder / "tiny.gguf").chmod(0o644)
    return folder / "tiny.gguf"


def test_what_only_its_user_may_write_is_no_danger(model: Path) -> None:
    assert changeable([model]) is None
    model.chmod(0o664)  # the umask of systems on which each user has a group
    assert changeable([model]) is None


def test_a_file_and_its_folder_are_looked_at(model: Path) -> None:
    model.chmod(0o666)
    assert changeable([bundled.GGUF, model]) == model.resolve()
    model.chmod(0o644)
    model.parent.chmod(0o777)
    assert changeable([model]) == model.parent.resolve()
    model.parent.chmod(0o1777)  # as /tmp: nobody replaces what is another's
    assert changeable([model]) is None


def test_a_link_is_followed(model: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    model.chmod(0o666)
    assert changeable([link]) == model.resolve()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_its_owner_may_write_too(model: Path) -> None:
    os.chown(model, 12_345, -1)
    assert changeable([model]) == model.resolve()
    os.chown(model, 0, 12_345)
    model.chmod(0o664)
    assert changeable([model]) == model.resolve()


@pytest.mark.parametrize("mapped", [True, False])
def test_the_log_says_so_where_it_is_mapped(mapped: bool, model: Path, serve: Serve) -> None:
    model.chmod(0o666)
    entry = {"name": "m", "path": str(model), "preload": True, "options": {"mmap": mapped}}
    server = serve({"models": [entry], "log": {"format": "json"}})
    server.log.wait_for("model loaded")
    warned = server.log.records("other users may write to a mapped model")
    assert len(warned) == mapped
    for record in warned:
        assert record["writable"] == str(model.resolve())
        assert "mmap: false" in record["remedy"]
