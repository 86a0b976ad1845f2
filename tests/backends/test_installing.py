"""The command that is named where something is missing is one that works there."""

from pathlib import Path

from backends.catalog import SCRIPT, absent, command


def test_a_checkout_has_its_script() -> None:
    assert SCRIPT.is_file()
    assert command("transformers") == "scripts/install transformers"


def test_elsewhere_an_index_has_it(tmp_path: Path) -> None:
    alone = "CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install 'roundhouse[llamacpp]'"
    assert command("llamacpp", script=tmp_path / "no") == alone
    ours = "pip install 'roundhouse[transformers]'"
    assert command("transformers", script=tmp_path / "no") == ours


def test_what_is_not_installed_is_found_without_an_import() -> None:
    assert tuple(absent(("pytest", "no-such-package-anywhere"))) == ("no-such-package-anywhere",)
