"""The configuration for administrators: what is in force, where each value comes from, and the
check of another text.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from anyio import to_thread
from litestar import Request, get, post
from litestar.types import ASGIApp

from config.changes import Effect, effect_of
from config.errors import ConfigError
from config.facts import OptionFacts, all_facts
from config.loader import DEFAULT, OptionOrigin
from config.masking import MASK, masked, masked_text
from config.shape import value_of
from gateway.dialects.fields import Fields, order_object
from gateway.dialects.frames import body
from gateway.errors import InvalidRequest
from gateway.http.plain import Plain
from gateway.http.services import Services
from gateway.http.sse import WholeErrand
from gateway.reloading import Explained, ReloadReport

AnyRequest = Request[Any, Any, Any]

MOST_SETTINGS = 256 << 10  # of a text: reading YAML takes long
NOT_ASKED = Explained(None, {})


class SettingWire(OptionFacts, frozen=True, kw_only=True):
    """One option as it is in force, and where that comes from."""

    option: str
    value: Any
    source: str
    where: str | None
    effect: Effect  # of a change


class SettingsWire(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force; `text` is the file's as it is now."""

    file: str | None
    text: str | None
    options: Sequence[SettingWire]
    reload: bool


class CheckOrder(msgspec.Struct, frozen=True):
    """A text that might become the file's."""

    text: str


class CheckedWire(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a text, or what a reload would do with it."""

    ok: bool
    error: str | None = None
    line: int | None = None
    option: str | None = None
    plan: ReloadReport | None = None


@get("/v1/admin/settings")
async def settings(request: AnyRequest, services: Services) -> ASGIApp:
    """Every option, its value, and where that comes from."""
    services.authenticator.admit(request.headers).require_admin()
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
        other = DEFAULT if value == facts.default else OptionOrigin("command line")
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


@post("/v1/admin/settings/check", status_code=200)
async def check(request: AnyRequest, services: Services) -> ASGIApp:
    """Check a text as the configuration file; nothing of it is put in force."""
    services.authenticator.admit(request.headers).require_admin()
    text = Fields(order_object(await request.body()), {}).read(CheckOrder).text
    if len(text) > MOST_SETTINGS:
        raise InvalidRequest(f"text: at most {MOST_SETTINGS} letters", param="text")

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


ROUTES = (settings, check)
