"""The configuration for administrators: each option's value and source, a text checked as the
file would be, and the file written.

docs/console-api.md has the fields.
"""

from collections.abc import Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread
from litestar import get, post

from backends.machine.paths import replace_file
from config.changes import MASK, Effect, effect_of, masked, masked_text, unmasked
from config.errors import ConfigError
from config.loader import DEFAULT, ON_COMMAND_LINE
from config.schema import OptionFacts, all_facts
from gateway.dialects.dialect import body
from gateway.http.auth import AnyRequest
from gateway.http.request_log import audit
from gateway.http.routing import Routes, read_order
from gateway.http.services import Services
from gateway.http.sse import attended
from gateway.reconfiguring.reloading import Explained, ReloadReport
from gateway.terms.errors import Forbidden, InvalidRequest

MOST_SETTINGS = 256 << 10  # of a text: reading YAML takes long
MOVED = (
    "a masked secret is not where it was shown: write the secret itself, or env:NAME or file:PATH"
)
NOT_ASKED = Explained(None, {})

api = Routes()


class SettingWire(OptionFacts, frozen=True, kw_only=True):
    """The current value of an option, and its source."""

    option: str
    value: Any
    source: str
    where: str | None
    effect: Effect  # of a change


class SettingsWire(msgspec.Struct, frozen=True, kw_only=True):
    """The active configuration. `text` is the current content of the file."""

    file: str | None
    text: str | None
    options: Sequence[SettingWire]
    reload: bool
    writable: bool  # whether `save` takes a text


class CheckOrder(msgspec.Struct, frozen=True):
    """The text of a configuration file to validate."""

    text: str


class SaveOrder(CheckOrder, frozen=True):
    """The new text of the configuration file, and the text that it was made from, as shown."""

    seen: str


class CheckedWire(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of the text, or the changes that a reload would make."""

    ok: bool
    error: str | None = None
    line: int | None = None
    option: str | None = None
    plan: ReloadReport | None = None


@api(get, "/v1/admin/settings", access="admin")
async def settings(services: Services) -> SettingsWire:
    """List every option with its value and the value's source."""
    source = services.reloader.source
    explained = await to_thread.run_sync(source.explain) if source else NOT_ASKED
    text = explained.text
    return SettingsWire(
        file=str(source.file) if source and source.file else None,
        text=None if text is None else await to_thread.run_sync(masked_text, text),
        options=_options(services, explained),
        reload=source is not None,
        writable=services.config.console.edit_config,
    )


def _options(services: Services, explained: Explained) -> list[SettingWire]:
    config, found = masked(services.config), []
    for option, facts in all_facts(type(services.config)):
        value = reduce(getitem, option, config)
        # What neither a file nor a variable sets was set on the command line.
        is_default = body(value) == body(facts.default)  # lists and tuples are written alike
        other = DEFAULT if is_default else ON_COMMAND_LINE
        origin = explained.origins.get(option, other)
        found.append(
            SettingWire(
                option=".".join(option),
                value=value,
                source=origin.source,
                where=origin.where,
                effect=effect_of(option),
                **msgspec.structs.asdict(facts),
            )
        )
    return found


@api(post, "/v1/admin/settings/check", status_code=200, access="admin")
async def check(request: AnyRequest, services: Services, order: CheckOrder) -> CheckedWire:
    """Validate a text as the configuration file. Nothing is applied."""
    text = _text(order)
    async with attended(request):
        return await _checked(services, await to_thread.run_sync(_meant, services, text))


@api(post, "/v1/admin/settings/save", status_code=200, access="admin", takes=SaveOrder)
async def save(request: AnyRequest, services: Services) -> CheckedWire:
    """Write a text into the configuration file, if the configuration allows it. Nothing is applied.
    The file as it was is kept with `.before` behind its name.
    """
    if not services.config.console.edit_config:
        raise Forbidden("console.edit_config: the configuration doesn't allow that it is written")
    if (source := services.reloader.source) is None or (file := source.file) is None:
        raise InvalidRequest("this server has no configuration file")
    order: SaveOrder = read_order(await request.body(), SaveOrder)
    _text(order)
    audit(request, "save configuration")
    async with attended(request):
        try:
            before, new = await to_thread.run_sync(_texts, file, order)
        except ConfigError as error:
            return _refused(error)
        checked = await _checked(services, new)
        if checked.ok:
            await to_thread.run_sync(_write, file.resolve(), before, new)
        return checked


def _text(order: CheckOrder) -> str:
    if len(order.text) > MOST_SETTINGS:
        raise InvalidRequest.at("text", f"at most {MOST_SETTINGS} characters")
    return order.text


async def _checked(services: Services, text: str) -> CheckedWire:
    try:
        return CheckedWire(ok=True, plan=await services.reloader.check(text))
    except ConfigError as error:
        return _refused(error)


def _texts(file: Path, order: SaveOrder) -> tuple[str, str]:
    """The file's text, and the new one with its secrets. Blocks. Raises InvalidRequest, and
    ConfigError where a secret can't be put back.
    """
    before = _read(file)
    if masked_text(before) != order.seen:
        raise _changed()
    try:
        return before, unmasked(order.text, before)
    except ValueError as error:
        raise ConfigError(f"{file}:{error.args[0]}", "$", MOVED) from None


def _changed() -> InvalidRequest:
    return InvalidRequest.at("seen", "the file was changed meanwhile: read it again")


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file.name} can't be read") from error


def _write(file: Path, before: str, new: str) -> None:
    """Both with the file's own permissions: it may hold keys. Blocks. Raises InvalidRequest."""
    if _read(file) != before:
        raise _changed()
    kept = file.with_name(f"{file.name}.before")
    try:
        mode = file.stat().st_mode
        for path, text in ((kept, before), (file, new)):
            replace_file(path, text.encode())
            path.chmod(mode)
    except OSError as error:
        raise InvalidRequest(f"{file.name} can't be written: {error.strerror}") from error


def _meant(services: Services, text: str) -> str:
    """The file's secret in place of each mask, or any: no two keys may be alike. Blocks."""
    try:
        if (source := services.reloader.source) and source.file:
            return unmasked(text, source.file.read_text("utf-8"))
    except (OSError, ValueError):
        pass
    first, *rest = text.split(MASK)
    return first + "".join(f"masked-{number}{part}" for number, part in enumerate(rest))


def _refused(error: ConfigError) -> CheckedWire:
    _, _, line = error.source.rpartition(":")
    number = int(line) if line.isascii() and line.isdigit() else None
    return CheckedWire(ok=False, error=error.problem, line=number, option=error.path)
