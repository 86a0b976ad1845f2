"""Requested output shapes (structured output). The types are defined one floor below, because
upstreams are sent a shape as it is.
"""

from backends.shapes import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTags,
)

__all__ = [
    "Choices",
    "Grammar",
    "JsonObject",
    "JsonSchema",
    "Regex",
    "Shape",
    "StructuralTags",
]
