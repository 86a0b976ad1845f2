"""The search of a hub for models by words. The hub's list has no sizes of files: a model's size is
estimated by its parameters, until one looks into its repository.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from backends.contract.catalog import Catalog
from gateway.hub.repository import OfferedModel, Order, backend_of, library, refusal

ModelFormat: TypeAlias = Literal["gguf", "safetensors", "exl2", "exl3"]
Sorting: TypeAlias = Literal["downloads", "likes", "trending", "new"]

FORMATS: tuple[str, ...] = get_args(ModelFormat)  # the hub has a tag of that name for each
SORTINGS: Mapping[str, str] = {
    "downloads": "downloads",
    "likes": "likes",
    "trending": "trendingScore",
    "new": "createdAt",
}
DETAILS = ("downloads", "likes", "gguf", "safetensors", "tags", "pipeline_tag", "gated",
           "lastModified")  # fmt: skip
MOST = 60  # models of one answer
MOST_TAGS = 200
PATIENCE = 15.0  # seconds for the hub's answer
Q4_K_M = 4.89 / 8  # bytes of a parameter (llama.cpp, tools/quantize/README.md)
LARGEST = 2**53
LICENSE = "license:"
DATE = len("2026-01-01")
# Bytes of a parameter by safetensors' name of its type; four bits are packed in larger ones.
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for. `words` "": what many take now."""

    words: str = ""
    format: ModelFormat = "gguf"
    sort: Sorting = "downloads"


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that a hub lists. None: the hub doesn't say it. `size`: bytes, estimated: of
    GGUF files in Q4_K_M, else of the parameters as they are stored.
    """

    repository: str
    format: ModelFormat
    likes: int
    downloads: int
    gated: bool  # its terms are to be accepted first
    parameters: int | None
    size: int | None
    architecture: str | None
    context_length: int | None
    task: str | None
    license: str | None
    changed: str | None  # a date

    def offered(self, catalog: Catalog) -> OfferedModel | None:
        """As one that might be downloaded; None where its size is not known."""
        if self.size is None:
            return None
        backend = backend_of(f"model.{self.format}", catalog)
        return OfferedModel(
            name=None, model=self.repository, backend=backend, files=(), size=self.size
        )


def searched(endpoint: str | None, search: Search) -> list[FoundModel]:
    """What the hub at `endpoint` (None: huggingface.co) lists. Blocks. Raises ModelUnavailable
    where it can't be reached.
    """
    huggingface_hub = library()
    asked: dict[str, Any] = {
        "filter": search.format,
        "sort": SORTINGS[search.sort],
        "limit": MOST,
        "expand": list(DETAILS),
        **({"search": search.words} if search.words else {}),
    }
    tools = huggingface_hub.utils
    hub = huggingface_hub.HfApi(endpoint=endpoint).endpoint
    try:  # not by `list_models`, which tries a hub that is away for half a minute
        headers = tools.build_hf_headers(library_name="roundhouse")
        url = f"{hub}/api/models"
        answer = tools.get_session().get(url, params=asked, headers=headers, timeout=PATIENCE)
        tools.hf_raise_for_status(answer)
        listed = answer.json()
    except Exception as error:  # of whichever HTTP library huggingface_hub uses
        raise refusal(error, Order(repository="the search"), hub) from error
    return list(_found(listed if isinstance(listed, list) else [], search.format))


def _found(listed: list[Any], format: ModelFormat) -> Iterator[FoundModel]:
    """A hub may say anything: what has another type counts as not said."""
    for info in listed[:MOST]:
        name = info.get("id") if isinstance(info, dict) else None
        if not isinstance(name, str) or name.count("/") != 1:
            continue
        gguf, weights = _mapping(info.get("gguf")), _mapping(info.get("safetensors"))
        parameters = _count(gguf.get("total")) or _count(weights.get("total"))
        yield FoundModel(
            repository=name,
            format=format,
            likes=_count(info.get("likes")) or 0,
            downloads=_count(info.get("downloads")) or 0,
            gated=bool(info.get("gated")),
            parameters=parameters,
            size=_size(format, parameters, _mapping(weights.get("parameters"))),
            architecture=_text(gguf.get("architecture")),
            context_length=_count(gguf.get("context_length")),
            task=_text(info.get("pipeline_tag")),
            license=_license(info.get("tags")),
            changed=(_text(info.get("lastModified")) or "")[:DATE] or None,
        )


def _license(tags: object) -> str | None:
    named = tags[:MOST_TAGS] if isinstance(tags, list) else ()
    found = (tag for tag in named if isinstance(tag, str) and tag.startswith(LICENSE))
    return _text(next(found, "").removeprefix(LICENSE))


def _size(format: ModelFormat, parameters: int | None, stored: Mapping[str, object]) -> int | None:
    if format == "gguf":
        return None if parameters is None else int(parameters * Q4_K_M)
    if format != "safetensors":
        return None
    return (
        sum((_count(number) or 0) * BYTES.get(kind, 1) for kind, number in stored.items()) or None
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < LARGEST else None


def _text(value: object) -> str | None:
    return value[:100] if isinstance(value, str) and value else None
