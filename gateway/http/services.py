"""What a route works with. Built once in `gateway.app` and handed to every handler."""

import msgspec

from config.settings import Config
from gateway.access import Access
from gateway.capabilities import Capabilities
from gateway.errors import GatewayError, ModelNotFound
from gateway.http.account import Account
from gateway.http.doorman import Doorman
from gateway.http.metrics import Metrics
from gateway.hub import Hub
from gateway.pipeline import Pipeline
from gateway.presets import Presets
from gateway.registry import ModelEntry, ModelStatus, Registry
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
    capabilities: Capabilities
    hub: Hub
    metrics: Metrics

    def visible(self, access: Access) -> list[ModelStatus]:
        """The states of the models the caller may use."""
        return [status for status in self.registry.statuses() if access.allows(status.id)]

    async def find(self, name: str) -> ModelEntry:
        """As `Registry.resolve`, but a name not known yet is looked for in the folders first."""
        try:
            return self.registry.resolve(name)
        except ModelNotFound:
            await self.registry.refresh()
            return self.registry.resolve(name)

    def account(self, api: str, model: str, request: str) -> Account:
        """A new one for a request that names `model`; only names that exist are counted by."""
        try:
            name = self.registry.resolve(model).name
        except GatewayError:
            name = ""
        return Account(self.metrics.answered, api=api, model=name, request=request)
