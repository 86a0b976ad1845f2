"""Chat templates: from a conversation to the text that a model reads."""

from gateway.prompt.conversation import TemplateTraits
from gateway.prompt.metering import AT_ONCE, FULL, Allowance, LimitExceeded
from gateway.prompt.template import (
    DEFAULT_TEMPLATE,
    TURNS,
    ChatTemplate,
    RenderedPrompt,
    with_reasoning,
)
from gateway.prompt.traced import Spans
