"""A vocabulary of bytes and control tokens, and what a grammar allows of it: read, and walked."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from gateway.splitter.grammar import Thinking, WantedOutput, output_grammar
from gateway.splitter.payloads.syntax import Format, texts_of

END = "<|the end|>"
_TOKEN = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]|\]<\]minimax\[>\[|◁/?think▷|｜DSML｜")
# What is several words or part of the text, whatever it looks like.
_NO_TOKENS = ("<function=", "<parameter=")


class _Bytes:
    """A vocabulary as llguidance wants it: 256 bytes, words, control tokens, the end."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, control: Sequence[str], words: Sequence[str]) -> None:
        self.tokens = [bytes([value]) for value in range(256)]
        self.tokens += [word.encode() for word in words]
        first = len(self.tokens)
        self.tokens += [text.encode() for text in (*control, END)]
        self.special_token_ids = list(range(first, len(self.tokens)))
        self.eos_token_id = len(self.tokens) - 1

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


class Vocabulary:
    """Its tokenizer, and its control tokens by text."""

    def __init__(self, control: Sequence[str], words: Sequence[str]) -> None:
        known = _Bytes(control, words)
        self.tokens = known.tokens
        self.end = known.eos_token_id
        self.tokenizer = LLTokenizer(known)  # type: ignore[arg-type]
        self.control = dict(zip(control, known.special_token_ids, strict=False))
        self._cut = re.compile(
            "|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)"
        )

    def encoded(self, text: str) -> list[int]:
        """A text as tokens: bytes, and the control tokens it spells."""
        found, at = [], 0
        for token in self._cut.finditer(text):
            found += [*text[at : token.start()].encode(), self.control[token.group()]]
            at = token.end()
        return [*found, *text[at:].encode()]

    def decoded(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""
        return b"".join(self.tokens[token] for token in tokens).decode(errors="replace")

    def matcher(self, grammar: str) -> LLMatcher:
        """A fresh matcher. Fails where llguidance refuses the grammar."""
        found = LLMatcher(self.tokenizer, grammar)
        assert not found.is_error(), found.get_error()
        return found


WORDS = (" the", "get", "<b>", "\n\n", '{"', '": ', '",', "</", "><", "```", "> ", "e>", "<t")


@cache
def vocabulary(control: tuple[str, ...]) -> Vocabulary:
    """A vocabulary with these control tokens."""
    return Vocabulary(control, WORDS)


def control_of(format: Format) -> tuple[str, ...]:
    """What of a format's markers are control tokens in its family's vocabularies."""
    found = {token for text in texts_of(format) for token in _TOKEN.findall(text)}
    found |= {"<escape>"} & set(texts_of(format))
    return tuple(sorted(found))


def grammar_of(
    entry: Format,
    *,
    control: Mapping[str, int] | None = None,
    thinking: Thinking = "possible",
    prompt_tail: str = "",
    **wishes: Any,
) -> str:
    """The text of an output's grammar; "" where it is free."""
    found = output_grammar(
        entry,
        WantedOutput(**wishes),
        control=control or {},
        thinking=thinking,
        prompt_tail=prompt_tail,
    )
    return "" if found is None else found.text


def refused(known: Vocabulary, grammar: str, text: str) -> str | None:
    """Where a grammar refuses a text; None where it is a whole output."""
    matcher = known.matcher(grammar)
    tokens = known.encoded(text)
    read = matcher.try_consume_tokens(tokens)
    if read < len(tokens):
        rest = known.decoded(tokens[read : read + 20])
        return f"{known.decoded(tokens[:read])!r} goes on with {rest!r}"
    return None if matcher.is_accepting() else "it is not finished"


def allowed(mask: bytes, count: int) -> list[int]:
    """The tokens of a mask."""
    return [token for token in range(count) if mask[token >> 3] >> (token & 7) & 1]


CLOSING = ('"', "'", "}", "]", ")", "</", ">")
_CLOSERS = (
    "closers",
    "closes",
    "call_closes",
    "parameter_closes",
    "value_closes",
    "body_ends",
    "quote",
    "prefix",
)


def closers_of(format: Format) -> tuple[str, ...]:
    """What ends something in a format."""
    parts = (*format.syntaxes, *filter(None, (format.reasoning, format.headers)))
    found = [
        text for part in parts for name in _CLOSERS for text in texts_of(getattr(part, name, ()))
    ]
    return (*found, *CLOSING)


def walked(
    known: Vocabulary, grammar: str, choices: random.Random, *, steps: int, closers: Sequence[str]
) -> str | None:
    """A random text of a grammar. After so many steps whatever closes something is taken first.

    None where it doesn't come to an end then.
    """
    matcher = known.matcher(grammar)
    ends = [known.encoded(closer) for closer in closers]
    tokens: list[int] = []
    for step in range(steps + 600):
        options = allowed(matcher.compute_bitmask(), len(known.tokens))
        hurried = step >= steps
        if known.end in options and (hurried or len(options) == 1 or choices.random() < 0.05):
            return known.decoded(tokens)
        options = [token for token in options if token != known.end]
        closing = [end for end in ends if hurried and matcher.validate_tokens(end) == len(end)]
        taken = (
            choices.choice(closing)
            if closing and choices.random() < 0.9
            else [_chosen(options, choices, known)]
        )
        tokens += taken
        assert matcher.consume_tokens(taken), matcher.get_error()
    return None


def _chosen(options: Sequence[int], choices: random.Random, known: Vocabulary) -> int:
    """Any token, but control tokens and structure more often than their number."""
    special = [token for token in options if token >= 256 + len(WORDS)]
    structure = [token for token in options if known.tokens[token][:1] in b'"}])<>/']
    plain = [token for token in options if 32 <= token < 127]
    for kind, share in ((special, 0.2), (structure, 0.25), (plain, 0.8)):
        if kind and choices.random() < share:
            return choices.choice(kind)
    return choices.choice(options)
