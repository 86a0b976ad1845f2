"""Names that clients choose stay in their folder."""

from pathlib import Path

import pytest

from gateway.terms.errors import InvalidRequest
from gateway.terms.paths import within


@pytest.mark.parametrize("name", ["a", "a/b", "a.b", "org--name@x", "ä b"])
def test_plain_names_are_paths(name: str, tmp_path: Path) -> None:
    assert within(tmp_path, name, "name") == tmp_path / name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/../../b", "/a", "a\\b", "C:\\a", ".a", "a/.b", "a\0", "a\n"]
)
def test_others_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        within(tmp_path, name, "name")
    assert refused.value.param == "name"


def test_links_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    with pytest.raises(InvalidRequest):
        within(tmp_path / "root", "link/a", "name")
