"""`roundhouse check hf:…` tells what a model needs, of which only the headers came."""

import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio import to_thread

import bundled
from gateway.hub.beginnings import LONGEST, SHORTEST, WHOLE
from tests.gateway.hub.standin import StandIn, standin
from tests.served import command

pytestmark = pytest.mark.anyio

COUNTS = 24  # bytes: "GGUF", the version, how many tensors and entries


def gguf(described: int) -> bytes:
    """A GGUF file of more than `WHOLE`, with an entry of `described` bytes in front."""
    data = bundled.GGUF.read_bytes()
    magic, version, tensors, entries = struct.unpack_from("<4sIQQ", data)
    key = b"general.description"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, described) + b"x" * described
    head = struct.pack("<4sIQQ", magic, version, tensors, entries + 1) + entry
    return head + data[COUNTS:] + bytes(max(1, WHOLE - described))


@pytest.fixture
async def stand() -> AsyncIterator[StandIn]:
    async with standin({}) as running:
        yield running


async def checked(folder: Path, model: str, hub: StandIn) -> tuple[int, str, str]:
    """The status; the model's row behind its name, and the last line."""
    environment = {"HF_ENDPOINT": hub.url}
    with command("check", model, folder=folder, environment=environment) as process:
        status = await to_thread.run_sync(process.status)
    assert "Traceback" not in process.log.text
    _, table, *lines = process.out.text.partition("FITS")[2].splitlines()
    return status, table.split(maxsplit=1)[1], lines[-1] if lines else ""


@pytest.mark.parametrize("ranges", [True, False])
async def test_needs_are_those_of_the_whole_file_and_its_header_comes_alone(
    ranges: bool, stand: StandIn, tmp_path: Path
) -> None:
    data = gguf(described=2 * SHORTEST)
    stand.add("m-Q4_K_M.gguf", data)
    stand.ranges = ranges
    (tmp_path / "here.gguf").write_bytes(data)
    status, row, _ = await checked(tmp_path, "here.gguf", stand)
    assert status == 0
    told = "org/small: not downloaded yet; `serve` downloads hf:org/small:Q4_K_M"
    assert await checked(tmp_path, "hf:org/small", stand) == (0, row, told)
    asked = [line.partition("bytes=")[2] for line in stand.asked if "resolve" in line]
    assert asked == [f"0-{SHORTEST - 1}", f"0-{4 * SHORTEST - 1}"]


async def test_folders_are_told_by_their_settings(stand: StandIn, tmp_path: Path) -> None:
    for path in bundled.SAFETENSORS.iterdir():
        stand.add(path.name, path.read_bytes())
    stand.add("model.safetensors", stand.files["model.safetensors"] + bytes(WHOLE))
    (tmp_path / "here").mkdir()
    for name, data in stand.files.items():
        (tmp_path / "here" / name).write_bytes(data)
    _, row, _ = await checked(tmp_path, "here", stand)
    status, there, _ = await checked(tmp_path, "hf:org/small", stand)
    assert (status, there) == (0, row)


async def test_what_a_hub_can_not_tell_is_said(stand: StandIn, tmp_path: Path) -> None:
    unknown = "org/small: not downloaded yet; what it needs isn't known: "
    stand.add("m.gguf", gguf(described=LONGEST + 1))
    assert await told(stand, tmp_path) == f"{unknown}org/small:m has a header of more than 64 MiB"
    stand.add("m.gguf", gguf(described=1))
    stand.troubles["m.gguf"] = [503]
    assert await told(stand, tmp_path) == f"{unknown}127.0.0.1 answered 503 for m.gguf"
    stand.troubles["m.gguf"] = [0]
    assert (await told(stand, tmp_path)).startswith(f"{unknown}m.gguf could not be downloaded: ")
    stand.url = "http://127.0.0.1:9"
    assert (await told(stand, tmp_path)).startswith(f"{unknown}can't reach http://127.0.0.1:9: ")


async def told(stand: StandIn, folder: Path) -> str:
    environment = {"HF_ENDPOINT": stand.url}
    with command("check", "hf:org/small", folder=folder, environment=environment) as process:
        await to_thread.run_sync(process.status)
    assert "Traceback" not in process.log.text
    return process.out.text.splitlines()[-1]
