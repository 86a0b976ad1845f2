"""What the two stand-ins' generators and jobs have in common; no classes of the libraries.

As in both, pages are reserved when a job starts and found again by a later one, tokens are held
back with their text, results have stages. The model is a table: after a prompt that holds a cue it
says that cue's answer, whatever was drawn before, so what it says next depends on the tokens'
number alone.
"""

import random
from dataclasses import dataclass
from typing import Any

import torch

from tests.backends.engines.exllama.machine import Machine
from tests.backends.engines.exllama.standin_models import PICTURES

PAGE = 256
END = 2
SURE = 10.0  # the logit of what comes next; all others have smaller ones


@dataclass
class Script:
    """What a job will say, and at which place of its sequence that begins."""

    answer: list[int]
    begins: int


class Jotter:
    """A job's tokens: said, held back, taken back."""

    def __init__(self, identifier: Any, prompt: list[int], seed: int | None) -> None:
        self.identifier = identifier
        self.generator: Any = None
        self.rng = random.Random(seed)
        self.prompt = prompt
        self.sequence = list(prompt)
        self.max_new_tokens = self.min_new_tokens = 0
        self.stop_tokens: list[int] = []
        self.banned_strings: list[str] = []
        self.embeddings: list[Any] = []
        self.new_tokens = self.cached_pages = self.cached_tokens = self.pages = 0
        self.held: list[int] = []
        self.holding = False  # because a banned string may have begun
        self.explored: list[int] = []
        self.script: Script | None = None

    def blocked(self) -> list[int]:
        """What may not be drawn now."""
        explored = [] if self.holding else self.explored
        return [*explored, *(self.stop_tokens if self.new_tokens < self.min_new_tokens else ())]

    def accept(self, token: int) -> dict[str, Any]:
        """A result of the stage "streaming", without what it hands out."""
        self.new_tokens += 1
        self.sequence.append(token)
        self.held.append(token)
        return {
            "job": self,
            "stage": "streaming",
            "eos": False,
            "identifier": self.identifier,
            "serial": 0,
        }

    def mid_character(self) -> bool:
        return "\ufffd" in self._text()

    def banned(self) -> list[int]:
        """The tokens taken back because of a banned string; sets `holding`."""
        text = self._text().lower()
        if any(banned in text for banned in self.banned_strings):
            taken, self.held, self.holding = self.held, [], False
            self.explored.append(taken[0])
            del self.sequence[-len(taken) :]
            self.new_tokens -= len(taken)
            return taken
        self.holding = any(banned.startswith(text) for banned in self.banned_strings if text)
        if not self.holding:
            self.explored = []
        return []

    def _text(self) -> str:
        return str(self.generator.tokenizer.text(self.held))


class PagedGenerator:
    """The queue and the pages."""

    machine: Machine

    def begin(self, model: Any, tokenizer: Any, cells: int, together: int, guesses: int) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.page_size, self.max_pages = PAGE, cells // PAGE
        self.max_batch_size, self.guesses = together, guesses
        self.pending_jobs: list[Any] = []
        self.active_jobs: list[Any] = []
        self.known: list[list[int]] = []  # sequences whose keys and values are in the cache
        self.machine.generators.append(self)

    def num_remaining_jobs(self) -> int:
        return len(self.pending_jobs) + len(self.active_jobs)

    def take_in(self, job: Any, reserved: int) -> int:
        """`reserved`: tokens the job may write."""
        job.generator = self
        job.pages = -(-(len(job.sequence) + reserved) // self.page_size)
        assert job.pages <= self.max_pages, f"Job requires {job.pages} pages"
        assert self.machine.refused_token not in job.sequence, "Job holds a token it may not"
        self.pending_jobs.append(job)
        self.machine.jobs.append(job)
        return len(self.machine.jobs)

    def leave(self, job: Any) -> None:
        if job in self.pending_jobs:
            self.pending_jobs.remove(job)
        elif job in self.active_jobs:
            self.finish(job)

    def finish(self, job: Any) -> None:
        self.active_jobs.remove(job)
        self.known.append(job.sequence[:-1])

    def step(self) -> list[dict[str, Any]]:
        if self.machine.steps is not None:
            self.machine.steps.acquire()
        if self.machine.fail_iterate is not None:
            error, self.machine.fail_iterate = self.machine.fail_iterate, None
            raise error
        results: list[dict[str, Any]] = []
        self._start(results)
        for job in list(self.active_jobs):
            for _ in range(1 + self.guesses):  # the guesses come true
                if self.write(job, self._logits(job), results):
                    break
        return results

    def write(self, job: Any, logits: torch.Tensor, results: list[dict[str, Any]]) -> bool:
        """One token. True: the job writes no more."""
        raise NotImplementedError

    def _start(self, results: list[dict[str, Any]]) -> None:
        for job in list(self.pending_jobs):
            used = sum(active.pages for active in self.active_jobs)
            if len(self.active_jobs) >= self.max_batch_size or used + job.pages > self.max_pages:
                continue
            self.pending_jobs.remove(job)
            self.active_jobs.append(job)
            cached = max((alike(known, job.sequence[:-1]) for known in self.known), default=0)
            job.cached_pages, job.cached_tokens = divmod(cached, self.page_size)
            common = {"job": job, "identifier": job.identifier, "eos": False, "serial": 0}
            results.append({"stage": "started", **common})
            results.append({"stage": "prefill", "curr_progress": 1, "max_progress": 1, **common})

    def _logits(self, job: Any) -> torch.Tensor:
        """Of the shape (1, 1, padded vocabulary)."""
        size = self.model.config.vocab_size
        logits = torch.zeros((1, 1, -(-size // 32) * 32))
        logits[0, 0, 300 : 301 + job.sequence[-1] % 7] = 1.0  # something to choose from
        job.script = job.script or self._script(job.prompt)
        said = len(job.sequence) - job.script.begins
        logits[0, 0, job.script.answer[said] if said < len(job.script.answer) else END] = SURE
        return logits

    def _script(self, prompt: list[int]) -> Script:
        """By the cue that comes last in the prompt."""
        words = [token for token in prompt if token < PICTURES]
        text = self.tokenizer.text(words)
        cue = max(self.machine.answers, key=text.rfind)
        ends = text.rfind(cue) + len(cue)
        begun = len(words) - len(self.tokenizer.ids(text[:ends]))
        return Script(self.tokenizer.ids(self.machine.answers[cue]), begins=len(prompt) - begun)


def pick(logits: torch.Tensor, temperature: float, chance: float) -> int:
    """A token by chance, which is between 0 and 1."""
    ranked = torch.softmax(logits / temperature, dim=-1).cumsum(0)
    return min(int((ranked < chance * 0.9998).sum()), len(logits) - 1)


def alike(left: list[int], right: list[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = zip(left, right, strict=False)
    return next(
        (at for at, (one, two) in enumerate(pairs) if one != two), min(len(left), len(right))
    )
