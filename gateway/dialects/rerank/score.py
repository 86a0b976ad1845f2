"""vLLM's `/v1/score`: how well each text of a pair fits the other. Knows no model.

`text_1` and `text_2` are vLLM's fields, `queries` and `documents` its newer names for them: one
text to each of several, or as many of both.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from backends.encoding import values
from gateway.dialects.encoding import Limit, ScoreExchange, further, limit
from gateway.dialects.fields import Fields, read_fields
from gateway.dialects.frames import body
from gateway.request import ScoreRequest

Texts: TypeAlias = str | list[str]


class ScoreBody(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to be compared."""

    model: str = ""
    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    truncate_prompt_tokens: Limit | None = None


class PairScore(msgspec.Struct, frozen=True, tag_field="object", tag="score"):
    """The score of one pair."""

    index: int
    score: float


class ScoreUsage(msgspec.Struct, frozen=True):
    """What it cost."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class ScoreList(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """The scores of all pairs, in their order. `created` is Unix time."""

    id: str
    created: int
    model: str
    data: Sequence[PairScore]
    usage: ScoreUsage


_SCORE_FIELDS = frozenset(ScoreBody.__struct_fields__)


def read_score(content: bytes) -> ScoreExchange:
    """What a body of `/v1/score` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(ScoreBody)
    first = _texts(fields, ("text_1", wire.text_1), ("queries", wire.queries))
    second = _texts(fields, ("text_2", wire.text_2), ("documents", wire.documents))
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        name = "text_2" if wire.documents is None else "documents"
        message = f"Expected as many texts as those they are compared with: {len(first)}."
        raise fields.wrong(name, message)
    return ScoreExchange(
        request=ScoreRequest(
            model=wire.model,
            field="text_2" if wire.documents is None else "documents",
            pairs=tuple(zip(first, second, strict=True)),
            truncate=wire.truncate_prompt_tokens is not None,
            most_tokens=limit(wire.truncate_prompt_tokens),
            further=further(fields, _SCORE_FIELDS, "truncate_prompt_tokens"),
        ),
        ignored=fields.beyond(_SCORE_FIELDS),
    )


def _texts(fields: Fields, *named: tuple[str, Texts | None]) -> tuple[str, ...]:
    """Those of the first name that has any."""
    name, given = next((one for one in named if one[1] is not None), named[0])
    if not given:
        raise fields.wrong(name, "At least one text is required.")
    return (given,) if isinstance(given, str) else tuple(given)


def score_body(id: str, *, created: int, model: str, scores: Sequence[bytes], tokens: int) -> bytes:
    """The JSON body of `scores`, one for each pair, which cost `tokens`."""
    data = [PairScore(at, values(score)[0]) for at, score in enumerate(scores)]
    usage = ScoreUsage(tokens, tokens)
    return body(ScoreList(id=id, created=created, model=model, data=data, usage=usage))
