"""The routes that manage: models, tokens, templates, downloads, versions, states; and what the
console asks, of which docs/console-api.md says more.
"""

from collections.abc import Mapping
from typing import Any

from gateway.dialects.cohere import embedding as cohere
from gateway.dialects.kobold import request as kobold
from gateway.dialects.llamaserver import completion as llama_slots
from gateway.dialects.llamaserver import request as llama
from gateway.dialects.llamaserver import request as loading
from gateway.dialects.ollama import presets as ollama_presets
from gateway.dialects.ollama import reply as ollama_models
from gateway.dialects.ollama import request as ollama
from gateway.dialects.openai.models import ModelCard, ModelList
from gateway.dialects.tabby import reply as tabby_reply
from gateway.dialects.tabby import request as tabby_bodies
from gateway.dialects.tgi import request as tgi
from gateway.http.console.gauges import ModelWire
from gateway.http.openapi.models import DEFAULT, Described
from gateway.http.request_record import RequestStanding
from gateway.http.routes import admin, console, console_models, hub
from gateway.http.routes import cohere as cohere_routes
from gateway.http.routes import kobold as kobold_routes
from gateway.http.routes import ollama as ollama_routes
from gateway.http.routes import tabby as tabby_routes
from gateway.http.routes import tgi as tgi_routes
from gateway.http.routes.llamaserver import completions as stream_routes
from gateway.http.routes.llamaserver import completions as text_routes
from gateway.http.routes.llamaserver import models as model_routes
from gateway.http.routes.llamaserver import models as props_routes
from gateway.http.routes.llamaserver import models as status_routes
from gateway.http.routes.llamaserver import slots as slot_routes
from gateway.hub import DownloadState
from gateway.reloading import ReloadReport

_NAMED = {"A model": {"model": DEFAULT}}

_OLLAMA: Mapping[Any, Described] = {
    ollama_routes.alive: Described(),
    ollama_routes.version: Described(gives=(ollama_models.Version,)),
    ollama_routes.tags: Described(gives=(ollama_models.Models,)),
    ollama_routes.ps: Described(gives=(ollama_models.Models,)),
    ollama_routes.show: Described(
        takes=ollama.NamedModel, gives=(ollama_models.Shown,), examples=_NAMED
    ),
    ollama_routes.create: Described(
        takes=ollama_presets.CreateWire,
        gives=(ollama_models.Status,),
        events=(ollama_models.Status,),
        lines=True,
        examples={
            "A pirate": {
                "model": "pirate",
                "from": DEFAULT,
                "system": "Say arr.",
                "stream": False,
                "parameters": {"temperature": 0.5},
            }
        },
    ),
    ollama_routes.copy: Described(takes=ollama_presets.CopyWire, text="text/plain"),
    ollama_routes.pull: Described(
        takes=ollama.NamedModel,
        gives=(ollama_models.Status,),
        events=(ollama_models.Status,),
        lines=True,
        examples=_NAMED,  # one that is here is no error
    ),
    ollama_routes.remove: Described(takes=ollama.NamedModel, text="text/plain"),
}

