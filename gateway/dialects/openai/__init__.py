"""The OpenAI dialect: chat completions, legacy completions, embeddings, the model list and the
error envelope.

Pure: bytes in, structs out (`read_chat`, `read_text`); events in, bytes out (`ChatReply`,
`TextReply`).

    exchange = read_chat(body)                      # raises InvalidRequest, which names the field
    reply = ChatReply(exchange, AnswerFacts(id=..., created=..., model=...))
    opening, *deltas, closing                       # a stream: frames of server-sent events, or
    reply.add(delta), …; reply.whole(usage)         # one JSON body, from the same deltas
"""

from gateway.dialects.dialect import Dialect
from gateway.dialects.models import (
    ModelCard,
    StatusWire,
    Stored,
    envelope,
    error_event,
    stored_list,
)
from gateway.dialects.openai.chat_reply import ChatLoading, ChatReply
from gateway.dialects.openai.embeddings import embeddings_body, pooled_body, read_embeddings
from gateway.dialects.openai.reply import AnswerFacts
from gateway.dialects.openai.request import (
    UNOPENED,
    ChatExchange,
    TextExchange,
    read_chat,
    read_text,
    read_text_fields,
)
from gateway.dialects.openai.text_reply import TextLoading, TextReply

DIALECT = Dialect(name="OpenAI", tag="OpenAI")
