"""The configuration file as structs. Every default stands here, once; default.yaml documents it.

Times are seconds, sizes are bytes. A typo is an error: unknown fields are refused.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from config.commands import COMMAND
from config.engines import (
    CommandOptions,
    ExLlamaV2Options,
    ExLlamaV3Options,
    Host,
    LlamaCppOptions,
    Scaling,
    ScriptedOptions,
    TransformersOptions,
)
from config.mcp import McpConfig
from config.nodes import NodeConfig
from config.shape import represented
from config.upstreams import UpstreamConfig
from config.values import (
    HIDDEN,
    RUNS_CODE,
    SECRET,
    AtLeastOne,
    Budget,
    Bytes,
    Hidden,
    IdleSeconds,
    Name,
    NotNegative,
    PathText,
    Port,
    PositiveSeconds,
    Seconds,
    Secret,
)

Replicas: TypeAlias = (
    Annotated[int, Meta(ge=1, le=64)]
    | Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)]
)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of the file."""

    __repr__ = represented


class KeyConfig(Section, frozen=True):
    """One API key."""

    key: Secret
    role: Literal["user", "admin"] = "user"
    autoload: bool = True  # may cause a model to be loaded
    models: tuple[str, ...] = ()  # empty: all models
    loading_text: bool | None = None  # None: as `server.loading_text`
    label: Name | None = None  # what administrators see instead of the key; None: `key 1` and so on
    parallel: AtLeastOne | None = None  # requests at a time; None, here and below: no limit
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None  # of prompts and answers
    tokens_per_day: AtLeastOne | None = None  # from midnight UTC


class ServerConfig(Section, frozen=True):
    """Where to listen and how much to take."""

    host: str = "127.0.0.1"
    port: Port = 8000
    allow_open: bool = False  # listen beyond loopback without keys
    cors_origins: tuple[str, ...] = ()  # origins whose pages may call; "*": all
    hosts: tuple[Name, ...] = ()  # further names of this server, for when there are no keys
    trusted_proxies: tuple[Name, ...] = ("127.0.0.1", "::1")  # whose X-Forwarded-… are believed
    max_body: Bytes = 64 * 1024 * 1024
    max_held_bytes: Bytes = 256 * 1024 * 1024  # of all requests' long bodies and histories
    shutdown_grace: Seconds = 30.0  # running answers may finish for so long after SIGTERM
    max_choices: AtLeastOne = 256  # of one request: prompts times n
    max_tool_rounds: AtLeastOne = (
        16  # of a model and the tools that this server runs, in one answer
    )
    strict_sampling: bool = False  # refuse parameters the engine lacks; else a header names them
    allow_control_tokens: bool = False  # in a client's texts, in chat
    comment_after: Seconds = 10.0  # silence in a stream before a comment is sent
    loading_text: bool = False  # chat streams report their model's load as reasoning
    send_timeout: PositiveSeconds = 30.0  # a client that takes nothing for so long is cut off
    idle_timeout: PositiveSeconds = 75.0  # of a connection between two requests
    max_sockets: AtLeastOne = 32  # WebSockets of one key at a time
    max_message: Bytes = 16 * 1024 * 1024  # of a WebSocket
    socket_idle: PositiveSeconds = 900.0  # without a request, a WebSocket is closed after so long
    watch_config: bool = False  # read the configuration again whenever its file has changed


TURN = "one of "  # so begins what is no device, but has models take turns


class ModelConfig(Section, frozen=True):
    """One model by name. `options` belong to its backend (config/engines.py)."""

    name: Name
    path: PathText = ""  # only a command can do without
    backend: str | None = None  # None: recognised from the files
    # what serves it, see config/commands.py; never set by a request
    command: Annotated[str, RUNS_CODE, HIDDEN] | None = None
    options: Annotated[dict[str, Any], HIDDEN] = {}
    # how often it is loaded, each time on devices of its own; or the `host` of each replica
    replicas: Replicas = 1
    aliases: tuple[Name, ...] = ()
    # of the models with the same word here, one is in memory at a time
    one_of: Annotated[str, Meta(pattern="^[^/]+$")] | None = None
    pinned: bool = False  # never evicted, never idle
    preload: bool = False  # loaded at start
    ttl: IdleSeconds | None = (
        None  # idle seconds until it is unloaded; None: the engine's; -1: never
    )
    sampling: dict[str, Any] = {}  # defaults for requests that don't say
    # Another model that answers under this name, as this entry says: it is loaded once for both.
    of: Name | None = None
    system: str | None = None  # the system message of conversations that have none
    template_kwargs: dict[str, Any] = {}  # chat_template_kwargs that requests don't set
    mcp: tuple[Name, ...] = ()  # MCP servers whose tools it always has, by their names
    # LoRA adapters that count for requests that don't choose, by name, and their scales; no others
    lora: dict[str, Scaling] | None = None
    format: str | None = None  # output format (gateway/splitter/formats.py); None: recognised
    template: PathText | None = None  # file with a chat template in place of the model's own
    # reasoning of earlier turns stays in the prompt; auto: as the chat template does by itself
    keep_reasoning: Literal["auto"] | bool = "auto"

    @property
    def engine(self) -> str | None:
        """The backend that is named; None: recognised from the files."""
        return self.backend if self.command is None else COMMAND

    @property
    def turn(self) -> dict[str, int]:
        """Of which all that are `one_of` the same take all, so that they take turns."""
        return {} if self.one_of is None else {f"{TURN}{self.one_of}": 1}

    @property
    def each(self) -> "tuple[ModelConfig, ...]":
        """What is loaded: itself, or each of its replicas, as a model of its own."""
        if self.replicas == 1:
            return (self,)
        hosts = self.replicas if isinstance(self.replicas, tuple) else (None,) * self.replicas
        return tuple(
            msgspec.structs.replace(
                self,
                name=f"{self.name}@{number}",
                replicas=1,
                options=self.options if host is None else {**self.options, "host": host},
                aliases=(),
                preload=False,
            )
            for number, host in enumerate(hosts, 1)
        )


