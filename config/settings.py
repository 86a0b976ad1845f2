"""The configuration file as structs. Every default is written here, once, and documented in default.yaml.

Times are seconds, sizes are bytes. A typo is an error: unknown fields are refused.
"""

from typing import Any, Literal

import msgspec

from config.engines import (
    ExLlamaV2Options,
    LlamaCppOptions,
    ScriptedOptions,
    TransformersOptions,
)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of the file."""


class KeyConfig(Section, frozen=True):
    """One API key. `key` may be `env:NAME`, then the variable's value is the key."""

    key: str
    role: Literal["user", "admin"] = "user"
    autoload: bool = True  # may cause a model to be loaded
    models: tuple[str, ...] = ()  # empty: all models


class ServerConfig(Section, frozen=True):
    """Where to listen and how much to take."""

    host: str = "127.0.0.1"
    port: int = 8000
    allow_open: bool = False  # listen beyond loopback without keys
    cors_origins: tuple[str, ...] = ()  # origins whose pages may call; "*": all
    max_body: int = 64 * 1024 * 1024
    shutdown_grace: float = 30.0  # running answers may finish for so long after SIGTERM
    keep_alive_comment: float = 10.0  # silence in a stream before a comment is sent


class ModelConfig(Section, frozen=True):
    """One model by name. `options` belong to its backend (config/engines.py)."""

    name: str
    path: str
    backend: str | None = None  # None: recognised from the files
    options: dict[str, Any] = {}
    aliases: tuple[str, ...] = ()
    pinned: bool = False  # never evicted, never idle
    preload: bool = False  # loaded at start
    ttl: float | None = None  # idle seconds until it is unloaded; None: the engine's; -1: never
    sampling: dict[str, Any] = {}  # defaults for requests that don't say
    format: str | None = None  # output format (gateway/splitter/formats.py); None: recognised
    template: str | None = None  # file with a chat template in place of the model's own


class SwapConfig(Section, frozen=True):
    """How models share memory and requests share models."""

    memory: dict[str, int] = {}  # budget in bytes per device ("cpu", "cuda:0"); missing: measured
    max_waiting: int = 256  # requests in line over all models; more get a 429
    max_wait: float = 120.0  # after so long in line a request's model comes next
    min_stay: float = 5.0  # a model just loaded stays at least so long while others wait
    ttl: float = -1.0  # idle seconds until a model is unloaded; -1: never
    backoff: float = 10.0  # after a failed load, doubled each time up to five minutes


class LogConfig(Section, frozen=True):
    """What the log shows. Keys and prompts never appear."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "human", "json"] = "auto"  # auto: human in a terminal


class EnginesConfig(Section, frozen=True):
    """Defaults for all models of an engine; a model's own `options` win."""

    llamacpp: LlamaCppOptions = LlamaCppOptions()
    transformers: TransformersOptions = TransformersOptions()
    exllamav2: ExLlamaV2Options = ExLlamaV2Options()
    scripted: ScriptedOptions = ScriptedOptions()


class Config(Section, frozen=True):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    keys: tuple[KeyConfig, ...] = ()
    models: tuple[ModelConfig, ...] = ()
    model_dirs: tuple[str, ...] = ()
    default_model: str | None = None  # None: the only model there is, else the first in `models`
    engines: EnginesConfig = EnginesConfig()
    swap: SwapConfig = SwapConfig()
    log: LogConfig = LogConfig()
