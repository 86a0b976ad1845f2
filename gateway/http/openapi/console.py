"""What the console asks; docs/console-api.md says more of it."""

from collections.abc import Mapping
from typing import Any

from gateway.http.console.wire import ModelWire
from gateway.http.openapi.described import DEFAULT, Described
from gateway.http.request_record import RequestStanding
from gateway.http.routes import (
    console,
    console_events,
    console_hub,
    console_models,
    console_sampling,
    console_settings,
)
from gateway.hub import DownloadState

_NAMED = {"A model": {"model": DEFAULT}}

CONSOLE: Mapping[Any, Described] = {
    console.me: Described(gives=(console.MeWire,)),
    console.requests: Described(gives=(console.RequestsWire,)),
    console.cancel: Described(gives=(RequestStanding,)),
    console.logs: Described(gives=(console.LogWire,)),
    console_events.events: Described(events=(console_events.SnapshotWire,)),
    console_events.models: Described(gives=(console_events.ModelsWire,)),
    console_events.memory: Described(gives=(console_events.MemoryWire,)),
    console_models.load: Described(
        takes=console_models.LoadOrder, gives=(ModelWire,), status=202, examples=_NAMED
    ),
    console_models.unload: Described(
        takes=console_models.UnloadOrder, gives=(ModelWire,), examples=_NAMED
    ),
    console_models.pin: Described(
        takes=console_models.PinOrder, gives=(ModelWire,), examples=_NAMED
    ),
    console_models.options: Described(gives=(console_models.OptionsWire,)),
    console_models.duplicate: Described(
        takes=console_models.CopyOrder,
        gives=(console_models.CopiedWire,),
        status=201,
        examples={"A copy": {"model": DEFAULT, "name": "another"}},
    ),
    console_models.remove: Described(
        takes=console_models.RemoveOrder, gives=(console_models.RemovedWire,)
    ),
    console_hub.files: Described(gives=(console_hub.RepositoryWire,)),
    console_hub.downloads: Described(gives=(console_hub.DownloadsWire,)),
    console_hub.begin: Described(
        takes=console_hub.DownloadOrder, gives=(DownloadState,), status=202
    ),
    console_hub.stop: Described(gives=(DownloadState,)),
    console_hub.resume: Described(gives=(DownloadState,), status=202),
    console_hub.remove: Described(gives=(console_hub.RemovedDownload,)),
    console_hub.upload: Described(takes_file=True, gives=(console_hub.UploadedWire,), status=201),
    console_sampling.sampling: Described(gives=(console_sampling.SamplingWire,)),
    console_settings.settings: Described(gives=(console_settings.SettingsWire,)),
    console_settings.check: Described(
        takes=console_settings.CheckOrder, gives=(console_settings.CheckedWire,)
    ),
}
