"""Ollama's dialect: chat, generate, and the models as its clients list them.

Pure: bytes in, structs out (`read_chat`, `read_generate`); events in, lines out (`OllamaReply`).
"""

from gateway.dialects.ollama.errors import error_body, error_line
from gateway.dialects.ollama.reply import OllamaReply
from gateway.dialects.ollama.request import (
    OllamaExchange,
    Presence,
    hub_name,
    read_chat,
    read_generate,
    read_named,
    without_latest,
)

__all__ = [
    "OllamaExchange",
    "OllamaReply",
    "Presence",
    "error_body",
    "error_line",
    "hub_name",
    "read_chat",
    "read_generate",
    "read_named",
    "without_latest",
]
