"""The configuration for administrators: each option's value and source, and a text checked as
the file would be.

docs/console-api.md has the fields.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from anyio import to_thread
from litestar import get, post
from litestar.types import ASGIApp

from config.changes import MASK, Effect, effect_of, masked, masked_text
from config.errors import ConfigError
from config.loader import DEFAULT, OptionOrigin
from config.schema import OptionFacts, all_facts
from config.shape import value_of
from gateway.dialects.dialect import body
from gateway.dialects.fields import Fields, order_object
from gateway.http.auth import AnyRequest
from gateway.http.openapi import Described, Routes
from gateway.http.services import Services
from gateway.http.sse import Plain, WholeErrand
from gateway.reconfiguring.reloading import Explained, ReloadReport
from gateway.terms.errors import InvalidRequest

MOST_SETTINGS = 256 << 10  # of a text: reading YAML takes long
NOT_ASKED = Explained(None, {})


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


class CheckOrder(msgspec.Struct, frozen=True):
    """The text of a configuration file to validate."""

    text: str


class CheckedWire(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of the text, or the changes that a reload would make."""

    ok: bool
    error: str | None = None
    line: int | None = None
    option: str | None = None
    plan: ReloadReport | None = None


@get("/v1/admin/settings", access="admin")
async def settings(services: Services) -> ASGIApp:
    """List every option with its value and the value's source."""
    source = services.reloader.source
    explained = await to_thread.run_sync(source.explain) if source else NOT_ASKED
    found = SettingsWire(
        file=str(source.file) if source and source.file else None,
        text=None if explained.text is None else masked_text(explained.text),
        options=_options(services, explained),
        reload=source is not None,
    )
    return Plain(body(found))


def _options(services: Services, explained: Explained) -> list[SettingWire]:
    config = masked(services.config)
    found = []
    for option, facts in all_facts(type(config)):
        value = msgspec.to_builtins(value_of(config, option))
        # What neither a file nor a variable sets was set on the command line.
        is_default = body(value) == body(facts.default)  # lists and tuples are written alike
        other = DEFAULT if is_default else OptionOrigin("command line")
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


@post("/v1/admin/settings/check", status_code=200, access="admin")
async def check(request: AnyRequest, services: Services) -> ASGIApp:
    """Validate a text as the configuration file. Nothing is applied."""
    text = Fields(order_object(await request.body()), {}).read(CheckOrder).text
    if len(text) > MOST_SETTINGS:
        raise InvalidRequest(f"text: at most {MOST_SETTINGS} characters", param="text")

    async def whole() -> bytes:
        try:
            plan = await services.reloader.check(_with_secrets(text))
        except ConfigError as error:
            return body(_refused(error))
        return body(CheckedWire(ok=True, plan=plan))

    return WholeErrand(whole)


def _with_secrets(text: str) -> str:
    """Some secret in place of each mask, since no two keys may be alike."""
    first, *rest = text.split(MASK)
    return first + "".join(f"masked-{number}{part}" for number, part in enumerate(rest))


def _refused(error: ConfigError) -> CheckedWire:
    _, _, line = error.source.rpartition(":")
    number = int(line) if line.isascii() and line.isdigit() else None
    return CheckedWire(ok=False, error=error.problem, line=number, option=error.path)


ROUTES: Routes = {
    settings: Described(gives=(SettingsWire,)),
    check: Described(takes=CheckOrder, gives=(CheckedWire,)),
}
