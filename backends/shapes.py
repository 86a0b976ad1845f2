"""Requested output shapes (structured output), whichever API and field they came in.

Schemas and structural tags are kept as the JSON text that came, so that a shape can be hashed and
is read in one place, under limits. `field` is the client's name of what it sent, for errors.
"""

from typing import TypeAlias

import msgspec


class JsonObject(msgspec.Struct, frozen=True, kw_only=True, tag="json_object"):
    """Any JSON object."""

    field: str = "response_format"


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema"):
    """JSON that satisfies `schema`, which is JSON text.

    `strict`: what can't be enforced while the answer is written is an error; else it is relaxed,
    named and checked afterwards.
    """

    schema: bytes
    strict: bool = False
    field: str = "response_format.json_schema.schema"


class Regex(msgspec.Struct, frozen=True, kw_only=True, tag="regex"):
    """A text that `pattern` matches from its beginning to its end."""

    pattern: str
    field: str = "regex_pattern"


class Grammar(msgspec.Struct, frozen=True, kw_only=True, tag="grammar"):
    """A text of a grammar: llama.cpp's GBNF, known by its `::=`, or Lark as llguidance has it."""

    text: str
    field: str = "grammar"


class Choices(msgspec.Struct, frozen=True, kw_only=True, tag="choices"):
    """One of some texts."""

    texts: tuple[str, ...]
    field: str = "guided_choice"


class StructuralTags(msgspec.Struct, frozen=True, kw_only=True, tag="structural_tag"):
    """Free text in which some markers begin constrained parts.

    `request` is the object's JSON text: `{"type": "structural_tag", ...}` with `structures` and
    `triggers`, or with xgrammar's `format`.
    """

    request: bytes
    field: str = "structural_tag"


Shape: TypeAlias = JsonObject | JsonSchema | Regex | Grammar | Choices | StructuralTags
