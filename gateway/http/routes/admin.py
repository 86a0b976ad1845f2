"""Roundhouse's own calls for administrators, which no other server has."""

from typing import Any

import msgspec
from litestar import Request, post
from litestar.types import ASGIApp

from gateway.http.plain import Plain
from gateway.http.services import Services


@post("/v1/admin/reload", status_code=200)
async def reload(
    request: Request[Any, Any, Any], services: Services, *, plan: bool = False
) -> ASGIApp:
    """Read the configuration again and put it in force; with `plan` tell what that would do."""
    services.doorman.admit(request.headers).require_admin()
    return Plain(msgspec.json.encode(await services.reloader.reload(plan=plan)))


ROUTES = (reload,)
