"""Who else may write to a file, or to the folder that it is in."""

import os
import shutil
from pathlib import Path

import pytest

import bundled
from backends.machine.writers import changeable


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
