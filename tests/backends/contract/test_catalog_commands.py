"""The command that is named where something is missing is one that works there."""

from pathlib import Path

import pytest

from backends.contract.catalog import SCRIPT, absent, command
from backends.machine.prebuilt import compiling, gain


def test_a_checkout_has_its_script() -> None:
    assert SCRIPT.is_file()
    assert command("transformers") == "scripts/install transformers"


def test_elsewhere_an_index_has_it(tmp_path: Path) -> None:
    nowhere = {"script": tmp_path / "no", "receipt": tmp_path / "no.toml"}
    assert command("llamacpp", **nowhere) == "pip install 'roundhouse-llm[llamacpp]'"
    assert command("transformers", **nowhere) == "pip install 'roundhouse-llm[transformers]'"


REQUIREMENT = '{ name = "roundhouse-llm", extras = ["llamacpp"]%s }'


@pytest.mark.parametrize(
    ("place", "origin"),
    [
        (', path = "/dist/roundhouse.whl"', " @ /dist/roundhouse.whl"),
        (', url = "https://example.org/r.whl"', " @ https://example.org/r.whl"),
        (', git = "https://example.org/r?rev=v1"', " @ git+https://example.org/r?rev=v1"),
        ("", ""),
    ],
)
def test_a_tool_of_uv_is_installed_with_all_its_extras_from_where_it_came(
    place: str, origin: str, tmp_path: Path
) -> None:
    receipt = tmp_path / "uv-receipt.toml"
    receipt.write_text(f"[tool]\nrequirements = [{REQUIREMENT % place}]\n")
    found = command("transformers", script=tmp_path / "no", receipt=receipt)
    start = "uv tool install --force"
    assert found == f"{start} 'roundhouse-llm[llamacpp,transformers]{origin}'"


def test_llama_cpp_is_compiled_by_a_command_that_works_there(tmp_path: Path) -> None:
    assert compiling() == "scripts/install --build llamacpp"
    card = "CMAKE_ARGS=-DGGML_CUDA=on"
    assert compiling("-DGGML_CUDA=on") == f"{card} scripts/install llamacpp"
    nowhere, receipt = tmp_path / "no", tmp_path / "uv-receipt.toml"
    with_pip = compiling("-DGGML_CUDA=on", script=nowhere, receipt=receipt)
    assert with_pip.startswith(f"{card} pip install --force-reinstall --no-cache-dir --no-binary")
    receipt.touch()
    with_uv = compiling(script=nowhere, receipt=receipt)
    assert with_uv.startswith(f"uv pip install --python {tmp_path} --reinstall --no-cache-dir")


def test_what_compiling_gains_is_said_by_the_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx2 fma\n")
    assert "gains little" in gain(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu avx2 avx512f amx_tile\n")
    assert "AVX-512 and AMX: compiled" in gain(cpuinfo)
    assert compiling() in gain(tmp_path / "none")


def test_what_is_not_installed_is_found_without_an_import() -> None:
    assert tuple(absent(("pytest", "no-such-package-anywhere"))) == ("no-such-package-anywhere",)