Parking: TypeAlias = Literal["auto", "always", "never"]


class SwapConfig(Section, frozen=True):
    """How models share memory and requests share models."""

    memory: dict[
        str, Budget
    ] = {}  # budget in bytes per device ("cpu", "cuda:0"); missing: measured
    max_waiting: NotNegative = 256  # requests in line over all models; more get a 429
    max_wait: Seconds = 120.0  # after so long in line a request's model comes next
    min_stay: Seconds = 5.0  # a model just loaded stays at least so long while others wait
    ttl: IdleSeconds = -1.0  # idle seconds until a model is unloaded; -1: never
    backoff: Seconds = 10.0  # after a failed load, doubled each time up to five minutes
    share: Literal["never", "auto"] = "auto"  # models that take turns give way to be kept together
    park: Parking = "auto"  # whose weights wait in main memory when they leave for others


class JoinConfig(Section, frozen=True):
    """Another Roundhouse that this server's models are offered at."""

    url: Name | None = None  # None: none
    key: Secret | None = None  # an administrator's there
    advertise: Name | None = None  # this server's base URL; None: the address that it is seen at
    name: Name = "joined"  # of the upstream there; servers of one name are its replicas
    prefix: str = ""  # stands before the names of this server's models there
    lease: PositiveSeconds = 30.0  # after its last sign of life, this server is listed for so long


class HubConfig(Section, frozen=True):
    """Where models are downloaded from, and where to."""

    endpoint: str | None = None  # None: HF_ENDPOINT, else https://huggingface.co
    folder: PathText | None = None  # None: the first of `model_dirs`
    cache: PathText | None = None  # the hub's local cache; None: where the hub's tools put it
    cached_models: bool = True  # what lies there can be asked for by its id
    deletion: bool = False  # administrators may delete models in `folder`


class ImagesConfig(Section, frozen=True):
    """Pictures in chat messages: how much is taken, and from where they are fetched."""

    max_count: NotNegative = 16  # of one request
    max_bytes: Bytes = 20 * 1024 * 1024  # of one picture, as it was sent
    max_pixels: AtLeastOne = 100_000_000  # of one request's pictures together; three bytes each
    max_held_bytes: Bytes = 512 * 1024 * 1024  # of all requests, as they were sent
    max_held_pixels: AtLeastOne = 300_000_000  # of all requests, decoded; more wait
    timeout: Seconds = 20.0  # for one picture, redirects included
    max_redirects: NotNegative = 3
    allow_remote: bool = True  # http: and https: URLs, besides data:
    allow_private_addresses: bool = False  # fetch also from this machine and its network


class StoreConfig(Section, frozen=True):
    """What is kept of responses and conversations for their clients, and of usage."""

    path: PathText | None = None  # a SQLite file; None: in memory, gone with the process
    max_age: Seconds = 30 * 86_400.0  # what is older is let go
    max_bytes: Bytes = 256 * 1024 * 1024  # of all together, shared among keys
    usage_max_age: Seconds = 400 * 86_400.0  # days of usage that are older are let go


class KeptConfig(Section, frozen=True):
    """Conversations that outlive their slots and models: computed beginnings of prompts."""

    memory: Literal["auto"] | Budget = "auto"  # auto: a quarter of what models may have of `cpu`
    folder: PathText | None = None  # where they are kept beyond a restart, too; None: nowhere
    size: Bytes = 20 * 1024**3  # of all files in `folder`
    share: bool = False  # a conversation of one API key may be gone on from by others
    encrypt: Annotated[str, SECRET] | None = None  # the files


