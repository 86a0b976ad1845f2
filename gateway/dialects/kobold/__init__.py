"""KoboldAI's dialect, with what KoboldCpp added to it: completions, whole or streamed; polling and
abort.

Pure: bytes in, structs out (`read_generate`); events in, bytes out (`KoboldReply`).
"""

from gateway.dialects.dialect import Dialect
from gateway.dialects.kobold.reply import KoboldError, KoboldReply, error_body, error_event
from gateway.dialects.kobold.request import KoboldExchange, read_generate, read_keyed

DIALECT = Dialect(name="Kobold", tag="KoboldAI", error_body=error_body, error=KoboldError)

__all__ = [
    "DIALECT",
    "KoboldExchange",
    "KoboldReply",
    "error_body",
    "error_event",
    "read_generate",
    "read_keyed",
]
