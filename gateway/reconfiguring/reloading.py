"""The configuration in force, and its replacement while the server runs.

A new configuration is read and checked whole before anything changes; what follows from it is then
put in force at once, between two steps of the event loop. Knows no HTTP and no signals.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
import structlog
from anyio import to_thread

from config.changes import differences, in_force
from config.errors import ConfigError, Source
from config.loader import OptionOrigin
from config.models import check_names
from config.settings import Config, ModelConfig
from config.shape import Option
from config.upstreams import UpstreamConfig
from gateway.hub.hub import cached_models
from gateway.registry import ModelChanges, PreparedModels, Registry
from gateway.terms.errors import InvalidRequest, NotFound
from gateway.terms.tasks import companions

POLL_EVERY = 1.0  # seconds between checks of a file that is watched
RESTS = 2  # checks that find it as it was before: editors and copies write in pieces
LAST_KEY = (
    "no key is left, so that every client would be an administrator: only a start puts that in "
    "force, no reload"
)

Apply: TypeAlias = Callable[[], None]
# Checks what a part of the server needs of a configuration, and gives what puts it in force there.
# May block; raises ConfigError, as at the start.
Follow: TypeAlias = Callable[[Config], Apply]
Stamp: TypeAlias = tuple[int, int, int] | None  # inode, bytes, time of change in ns; None: gone

log = structlog.get_logger(__name__)


class Explained(msgspec.Struct, frozen=True):
    """The configuration file as it is written, and where each option's value comes from."""

    text: str | None
    origins: Mapping[Option, OptionOrigin]


class ConfigSource(msgspec.Struct, frozen=True):
    """Where configurations come from. `read` blocks and raises ConfigError; `file` may be watched:
    None where there is none. `understand` reads a text as if it were the file's; `explain` gives
    where values come from. Both as `read`.
    """

    read: Callable[[], Config]
    file: Path | None = None
    understand: Callable[[str], Config] | None = None
    explain: Callable[[], Explained] = lambda: Explained(None, {})


class ReloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload changed, or would: options by their dotted names, models by theirs."""

    applied: bool
    changed: tuple[str, ...]  # options now in force
    restart: tuple[str, ...]  # options that stay as they were until the server is started again
    models: ModelChanges


class ModelCopy(msgspec.Struct, frozen=True):
    """A model that was added while the server runs: another one's files under a name of its own.

    `original`: the name under which the configuration then has to list the original, if it doesn't:
    files that it names are not found in folders any more.
    """

    of: str
    model: ModelConfig
    original: ModelConfig | None = None


Copies: TypeAlias = Mapping[str, ModelCopy]  # by name
Upstreams: TypeAlias = tuple[UpstreamConfig, ...]


class Reloader:
    """One per server. `config` is what is in force: what is written, and what was added since."""

    def __init__(self, config: Config, source: ConfigSource | None = None) -> None:
        """Without a `source` nothing can be read again."""
        self.config = self._written = config
        self.source = source
        self._one_at_a_time = anyio.Lock()
        self._asked = anyio.Event()
        self._watches = False
        self._first = self._stamp()  # what is written from now on is a change
        self._copies: Copies = {}
        self._announced: Upstreams = ()

    def begin(
        self,
        registry: Registry,
        follow: Follow,
        notify: Callable[[ReloadReport], None],
    ) -> None:
        """What follows the configuration from now on: models, and with `follow` the rest. `notify`
        is called when another one is in force.
        """
        self._registry, self._follow, self._notify = registry, follow, notify

    async def reload(self, *, plan: bool = False) -> ReloadReport:
        """Read the configuration again and put it in force, or with `plan` only report what that
        would do. Raises InvalidRequest where it can't be used; then nothing has changed.
        """
        if self.source is None:
            raise InvalidRequest("this server was not started from a configuration")
        async with self._one_at_a_time:
            try:
                report, apply = await self._planned(self.source.read)
            except ConfigError as error:
                raise InvalidRequest(str(error), param=error.path) from error
            if plan:
                return report
            apply()
            report = msgspec.structs.replace(report, applied=True)
            self._notify(report)
            return report

    async def check(self, text: str) -> ReloadReport:
        """What a reload would do if the file held `text`. Raises ConfigError where it can't be
        used, InvalidRequest where there is nothing to read again.
        """
        if self.source is None or (understand := self.source.understand) is None:
            raise InvalidRequest("this server was not started from a configuration")
        async with self._one_at_a_time:
            report, _ = await self._planned(lambda: understand(text))
            return report

    async def _planned(self, read: Callable[[], Config]) -> tuple[ReloadReport, Apply]:
        """What a configuration that is not in force yet would do, and what has it done. Raises
        ConfigError.
        """
        new = await to_thread.run_sync(read)
        running = in_force(self._written, new)
        prepared, apply = await self._prepared(running, self._copies, self._announced)
        if self.config.keys and not new.keys:
            raise ConfigError("the configuration", "$.keys", LAST_KEY)
        found = differences(self.config, _whole(new, self._copies, self._announced))
        report = ReloadReport(
            applied=False,
            changed=found["live"] + found["models"],
            restart=found["restart"],
            models=prepared.changes,
        )
        return report, apply

    @property
    def copies(self) -> Mapping[str, str]:
        """Models that were added while the server runs, and the original of each."""
        return {name: copy.of for name, copy in self._copies.items()}

    @property
    def originals(self) -> tuple[ModelConfig, ...]:
        """Models of which there are copies, and which the configuration itself doesn't name."""
        return tuple(one.original for one in self._copies.values() if one.original is not None)

    async def add(self, copy: ModelCopy) -> None:
        """One more model, until the server is started again. Raises InvalidRequest where it can't
        be.
        """
        async with self._one_at_a_time:
            await self._put({**self._copies, copy.model.name: copy}, self._announced)

    async def remove(self, name: str) -> None:
        """Without a model that was added. Raises NotFound."""
        async with self._one_at_a_time:
            if name not in self._copies:
                raise NotFound(f"{name!r:.200} is not a copy made on this server.", param="model")
            copies = {key: one for key, one in self._copies.items() if key != name}
            await self._put(copies, self._announced)

    async def announce(self, upstreams: Upstreams) -> None:
        """These upstreams besides those of the configuration, in place of those before. Raises
        InvalidRequest where the configuration has one of the name.
        """
        async with self._one_at_a_time:
            names = {one.name for one in self._written.upstreams}
            if taken := [one.name for one in upstreams if one.name in names]:
                raise InvalidRequest.at("name", f"The configuration has an upstream {taken[0]!r}.")
            await self._put(self._copies, upstreams)

    async def _put(self, copies: Copies, announced: Upstreams) -> None:
        """Put in force besides what is written. Raises InvalidRequest."""
        try:
            if copies is not self._copies:
                source = Source("the configuration")
                check_names(_whole(self._written, copies, announced), source)
            _, apply = await self._prepared(self._written, copies, announced)
        except ConfigError as error:
            raise InvalidRequest(error.problem, param=error.path) from error
        apply()

    async def _prepared(
        self, written: Config, copies: Copies, announced: Upstreams
    ) -> tuple[PreparedModels, Apply]:
        """What puts that in force: everything that may refuse it has agreed. Raises ConfigError."""
        config = _whole(written, copies, announced)

        def prepare() -> tuple[PreparedModels, Apply]:
            apply_rest = self._follow(config)
            return self._registry.prepare(config, cached_models(config)), apply_rest

        models, apply_rest = await to_thread.run_sync(prepare, abandon_on_cancel=True)

        def apply() -> None:
            self.config, self._written = config, written
            self._copies, self._announced = copies, announced
            apply_rest()
            self._registry.apply(models, config)

        return models, apply

    def ask(self) -> None:
        """Reload soon; the log has the result. On the event loop."""
        self._asked.set()

    async def run(self) -> None:
        """For ever: do what was asked for, and watch the file while the configuration says so."""
        async with companions() as tasks:
            if self.source is not None and self.source.file is not None:
                tasks.start_soon(self._watch)
            while True:
                await self._asked.wait()
                self._asked = anyio.Event()
                await self._reload_and_log()

    async def _reload_and_log(self) -> None:
        try:
            done = await self.reload()
        except InvalidRequest as error:
            log.warning("reload failed: the configuration is unchanged", reason=error.message)
            return
        except Exception:  # the server outlives whatever is wrong with a file
            log.exception("reload failed: the configuration is unchanged")
            return
        changes = {"changed": done.changed, "restart": done.restart}
        changes |= msgspec.structs.asdict(done.models)
        log.info(
            "configuration reloaded", **{what: names for what, names in changes.items() if names}
        )

    async def _watch(self) -> None:
        """Whatever a reload makes of `watch_config`, the next start alone ends it: a file that is
        cut short is still watched when it is whole again.
        """
        read = seen = self._first
        rests = 0
        while True:
            await anyio.sleep(POLL_EVERY)
            now = await to_thread.run_sync(self._stamp)
            read = read or now  # it is watched only now
            rests = rests + 1 if now == seen else 0
            if now is not None and rests >= RESTS and now != read:
                read = now
                self.ask()
            seen = now

    def _stamp(self) -> Stamp:
        """None while the file isn't watched, too. Blocks."""
        self._watches = self._watches or self.config.server.watch_config
        if self.source is None or self.source.file is None or not self._watches:
            return None
        try:
            status = self.source.file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


def _whole(config: Config, copies: Copies, announced: Upstreams) -> Config:
    """`config` with what was added, but for those whose names it has itself."""
    taken = {name for model in config.models for name in (model.name, *model.aliases)}
    kept = [one for name, one in copies.items() if name not in taken]
    originals = {one.original.name: one.original for one in kept if one.original is not None}
    added = (
        *(one for name, one in originals.items() if name not in taken),
        *(one.model for one in kept),
    )
    upstreams = {one.name for one in config.upstreams}
    joined = (one for one in announced if one.name not in upstreams)
    return msgspec.structs.replace(
        config, models=(*config.models, *added), upstreams=(*config.upstreams, *joined)
    )
