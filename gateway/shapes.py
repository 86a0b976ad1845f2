"""What a client may ask of an answer's shape. The types stand below, because servers elsewhere are
handed a shape as it is.
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