class ApisConfig(Section, frozen=True):
    """Which APIs are spoken. What is switched off is not there (404)."""

    openai: bool = True
    anthropic: bool = True
    ollama: bool = True
    kobold: bool = True
    rerank: bool = True
    responses: bool = True
    tabby: bool = True
    llamaserver: bool = True
    tgi: bool = True
    cohere: bool = True


class ConsoleConfig(Section, frozen=True):
    """The page in a browser."""

    enabled: bool = True  # at /ui/; what it reads is there without it, too
    edit_config: bool = False  # administrators may write this file, so run programs as the server
    sync: bool = False  # browsers may keep their conversations in the store, by key
    model_paths: tuple[PathText, ...] = ()  # administrators may add models that lie below them


class InspectorConfig(Section, frozen=True):
    """What is kept in memory of the last requests, to be looked at: contents, never on a disk."""

    enabled: bool = True
    requests: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50  # of each key
    memory: Bytes = 64 * 1024 * 1024  # of all together; who holds most loses its oldest
    oversight: bool = True  # administrators see those of all keys; else each key its own alone


class LlamaServerConfig(Section, frozen=True):
    """What llama-server's clients get besides its API, by its own switches."""

    slots: bool = True  # GET /slots lists what each slot does
    slot_save_path: PathText | None = None  # slots are saved there; None: they can't be
    metric_names: bool = False  # GET /metrics has llama-server's names too
    stream_seconds: Seconds = 300.0  # a chat stream can be taken up again after its end; 0: none


class TracingConfig(Section, frozen=True):
    """Traces of requests for OpenTelemetry; needs the extra `otel`."""

    endpoint: Name | None = None  # OTLP over HTTP; None: no traces
    headers: dict[Name, Hidden] = {}  # of each export
    service: Name = "roundhouse"  # what this server is called
    # the part of the requests that is traced, of those without a parent
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0


class LogConfig(Section, frozen=True):
    """What is shown of what happens. Keys never appear, and prompts in no line of the log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "human", "json"] = "auto"  # auto: human in a terminal
    prompts: bool = False  # lists of requests show how each prompt ends


class EnginesConfig(Section, frozen=True):
    """Defaults for all models of an engine; a model's own `options` win."""

    host: Host | None = None  # of all engines that don't say otherwise; None: process
    # The list of the engines (`backends/<name>`), in the order of recognition: the first that reads
    # a model gets it, unless another one is named. exllamav2 and exllamav3 read plain safetensors
    # too, so they come after transformers, which leaves them EXL2 and EXL3.
    llamacpp: LlamaCppOptions = LlamaCppOptions()
    transformers: TransformersOptions = TransformersOptions()
    exllamav2: ExLlamaV2Options = ExLlamaV2Options()
    exllamav3: ExLlamaV3Options = ExLlamaV3Options()
    scripted: ScriptedOptions = ScriptedOptions()
    command: CommandOptions = CommandOptions()


class Config(Section, frozen=True):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    keys: tuple[KeyConfig, ...] = ()
    models: tuple[ModelConfig, ...] = ()
    model_dirs: tuple[PathText, ...] = ()
    upstreams: tuple[UpstreamConfig, ...] = ()  # servers elsewhere whose models are offered here
    nodes: tuple[NodeConfig, ...] = ()  # machines whose workers run models of this server
    mcp: tuple[McpConfig, ...] = ()  # MCP servers whose tools are run here, for models
    cluster: Name | None = None  # Ray's, whose nodes run models: its address, or auto; None: none
    cluster_tls: bool = False  # connections to the workers there are encrypted
    default_model: str | None = None  # None: the only model there is, else the first in `models`
    unknown_models: Literal["refuse", "default"] = "refuse"  # requests for a model that isn't there
    template_dir: PathText | None = None  # chat templates to switch to (NAME.jinja)
    preset_dir: PathText | None = None  # sampling overrides to switch to (NAME.yml)
    preset: str | None = None  # the overrides in force at start, by name
    engines: EnginesConfig = EnginesConfig()
    swap: SwapConfig = SwapConfig()
    join: JoinConfig = JoinConfig()
    hub: HubConfig = HubConfig()
    images: ImagesConfig = ImagesConfig()
    apis: ApisConfig = ApisConfig()
    llamaserver: LlamaServerConfig = LlamaServerConfig()
    store: StoreConfig = StoreConfig()
    kept: KeptConfig = KeptConfig()
    console: ConsoleConfig = ConsoleConfig()
    inspector: InspectorConfig = InspectorConfig()
    tracing: TracingConfig = TracingConfig()
    log: LogConfig = LogConfig()
