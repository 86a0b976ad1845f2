"""Draws each byte from the table's row for the byte before it."""

import math
import random
from collections.abc import Collection, Mapping, Sequence

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import Candidate, Generation, ModelInfo, TokenLogprob
from backends.engines.constraints import Mask
from backends.engines.engine import Token
from backends.engines.scripted import END, ByteTokenizer
from tests.backends.engines.toy.files import Table, ToyOptions

Row = Mapping[int, float]  # token to its share


class Answer:
    """One job: the byte it stands at, and what it is made to say."""

    def __init__(self, job: Generation) -> None:
        self.job = job
        self.last = job.prompt[-1]
        self.forced: list[int] = []
        self.chance = random.Random(job.sampling.seed)

    def next(self, row: Row) -> int:
        if self.forced:
            return self.forced.pop(0)
        if self.job.sampling.temperature == 0:
            return max(row, key=row.__getitem__)
        power = 1 / self.job.sampling.temperature
        return self.chance.choices([*row], [share**power for share in row.values()])[0]


class TableEngine(ByteTokenizer):
    """See `backends.engines.engine.Engine`."""

    def __init__(self, files: ModelFiles, table: Table, options: ToyOptions) -> None:
        self._rows = {ord(letter): _row(after) for letter, after in table.after.items() if after}
        self._answers: dict[int, Answer] = {}
        self.info = ModelInfo(
            backend="toy",
            format=files.format,
            architecture=files.architecture,
            context_length=options.context_length or files.context_length,
            max_concurrent=options.max_concurrent,
            vocab_size=END + 1,
            longest_token_bytes=1,
            size_bytes=files.size_bytes,
            chat_template=files.chat_template,
            samplers=frozenset({"temperature", "seed"}),
        )

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        self._answers[key] = Answer(job)
        return len(job.prompt)

    def step(self) -> Sequence[Token]:
        return [self._said(key, answer) for key, answer in self._answers.items()]

    def _said(self, key: int, answer: Answer) -> Token:
        row = self._rows.get(answer.last, {END: 1.0})
        token = answer.last = answer.next(row)
        alternatives = answer.job.logprobs
        return Token(key, token, None if alternatives is None else self._scored(token, row))

    def _scored(self, token: int, row: Row) -> TokenLogprob:
        """What is forced on an answer needn't be in its row: the least a number can be."""
        top = tuple(self._candidate(one, share) for one, share in row.items())
        return TokenLogprob(self._candidate(token, row.get(token, 0.0)), top)

    def _candidate(self, token: int, share: float) -> Candidate:
        return Candidate(token, self.piece(token), math.log(share) if share else -1e9)

    def force(self, key: int, tokens: Sequence[int]) -> None:
        self._answers[key].forced[:0] = tokens

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        raise NotImplementedError  # only where `info.rewinds`

    def release(self, key: int) -> int:
        del self._answers[key]
        return 0

    def recover(self) -> None:
        self._answers.clear()

    def close(self) -> None:
        self._answers.clear()


def _row(counts: Mapping[str, float]) -> Row:
    """Shares, the most frequent first."""
    whole = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda one: -one[1])
    return {ord(letter): count / whole for letter, count in ordered}
