"""What a route works with. Built once in `gateway.app` and handed to every handler."""

import msgspec

from config.settings import Config
from gateway.http.doorman import Doorman
from gateway.pipeline import Pipeline
from gateway.registry import Registry


class Services(msgspec.Struct, frozen=True):
    """The rooms below, as the routes see them."""

    config: Config
    registry: Registry
    pipeline: Pipeline
    doorman: Doorman
