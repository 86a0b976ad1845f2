"""What the two stand-ins' models have in common; no classes of the libraries."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.backends.engines.exllama.machine import Machine

PICTURES = 10**9  # token ids from here on are rows of embeddings


class Loadable:
    """A model or a vision tower of four modules."""

    machine: Machine

    @property
    def held(self) -> str:
        return f"{type(self).__name__} {id(self)}"

    def begin_load(self, callback: Any) -> None:
        self.machine.loaded.append(self.held)
        for module in range(4):
            callback(module, 4)
            if self.machine.fail_load is not None:
                raise self.machine.fail_load
        callback(4, 4)

    def end_load(self) -> None:
        if self.held in self.machine.loaded:
            self.machine.loaded.remove(self.held)


class Words:
    """A tokenizer that makes text of tokens."""

    def __init__(self, folder: str) -> None:
        self.model = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

    def text(self, tokens: list[int]) -> str:
        words = [token for token in tokens if token < PICTURES]
        return str(self.model.decode(words, skip_special_tokens=False))

    def ids(self, text: str) -> list[int]:
        return list(self.model.encode(text, add_special_tokens=False).ids)


class Embedding:
    """A picture's rows, by their ids."""

    def __init__(self, first: int, ids: list[int]) -> None:
        self.first = first
        self.ids = ids


def embedding(number: int, width: int, before: int, after: int) -> Embedding:
    """Of the `number`-th picture: a row for every column of it, between two markers."""
    first = PICTURES + 100 * number
    return Embedding(first, [before, *range(first, first + width), after])
