"""A model's capabilities, loaded or not: read from its chat template, once for each model and
template.

Reading a template takes some ten milliseconds, so it happens in a worker thread, and a list of
models doesn't wait for all of it: what isn't known in time is in the next list.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TypeAlias

import anyio
import msgspec
from anyio import to_thread

from backends.protocol import SpecialTokens
from backends.remote import RemoteTarget
from gateway.answers.interpreter import recognised_format
from gateway.answers.overrides import Templates
from gateway.errors import InvalidTemplate
from gateway.prompt import DEFAULT_TEMPLATE, ChatTemplate
from gateway.registry import ModelEntry, ModelStatus
from gateway.splitter import FORMATS, Recognised

MOST_MODELS = 4_096  # models, each with its templates
PATIENCE = 0.025  # seconds a list waits for models not known yet


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known from a model's files or its container."""

    # "tools", "reasoning", "vision"; "embedding" or "rerank", then nothing else; None: not known
    capabilities: tuple[str, ...] | None
    recognised: Recognised
    template: str  # the text in force
    efforts: tuple[str, ...] = ()  # of reasoning, that the template takes


# Name, template, format, what another server reported, and whether it is loaded.
ModelKey: TypeAlias = tuple[str, str | None, str | None, RemoteTarget | None, bool]


class Capabilities:
    """Caches what it found."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._known: dict[ModelKey, Known] = {}
        self._one_looks = Lock()

    async def of(self, status: ModelStatus) -> Known | None:
        """What is known of one model; None where its files can't be used."""
        if status.entry is None:
            return None
        key = self._key(status, status.entry)
        if key not in self._known:
            source = self._source(status, status.entry)
            analyse = partial(self._analyse, key, status, status.entry, source)
            await to_thread.run_sync(analyse, abandon_on_cancel=True)
        return self._known.get(key)

    async def learn(self, statuses: Sequence[ModelStatus]) -> None:
        """Analyse all of them, one by one, so that no caller waits long for a single one."""
        for status in statuses:
            await self.of(status)

    async def of_all(self, statuses: Sequence[ModelStatus]) -> Mapping[str, Known]:
        """What is known of all, by model id, within `PATIENCE`.

        A model just loaded is reported as it was before, until its control tokens have been read.
        """
        with anyio.move_on_after(PATIENCE):
            await self.learn(statuses)
        found = {}
        for status in statuses:
            if status.entry is not None:
                key = self._key(status, status.entry)
                if known := self._known.get(key) or self._known.get((*key[:4], False)):
                    found[status.id] = known
        return found

    def _key(self, status: ModelStatus, entry: ModelEntry) -> ModelKey:
        source = self._source(status, entry)
        return entry.name, source, entry.format, entry.files.remote, status.info is not None

    def _source(self, status: ModelStatus, entry: ModelEntry) -> str | None:
        own = status.info.chat_template if status.info else entry.files.chat_template
        return self._templates.source(entry) or own

    def _analyse(
        self, key: ModelKey, status: ModelStatus, entry: ModelEntry, source: str | None
    ) -> None:
        """In a worker thread, one at a time: a second caller finds it cached."""
        with self._one_looks:
            if key not in self._known:
                self._known[key] = _known(status, entry, source)
                while len(self._known) > MOST_MODELS:  # templates can be switched without end
                    del self._known[next(iter(self._known))]


def _known(status: ModelStatus, entry: ModelEntry, source: str | None) -> Known:
    if (remote := entry.files.remote) is not None and source is None:
        elsewhere = Recognised(FORMATS["plain"], "the upstream takes its answers apart")
        return Known(capabilities=remote.capabilities, recognised=elsewhere, template="")
    if status.task != "generate":
        no_text = Recognised(FORMATS["plain"], "it writes no text")
        can = ("embedding",) if status.task == "embed" else ("rerank",)
        return Known(capabilities=can, recognised=no_text, template="")
    info, text = status.info, source or DEFAULT_TEMPLATE
    vision = ("vision",) if "image" in status.modalities else ()
    try:
        traits = ChatTemplate(text, info.special if info else SpecialTokens()).traits
    except InvalidTemplate as error:
        recognised = recognised_format(entry, info, text, None)
        broken = Recognised(recognised.format, f"{recognised.why}; but {error.message}")
        return Known(capabilities=vision, recognised=broken, template=text)
    recognised = recognised_format(entry, info, text, traits)
    tools = ("tools",) if recognised.format.syntaxes else ()
    thinks = traits.reasoning and recognised.format.reasoning is not None
    reasoning = ("reasoning",) if thinks else ()
    return Known(
        capabilities=(*tools, *reasoning, *vision),
        recognised=recognised,
        template=text,
        efforts=traits.efforts if thinks else (),
    )
