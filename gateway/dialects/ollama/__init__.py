"""Ollama's dialect: chat, generate, and the models as its clients list them.

Pure: bytes in, structs out (`read_chat`, `read_generate`); events in, lines out (`OllamaReply`).
"""

from gateway.dialects.dialect import Dialect
from gateway.dialects.ollama.reply import (
    OllamaReply,
    embed_body,
    error_line,
    error_wire,
    old_embed_body,
    read_embed,
    read_old_embed,
)
from gateway.dialects.ollama.request import (
    Asked,
    Presence,
    Preset,
    Presets,
    hub_name,
    read_chat,
    read_copy,
    read_create,
    read_generate,
    read_named,
    without_latest,
)

DIALECT = Dialect(name="Ollama", tag="Ollama", error=error_wire)
