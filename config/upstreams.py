"""Upstream servers whose models are offered here as our own: addresses, timeouts, parameters.

Times are seconds, sizes are bytes.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from config.errors import Problem, Source
from config.shape import represented
from config.values import (
    HIDDEN,
    NO_HEADER,
    AtLeastOne,
    Bytes,
    Hidden,
    Name,
    PathText,
    PositiveSeconds,
    Secret,
    fault,
    is_header,
    requested,
)

# What a request is made of: renamed, dropped or set it would be another request.
OWN_FIELDS = ("messages", "model", "n", "prompt", "stream")
# Headers that say how a body is framed, or whose the connection is.
_OWN_HEADERS = ("accept-encoding", "connection", "content-length", "host", "transfer-encoding")

Capability: TypeAlias = Literal["tools", "reasoning", "vision"]
ServerKind: TypeAlias = Literal[
    "koboldcpp",
    "llama-cpp-python",
    "llama-server",
    "ollama",
    "openai",
    "roundhouse",
    "sglang",
    "tabbyapi",
    "tgi",
    "vllm",
]
Weight: TypeAlias = Annotated[float, Meta(gt=0)]


class UpstreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server, or several replicas of it."""

    name: Name
    urls: tuple[Name, ...]  # base URLs as OpenAI's clients take them; several are replicas
    weights: tuple[Weight, ...] = ()  # of the replicas, in the order of `urls`; empty: all alike
    protocol: Literal["openai", "anthropic"] = "openai"  # anthropic: its Messages API
    server: ServerKind | None = None  # how it wants to be asked for shapes; None: by its list
    key: Secret | None = None
    keys: tuple[Secret, ...] = ()  # of the replicas, in the order of `urls`; empty: `key` for all
    pass_key: bool = False  # the client's own key goes to the upstream in place of `key`
    headers: dict[str, Hidden] = {}
    models: Literal["all"] | dict[Name, Name] = "all"  # ours: theirs; all: what `/models` lists
    prefix: str = ""  # stands before the names of discovered models
    refresh: PositiveSeconds = 60.0  # between two requests for `/models`
    fallbacks: tuple[Name, ...] = ()  # models asked instead, in turn, where no replica can answer
    capabilities: tuple[Capability, ...] | None = None  # None: as discovered, else unknown
    fetch_images: bool = False  # pictures behind URLs are fetched here, under the rules of `images`
    context_length: AtLeastOne | None = None  # tokens; None: as discovered, else unknown
    max_concurrent: AtLeastOne = 256  # requests of one model at a time; more wait in line
    split: Literal["there", "here"] = "there"  # here: completions, our template and splitter
    template: PathText | None = None  # file with a chat template, for `split: here`
    format: str | None = None  # output format for `split: here`; None: recognised
    max_tokens: AtLeastOne = 4096  # where a request names none and the protocol demands some
    rename: dict[Name, Name] = {}  # a request's parameters: our name to the upstream's
    drop: tuple[Name, ...] = ()  # parameters that are not handed on
    # parameters that each request gets, whatever the client says
    set: Annotated[dict[Name, Any], HIDDEN] = {}
    connect_timeout: PositiveSeconds = 5.0
    first_byte_timeout: PositiveSeconds = 300.0  # until the answer begins
    stall_timeout: PositiveSeconds = 60.0  # between two bytes of an answer
    total_timeout: PositiveSeconds = 3600.0  # the whole answer
    # of the last 20 requests within a minute, and most of them; then a replica gets no requests
    # until a probe succeeds
    failures: AtLeastOne = 3
    probe_interval: PositiveSeconds = 5.0  # between two probes of such a replica
    max_line: Bytes = 4 * 1024 * 1024  # of a stream
    max_body: Bytes = 64 * 1024 * 1024  # of an answer that isn't streamed
    max_total: Bytes = 256 * 1024 * 1024  # of a stream
    http2: bool = False
    proxy: Hidden | None = None
    ca_file: PathText | None = None  # certificates that are trusted; None: the usual ones

    __repr__ = represented


def completed(upstreams: tuple[UpstreamConfig, ...], source: Source) -> tuple[UpstreamConfig, ...]:
    """The upstreams checked, with whole base URLs. Raises ConfigError, which never quotes a key."""
    source.refuse_twins("upstreams", (upstream.name for upstream in upstreams))
    for index, upstream in enumerate(upstreams):
        source.refuse(f"$.upstreams[{index}]", _problems(upstream))
    return tuple(
        msgspec.structs.replace(one, urls=tuple(map(_base_url, one.urls))) for one in upstreams
    )


def _problems(upstream: UpstreamConfig) -> Iterator[Problem]:
    """What is inconsistent, and where."""
    if not upstream.urls:
        yield "urls", "at least one base URL is needed"
    if len(set(upstream.urls)) < len(upstream.urls):
        yield "urls", "the same URL is listed twice"
    if upstream.weights and len(upstream.weights) != len(upstream.urls):
        yield "weights", f"expected {len(upstream.urls)}, one for each URL"
    if upstream.keys and len(upstream.keys) != len(upstream.urls):
        yield "keys", f"expected {len(upstream.urls)}, one for each URL"
    if upstream.models == {}:
        yield "models", "expected 'all', or our names with the upstream's"
    if upstream.split == "here" and upstream.template is None:
        yield "template", "`split: here` needs the model's chat template"
    if upstream.split == "here" and upstream.protocol == "anthropic":
        yield "split", "`here` needs /completions, which Anthropic's API doesn't have"
    yield from problems_of_changes(rename=upstream.rename, drop=upstream.drop, set=upstream.set)
    yield from _problems_of_headers(upstream)
    yield from _problems_of_urls(upstream)


def _problems_of_urls(upstream: UpstreamConfig) -> Iterator[Problem]:
    if upstream.proxy is not None and (problem := fault(requested, upstream.proxy)) is not None:
        yield "proxy", problem
    for index, url in enumerate(upstream.urls):
        if (problem := fault(_base_url, url)) is not None:
            yield f"urls[{index}]", problem


def _problems_of_headers(upstream: UpstreamConfig) -> Iterator[Problem]:
    """Of keys, too, which are sent in one."""
    keys = {"key": upstream.key or "", **{f"keys[{k}]": one for k, one in enumerate(upstream.keys)}}
    for option, key in keys.items():
        if not (key.isascii() and key.isprintable()):
            yield option, "a key is one line of ASCII"
    for name, value in upstream.headers.items():
        if name.lower() in _OWN_HEADERS:
            yield f"headers.{name}", "this header belongs to the connection"
        if not is_header(name, value):
            yield f"headers.{name}", NO_HEADER


def problems_of_changes(**changes: Iterable[str]) -> Iterator[Problem]:
    """What must not be changed of a request, by the options that change fields of it."""
    for option, names in changes.items():
        for name in names:
            if name in OWN_FIELDS:
                yield f"{option}.{name}", "this field belongs to the request itself"


def _base_url(url: str) -> str:
    """`url` without a slash at its end; a server alone is asked under `/v1`. Raises ValueError."""
    parts = requested(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL holds no secrets here; write `key` instead")
    if parts.query or parts.fragment:
        raise ValueError("a base URL ends with its path, without ? or #")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
