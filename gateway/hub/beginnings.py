"""The beginnings of a model's files on a hub: they tell what it needs before it is downloaded."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from backends.contract.catalog import Catalog
from backends.contract.errors import HeaderCutOff, LoadFailed
from gateway.hub.downloads import failure
from gateway.hub.repository import Fits, HuggingFace, Order, RemoteFile, Selection, selected
from gateway.terms.errors import ModelUnavailable
from gateway.terms.paths import within

WHOLE = 16 << 20  # bytes of a file that is brought whole: of settings, say
SHORTEST, LONGEST = 1 << 20, 64 << 20  # bytes of the beginnings of others
SILENCE = 30.0  # seconds


def begun(source: HuggingFace, order: Order, folder: Path, catalog: Catalog, fits: Fits) -> str:
    """Puts the files of what `order` means into `folder`, with their sizes: of a large one there is
    only what has its header, the rest is a hole. Returns what a download of it is asked by. Blocks.

    Raises as `Hub.download`.
    """
    found = source.listing(order)
    chosen = selected(order, found, catalog, fits)
    paths = {within(folder, file.name, "repo_id"): file for file in chosen.files}
    with httpx.Client(follow_redirects=True, timeout=SILENCE) as client:
        for length in _lengths(folder, catalog, chosen):
            for path, file in paths.items():
                _bring(client, file, path, found.headers, length)
    for path, file in paths.items():
        os.truncate(path, file.size)
    return chosen.model


def _lengths(folder: Path, catalog: Catalog, chosen: Selection) -> Iterator[int]:
    """Of beginnings, until they have the headers. Raises ModelUnavailable."""
    length = SHORTEST
    while length <= LONGEST:
        yield length
        try:
            catalog.recognise(folder)
        except HeaderCutOff:
            length *= 4
        except LoadFailed:  # it lacks what comes behind the header
            return
        else:
            return
    raise ModelUnavailable(f"{chosen.model} has a header of more than {LONGEST >> 20} MiB")


def _bring(
    client: httpx.Client, file: RemoteFile, path: Path, headers: Mapping[str, str], length: int
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = file.size if file.size <= WHOLE else length
    if path.exists() and path.stat().st_size == wanted:
        return
    asked = {**headers, "accept-encoding": "identity", "range": f"bytes=0-{wanted - 1}"}
    try:
        with path.open("wb") as disk, client.stream("GET", file.url, headers=asked) as response:
            response.raise_for_status()
            for piece in response.iter_bytes(SHORTEST):  # all of it, where ranges aren't known
                if disk.tell() < wanted:
                    disk.write(piece[: wanted - disk.tell()])
                if disk.tell() == wanted:
                    return
    except httpx.HTTPError as error:
        raise ModelUnavailable(failure(error, file)[0]) from error
    raise ModelUnavailable(f"{file.name}: fewer bytes came than the hub lists")
