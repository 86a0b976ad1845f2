"""llama-server's dialect, as SillyTavern's "llama.cpp" and Open WebUI's model management speak it.

Its raw completion, its tokenizer calls (and vLLM's, which share the path), props, load and unload.
Pure: bytes in, structs out; events in, bytes out.
"""

from gateway.dialects.dialect import Dialect
from gateway.dialects.models import problem

DIALECT = Dialect(name="LlamaServer", tag="llama-server", error=problem)
