"""Conversations over HTTP as chat frontends go on with them: the same again, the last message
edited, the next turn. A tool of tests and benchmarks.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.served import Served

LENGTHS = SHORT, LONG = 528, 4_000  # tokens
TRIED = (SHORT, pytest.param(LONG, marks=pytest.mark.slow))
ANSWER = 120  # tokens
FRAME = 303  # letters that stand around nine messages, and the last one

Messages = list[dict[str, str]]


class Talker:
    """A client of one server, whose models may say `words`: tokens that stay what they are when
    the text of an answer comes back in a prompt.
    """

    def __init__(self, server: Served, words: Sequence[int]) -> None:
        self._server = server
        self._words = list(words)

    def cached(self, model: str, messages: Messages, answer: int = ANSWER) -> tuple[int, int, str]:
        """Of the prompt, tokens that were there already, and all; and the answer."""
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "allowed_token_ids": self._words,
            "max_tokens": answer,
        }
        reply = self._server.client.post("/v1/chat/completions", json=body, timeout=120).json()
        usage = reply["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        return found, usage["prompt_tokens"], reply["choices"][0]["message"]["content"]


def conversation(length: int, name: str = "") -> Messages:
    """Of so many letters about, of which the last message has few."""
    turns = ["user", "assistant"] * 4
    words = f"{name} said this and that, once and again. " * length
    size = (length - FRAME) // len(turns)
    messages = [
        {"role": role, "content": words[number : number + size]}
        for number, role in enumerate(turns)
    ]
    return [*messages, {"role": "user", "content": "And then?"}]


def edited(messages: Messages) -> Messages:
    return [*messages[:-1], {"role": "user", "content": "Or what?"}]


def next_turn(messages: Messages, answer: str) -> Messages:
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": "So?"}]


def hardly_anything_is_computed_again(talker: Talker, kind: str, talk: Messages) -> None:
    _, _, answer = talker.cached(kind, talk)
    again, whole, _ = talker.cached(kind, talk)
    assert again >= 0.99 * whole
    changed, whole, _ = talker.cached(kind, edited(talk))
    assert changed >= 0.9 * whole
    going_on, whole, _ = talker.cached(kind, next_turn(talk, answer))
    assert going_on >= 0.9 * whole


def four_conversations_take_turns(talker: Talker, kind: str) -> None:
    talks = [conversation(1_000, name=f"{name} of the four") for name in "ABCD"]
    talks = [next_turn(talk, talker.cached(kind, talk, 20)[2]) for talk in talks]
    for talk in talks:
        found, whole, _ = talker.cached(kind, talk, 20)
        assert found >= 0.9 * whole
        again, whole, _ = talker.cached(kind, talk, 20)
        assert again >= 0.99 * whole
    for talk in talks:
        found, whole, _ = talker.cached(kind, edited(talk), 20)
        assert found >= 0.9 * whole
