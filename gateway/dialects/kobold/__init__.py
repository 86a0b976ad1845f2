"""KoboldAI's dialect, with what KoboldCpp added to it: completions, whole or streamed; polling and
abort.

Pure: bytes in, structs out (`read_generate`); events in, bytes out (`KoboldReply`).
"""

from gateway.dialects.kobold.reply import KoboldReply, error_body, error_event
from gateway.dialects.kobold.request import KoboldExchange, read_generate, read_keyed

__all__ = [
    "KoboldExchange",
    "KoboldReply",
    "error_body",
    "error_event",
    "read_generate",
    "read_keyed",
]
