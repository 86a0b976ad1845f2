"""Limits on client schemas and grammars: a bound for each thing that costs time or memory, in one
table. The compile itself is bounded by the fuel of `backends.constraints`.
"""

import msgspec

from gateway.errors import InvalidRequest


class Limit(msgspec.Struct, frozen=True):
    """At most `most` of `what`."""

    most: int
    what: str

    def check(self, amount: int, field: str) -> None:
        """Raises InvalidRequest that names `field` where it is more."""
        if amount > self.most:
            message = f"{field}: at most {self.most:,} {self.what} are taken, got {amount:,}."
            raise InvalidRequest(message, param=field)


REGEX_LENGTH = Limit(8_192, "characters of a regex")
GRAMMAR_LENGTH = Limit(65_536, "characters of a grammar")
# A compiler goes from rule to rule by recursion; 3,000 are more than a thread's stack of 8 MB.
GRAMMAR_LINES = Limit(1_024, "lines with a rule of a grammar")
GRAMMAR_RULES = Limit(512, "rules of a grammar")  # the converter compares each with each
GROUP_DEPTH = Limit(64, "nested groups of a grammar")
CHOICES = Limit(1_024, "choices")
CHOICE_LENGTH = Limit(8_192, "characters of a choice")
CHOICES_LENGTH = Limit(131_072, "characters of all choices")
TAGS = Limit(128, "tags or inner grammars of structural tags")
REPEATS = Limit(10_000, "repetitions")

SCHEMA_BYTES = Limit(524_288, "bytes of a schema")
SCHEMA_NODES = Limit(10_000, "values in a schema")
SCHEMA_DEPTH = Limit(64, "levels of nesting in a schema")
SCHEMA_DEFINITIONS = Limit(512, "definitions that a schema refers to")
SCHEMA_LEVELS = Limit(400, "levels of a schema, one inside another or referred to")
SCHEMA_DATA = Limit(2_000, "values inside lists and objects of enum and const")
SCHEMA_EFFORT = Limit(4_000_000, "units of work to compile a schema")
