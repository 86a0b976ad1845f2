"""OpenAI's responses: a dialect of its own beside chat completions, of items instead of messages.

Pure: bytes in, structs out (`read_response`); events in, bytes out (`ResponsesReply`).
"""

from gateway.dialects.dialect import Dialect
from gateway.dialects.responses.compaction import CompactReply, summary_asked, summary_of
from gateway.dialects.responses.reply import ResponsesReply
from gateway.dialects.responses.request import ResponsesExchange, read_response

DIALECT = Dialect(name="Responses", tag="OpenAI, responses")
