"""How large what a client sends may be: a bound for each thing that costs time or memory, in one
table. The compile itself is bounded by the fuel of `backends.grammar_limits`.
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
CHOICES = Limit(1_024, "choices")
CHOICE_LENGTH = Limit(8_192, "characters of a choice")
CHOICES_LENGTH = Limit(131_072, "characters of all choices")
GRAMMAR_RULES = Limit(512, "rules of a grammar")  # the converter looks at each for each
GROUP_DEPTH = Limit(64, "nested groups of a grammar")
SCHEMA_BYTES = Limit(524_288, "bytes of a schema")
SCHEMA_NODES = Limit(20_000, "values in a schema")
SCHEMA_DEPTH = Limit(64, "levels of nesting in a schema")
TAGS = Limit(128, "tags or inner grammars of structural tags")
REPEATS = Limit(10_000, "repetitions")
