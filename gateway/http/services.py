"""What a route works with. Built once in `gateway.app` and handed to every handler."""

import msgspec

from config.settings import Config
from gateway.http.doorman import Doorman
from gateway.pipeline import Pipeline
from gateway.presets import Presets
from gateway.registry import Registry
from gateway.templates import Templates
from gateway.wording import Wording


class Services(msgspec.Struct, frozen=True):
    """The rooms below, as the routes see them."""

    config: Config
    registry: Registry
    pipeline: Pipeline
    doorman: Doorman
    wording: Wording
    templates: Templates
    presets: Presets
