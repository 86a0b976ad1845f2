"""Chat templates: from a conversation to the text that a model reads."""

from gateway.prompt.chatml import DEFAULT_TEMPLATE
from gateway.prompt.template import ChatTemplate, RenderedPrompt
from gateway.prompt.traits import TemplateTraits

__all__ = ["DEFAULT_TEMPLATE", "ChatTemplate", "RenderedPrompt", "TemplateTraits"]