_KOBOLD: Mapping[Any, Described] = {
    kobold_routes.check: Described(gives=(kobold.Results,)),
    kobold_routes.check_keyed: Described(
        takes=kobold.Keyed, gives=(kobold.Results,), examples={"A key": {"genkey": "KCPP1234"}}
    ),
    kobold_routes.abort: Described(
        takes=kobold.Keyed, gives=(kobold.Aborted,), examples={"A key": {"genkey": "KCPP1234"}}
    ),
    kobold_routes.token_count: Described(
        takes=kobold.TokenCount, gives=(kobold.TokensWire,), examples={"A text": {"prompt": "Hi"}}
    ),
    kobold_routes.detokenize: Described(
        takes=kobold.Detokenize, gives=(kobold.Detokenized,), examples={"Tokens": {"ids": [5, 6]}}
    ),
    cohere_routes.tokenize: Described(
        takes=cohere.TokenizeWire, gives=(cohere.Tokenized,), examples={"A text": {"text": "Hi"}}
    ),
    cohere_routes.detokenize: Described(
        takes=cohere.DetokenizeWire,
        gives=(cohere.Detokenized,),
        examples={"Tokens": {"tokens": [5, 6]}},
    ),
    tgi_routes.info: Described(gives=(tgi.InfoWire,)),
    kobold_routes.model: Described(gives=(kobold.TextValue,)),
    kobold_routes.max_context_length: Described(gives=(kobold.NumberValue,)),
    kobold_routes.max_length: Described(gives=(kobold.NumberValue,)),
    kobold_routes.soft_prompts: Described(gives=(kobold.SoftPrompts,)),
    kobold_routes.soft_prompt: Described(gives=(kobold.SoftPrompt,)),
    kobold_routes.set_soft_prompt: Described(
        takes=kobold.SoftPrompt, gives=(dict[str, Any],), examples={"None": {"value": ""}}
    ),
    kobold_routes.united_version: Described(gives=(kobold.TextValue,)),
    kobold_routes.cpp_version: Described(gives=(kobold.KoboldVersion,)),
    kobold_routes.perf: Described(gives=(kobold.Perf,)),
}

_TABBY: Mapping[Any, Described] = {
    tabby_routes.model_list: Described(gives=(ModelList,)),
    tabby_routes.embedding_list: Described(gives=(ModelList,)),
    tabby_routes.current_embedding: Described(gives=(ModelCard,)),
    tabby_routes.embedding_load: Described(
        takes=tabby_bodies.EmbeddingLoad, gives=(tabby_reply.TabbyLoadEvent,)
    ),
    tabby_routes.embedding_unload: Described(gives=(None,)),
    tabby_routes.current_model: Described(gives=(tabby_reply.CurrentModel,)),
    tabby_routes.load: Described(
        takes=tabby_bodies.LoadWire,
        gives=(tabby_reply.TabbyLoadEvent,),
        events=(tabby_reply.TabbyLoadEvent,),
        examples={"A model": {"model_name": DEFAULT}},
    ),
    tabby_routes.unload: Described(
        takes=tabby_bodies.UnloadRequest, gives=(None,), examples={"A model": {"model": DEFAULT}}
    ),
    tabby_routes.permission: Described(gives=(tabby_reply.Permission,)),
    tabby_routes.encode: Described(
        takes=tabby_bodies.Encode,
        gives=(tabby_reply.TabbyTokens,),
        examples={
            "A text": {"text": "Hello"},
            "A conversation": {"text": [{"role": "user", "content": "Hello"}]},
        },
    ),
    tabby_routes.decode: Described(
        takes=tabby_bodies.Decode,
        gives=(tabby_reply.TabbyText,),
        examples={"Tokens": {"tokens": [5, 6]}},
    ),
    tabby_routes.template_list: Described(gives=(tabby_reply.Names,)),
    tabby_routes.template_switch: Described(takes=tabby_bodies.TemplateSwitch, gives=(None,)),
    tabby_routes.template_unload: Described(
        takes=tabby_bodies.TemplateUnload, gives=(None,), examples=_NAMED
    ),
    tabby_routes.overrides: Described(gives=(tabby_reply.Overrides,)),
    tabby_routes.override_switch: Described(
        takes=tabby_bodies.OverrideSwitch,
        gives=(None,),
        examples={"A temperature": {"overrides": {"temperature": {"override": 0.7}}}},
    ),
    tabby_routes.override_unload: Described(gives=(None,)),
    tabby_routes.loras: Described(gives=(tabby_reply.Names,)),
    tabby_routes.lora_load: Described(takes=tabby_bodies.LoraLoad),
    tabby_routes.service_info: Described(gives=(tabby_reply.ServiceInfo,)),
    hub.download: Described(
        takes=tabby_bodies.Download,
        gives=(tabby_reply.Downloaded,),
        events=(tabby_reply.DownloadEvent,),
    ),
}

