"""The routes, one module for each API.

An API is a switch of `ApisConfig`, a module of that name in `gateway.dialects`, whose `DIALECT`
says how it is written, and one here: its `api` are the routes and what each takes and gives, its
`front` those at the address of the console's page, its `SOCKETS` those of WebSockets.
"""

from importlib import import_module

from config.settings import ApisConfig
from gateway.http.openapi import Api


def enabled_apis(switches: ApisConfig) -> list[Api]:
    """The APIs that are switched on."""
    names = ApisConfig.__struct_fields__
    return [_api(name) for name in names if getattr(switches, name)]


def _api(name: str) -> Api:
    dialect = import_module(f"gateway.dialects.{name}")
    routes = import_module(f"gateway.http.routes.{name}")
    front = getattr(routes, "front", {})
    sockets = getattr(routes, "SOCKETS", ())
    return Api(
        folder=name, dialect=dialect.DIALECT, routes=routes.api, front=front, sockets=sockets
    )