_LLAMASERVER: Mapping[Any, Described] = {
    hub.fetch_model: Described(takes=llama.NamedModel, gives=(llama.Success,)),
    hub.delete_model: Described(gives=(llama.Success,)),
    status_routes.status: Described(gives=(status_routes.LlamaStatusWire,)),
    status_routes.unload: Described(
        takes=llama.MaybeNamedModel, gives=(status_routes.UnloadedWire,), examples=_NAMED
    ),
    status_routes.reset_measurements: Described(
        takes=llama.MaybeNamedModel, gives=(status_routes.ForgottenWire,), examples=_NAMED
    ),
    model_routes.load_model: Described(
        takes=llama.NamedModel, events=(loading.LlamaLoadEvent,), examples=_NAMED
    ),
    model_routes.models: Described(gives=(ModelList,)),
    model_routes.model_events: Described(events=(llama.StateEvent,)),
    model_routes.begin_load: Described(
        takes=llama.NamedModel, gives=(llama.Success,), examples=_NAMED
    ),
    model_routes.end_load: Described(
        takes=llama.NamedModel, gives=(llama.Success,), examples=_NAMED
    ),
    props_routes.props: Described(gives=(llama.Props,)),
    stream_routes.resume: Described(text="text/event-stream"),
    stream_routes.stop: Described(),
    stream_routes.lookup: Described(
        takes=stream_routes.Lookup,
        gives=(list[stream_routes.StreamWire],),
        examples={"Two conversations": {"conversation_ids": ["a", "b"]}},
    ),
    slot_routes.slots: Described(gives=(list[llama_slots.SlotWire],)),
    slot_routes.order: Described(
        takes=llama_slots.SlotOrder,
        gives=(llama_slots.SlotSaved, llama_slots.SlotRestored, llama_slots.SlotErased),
    ),
    text_routes.tokenize: Described(
        takes=llama.Tokenize,
        gives=(llama.LlamaTokens,),
        examples={
            "As llama-server has it": {"content": "Hello"},
            "As vLLM has it": {"model": DEFAULT, "prompt": "Hello"},
            "A conversation": {
                "model": DEFAULT,
                "messages": [{"role": "user", "content": "Hello"}],
            },
        },
    ),
    text_routes.tokenizer_info: Described(gives=(llama.TokenizerInfo,)),
    text_routes.detokenize: Described(
        takes=llama.Detokenize, gives=(llama.LlamaText,), examples={"Tokens": {"tokens": [5, 6]}}
    ),
}

_OWN: Mapping[Any, Described] = {
    admin.upstreams: Described(gives=(list[admin.UpstreamWire],)),
    admin.drain: Described(takes=admin.DrainWire, gives=(list[admin.UpstreamWire],)),
    admin.reload: Described(gives=(ReloadReport,)),
}

MANAGEMENT: Mapping[Any, Described] = {**_OLLAMA, **_KOBOLD, **_TABBY, **_LLAMASERVER, **_OWN}


CONSOLE: Mapping[Any, Described] = {
    console.me: Described(gives=(console.MeWire,)),
    console.requests: Described(gives=(console.RequestsWire,)),
    console.cancel: Described(gives=(RequestStanding,)),
    console.logs: Described(gives=(console.LogWire,)),
    console.events: Described(events=(console.SnapshotWire,)),
    console.models: Described(gives=(console.ModelsWire,)),
    console.memory: Described(gives=(console.MemoryWire,)),
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
    console_models.files: Described(gives=(console_models.RepositoryWire,)),
    console_models.downloads: Described(gives=(console_models.DownloadsWire,)),
    console_models.begin: Described(
        takes=console_models.DownloadOrder, gives=(DownloadState,), status=202
    ),
    console_models.stop: Described(gives=(DownloadState,)),
    console_models.resume: Described(gives=(DownloadState,), status=202),
    console_models.remove_download: Described(gives=(console_models.RemovedDownload,)),
    console_models.upload: Described(
        takes_file=True, gives=(console_models.UploadedWire,), status=201
    ),
    console_models.sampling: Described(gives=(console_models.SamplingWire,)),
    console.settings: Described(gives=(console.SettingsWire,)),
    console.check: Described(takes=console.CheckOrder, gives=(console.CheckedWire,)),
}
