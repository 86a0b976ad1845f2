"""The stand-in's generator, jobs and sampler settings: see `standin`.

As in exllamav2, pages are reserved when a job starts and found again by a later one, tokens are
held back with their text, results have three stages, logits are changed in place before they are
sampled. The model is a table: after a prompt that holds a cue it says that cue's answer, whatever
was drawn before, so what it says next depends on the tokens' number alone.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN001, ANN003, ANN201
# Their signatures are written down as they are: without types.

import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

PAGE = 256
END = 2
SURE = 10.0  # the logit of what comes next; all others have smaller ones
PICTURES = 10**9  # token ids from here on are rows of embeddings


@dataclass
class Settings:
    """`ExLlamaV2Sampler.Settings`: the same fields in the same order with the same defaults."""

    token_repetition_penalty: float = 1.025
    token_repetition_range: int = -1
    token_repetition_decay: int = 0
    token_frequency_penalty: float = 0.0
    token_presence_penalty: float = 0.0
    temperature: float = 0.8
    smoothing_factor: float = 0.0
    min_temp: float = 0
    max_temp: float = 0.0
    temp_exponent: float = 1.0
    top_k: int = 50
    top_p: float = 0.8
    top_a: float = 0.0
    min_p: float = 0
    tfs: float = 0
    typical: float = 0
    skew: float = 0
    temperature_last: bool = False
    mirostat: bool = False
    mirostat_tau: float = 1.5
    mirostat_eta: float = 0.1
    mirostat_mu: float | None = None
    token_bias: torch.Tensor | None = None
    cfg_scale: float | None = None
    post_sampling_hooks: list[Any] = field(default_factory=list)
    dry_allowed_length: int = 2
    dry_base: float = 1.75
    dry_multiplier: float = 0.0
    dry_sequence_breakers: set[int] | None = None
    dry_range: int = 0
    dry_max_ngram: int = 20
    ngram_trie: dict[int, Any] = None  # type: ignore[assignment]
    ngram_index: int = 0
    ngram_history: deque[int] = field(default_factory=deque)
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_ignore_tokens: frozenset[int] | None = None


@dataclass
class Script:
    """What a job will say, and at which place of its sequence that begins."""

    answer: list[int]
    begins: int


class ExLlamaV2DynamicJob:
    world: Any  # standin.World

    def __init__(
        self,
        input_ids,
        max_new_tokens,
        min_new_tokens=0,
        max_skips=4,
        gen_settings=None,
        seed=None,
        stop_conditions=None,
        decode_special_tokens=False,
        return_top_tokens=0,
        return_logits=False,
        return_probs=False,
        filters=None,
        filter_prefer_eos=False,
        token_healing=False,
        identifier=None,
        banned_strings=None,
        embeddings=None,
        **kwargs,
    ) -> None:
        assert all(ids.device.type == "cpu" for ids in input_ids)
        assert input_ids.shape[0] == 1
        self.prompt: list[int] = input_ids[0].tolist()
        self.sequence = list(self.prompt)
        self.max_new_tokens, self.min_new_tokens = max_new_tokens, min_new_tokens
        self.gen_settings = gen_settings
        self.rng = random.Random(seed)
        self.stop_tokens = list(stop_conditions)
        self.banned_strings = [text.lower() for text in banned_strings or ()]
        self.embeddings = embeddings or []
        self.identifier = identifier
        self.generator: Any = None
        self.new_tokens = self.cached_pages = self.cached_tokens = 0
        self.pages = 0
        self.held: list[int] = []
        self.held_before: list[int] = []  # when a banned string may have begun
        self.explored: list[int] = []
        self.script: Script | None = None

    def receive_logits(self, logits):
        blocked = list(self.explored) if not self.held_before and self.explored else []
        if self.new_tokens < self.min_new_tokens:
            blocked += self.stop_tokens
        if blocked:
            logits[:, :, blocked] = -1e30
        if self.gen_settings.token_bias is not None:
            logits += self.gen_settings.token_bias
        token = self._draw(logits[0, 0])
        return torch.tensor([[token]]), None, None, torch.tensor([[1.0]]), False

    def _draw(self, logits: torch.Tensor) -> int:
        if self.gen_settings.top_k == 1:
            return int(logits.argmax())
        ranked = torch.softmax(logits / self.gen_settings.temperature, dim=-1).cumsum(0)
        return min(int((ranked < self.rng.random() * 0.9998).sum()), len(logits) - 1)

    def receive_sample(
        self,
        logits,
        next_token,
        next_k_tokens,
        next_k_probs,
        next_prob,
        filter_eos,
        results,
        first_sample_in_sd_batch=True,
    ):
        token = int(next_token.item())
        self.new_tokens += 1
        self.sequence.append(token)
        self.held.append(token)
        result: dict[str, Any] = {
            "job": self,
            "stage": "streaming",
            "eos": False,
            "identifier": self.identifier,
            "serial": 0,
        }
        results.append(result)
        guesses = self.generator.num_draft_tokens
        if token in self.stop_tokens:
            held = {"token_ids": torch.tensor([self.held])}
            result |= {"eos": True, "eos_reason": "stop_token", "held": held}
        elif self.new_tokens >= self.max_new_tokens - guesses:
            result |= {"eos": True, "eos_reason": "max_new_tokens", "token_ids": self._emit()}
        elif "\ufffd" not in self._text() and not self._banned(result):
            result["token_ids"] = self._emit()
        return result["eos"], next_token

    def _text(self) -> str:
        return str(self.generator.tokenizer.text(self.held))

    def _banned(self, result: dict[str, Any]) -> bool:
        """Whether the text held is, or may become, a banned string. As in exllamav2, the tokens
        taken back are given out all the same.
        """
        text = self._text().lower()
        if any(banned in text for banned in self.banned_strings):
            taken = list(self.held)
            self.explored.append(taken[0])
            del self.sequence[-len(taken) :]
            self.new_tokens -= len(taken)
            result |= {"suppressed_text": text, "suppressed_tokens": torch.tensor([taken])}
            self.held_before = []
            result["token_ids"] = self._emit()
            return True
        if any(banned.startswith(text) for banned in self.banned_strings if text):
            self.held_before = list(self.held)
            return True
        self.held_before, self.explored = [], []
        return False

    def _emit(self) -> torch.Tensor:
        held, self.held = self.held, []
        return torch.tensor([held])


class ExLlamaV2DynamicGenerator:
    world: Any  # standin.World

    def __init__(
        self,
        model,
        cache,
        tokenizer,
        max_batch_size=None,
        max_seq_len=None,
        max_chunk_size=None,
        max_q_size=8,
        draft_model=None,
        draft_cache=None,
        num_draft_tokens=4,
        use_ngram_draft=False,
        max_ngram=4,
        max_sampling_threads=16,
        min_sampling_threads=3,
        paged=True,
        filter_background_eval=True,
        **kwargs,
    ) -> None:
        config = model.config
        assert not paged or self.world.paged
        assert not (draft_model and use_ngram_draft)
        guessing = bool(draft_model) or use_ngram_draft
        self.num_draft_tokens = num_draft_tokens if guessing else 0
        assert self.num_draft_tokens < max_q_size
        assert max_q_size * max_batch_size <= config.max_batch_size * config.max_input_len
        assert cache.max_seq_len % PAGE == 0
        assert not paged or config.max_input_len % PAGE == 0
        if draft_model:
            assert draft_cache.max_seq_len == cache.max_seq_len
            assert draft_model.config.max_seq_len >= config.max_seq_len
        self.model, self.cache, self.tokenizer = model, cache, tokenizer
        self.page_size = PAGE if paged else cache.max_seq_len
        self.max_pages = max(cache.max_seq_len // self.page_size, 1)
        self.max_batch_size = max_batch_size if paged else 1
        self.sampling_pool = ThreadPoolExecutor(max_workers=1)
        self.pending_jobs: list[ExLlamaV2DynamicJob] = []
        self.active_jobs: list[ExLlamaV2DynamicJob] = []
        self.known: list[list[int]] = []  # sequences whose keys and values are in the cache
        self.current_loras: Any = None
        self.world.generators.append(self)

    def set_loras(self, loras) -> None:
        assert not self.num_remaining_jobs()
        self.current_loras = loras
        self.world.loras = loras

    def num_remaining_jobs(self) -> int:
        return len(self.pending_jobs) + len(self.active_jobs)

    def enqueue(self, job) -> int:
        job.generator = self
        job.pages = -(-(len(job.sequence) + job.max_new_tokens) // self.page_size)
        assert job.pages <= self.max_pages, f"Job requires {job.pages} pages"
        self.pending_jobs.append(job)
        self.world.jobs.append(job)
        return len(self.world.jobs)

    def cancel(self, job) -> None:
        if job in self.pending_jobs:
            self.pending_jobs.remove(job)
        elif job in self.active_jobs:
            self._finish(job)

    def _finish(self, job: ExLlamaV2DynamicJob) -> None:
        self.active_jobs.remove(job)
        self.known.append(job.sequence[:-1])

    def iterate(self) -> list[dict[str, Any]]:
        if self.world.fail_iterate is not None:
            error, self.world.fail_iterate = self.world.fail_iterate, None
            raise error
        results: list[dict[str, Any]] = []
        self._start(results)
        for job in list(self.active_jobs):
            self._write(job, results)
        return results

    def _start(self, results: list[dict[str, Any]]) -> None:
        for job in list(self.pending_jobs):
            used = sum(active.pages for active in self.active_jobs)
            if len(self.active_jobs) >= self.max_batch_size or used + job.pages > self.max_pages:
                continue
            self.pending_jobs.remove(job)
            self.active_jobs.append(job)
            cached = max((alike(known, job.prompt[:-1]) for known in self.known), default=0)
            job.cached_pages, job.cached_tokens = divmod(cached, self.page_size)
            told = {"job": job, "identifier": job.identifier, "eos": False, "serial": 0}
            results.append({"stage": "started", **told})
            results.append({"stage": "prefill", "curr_progress": 1, "max_progress": 1, **told})

    def _write(self, job: ExLlamaV2DynamicJob, results: list[dict[str, Any]]) -> None:
        """One token, and guesses that come true where there are any."""
        for guess in range(1 + self.num_draft_tokens):
            logits = self._logits(job)
            token, top, chances, chance, ended = job.receive_logits(logits)
            eos, _ = job.receive_sample(
                logits, token, top, chances, chance, ended, results, guess == 0
            )
            if eos:
                self._finish(job)
                return

    def _logits(self, job: ExLlamaV2DynamicJob) -> torch.Tensor:
        size = self.model.config.vocab_size
        logits = torch.zeros((1, 1, -(-size // 32) * 32))
        logits[0, 0, 300 : 301 + job.sequence[-1] % 7] = 1.0  # something to choose from
        job.script = job.script or self._script(job.prompt)
        said = len(job.sequence) - job.script.begins
        logits[0, 0, job.script.answer[said] if said < len(job.script.answer) else END] = SURE
        return logits

    def _script(self, prompt: list[int]) -> "Script":
        """By the cue that comes last in the prompt."""
        words = [token for token in prompt if token < PICTURES]
        text = self.tokenizer.text(words)
        cue = max(self.world.answers, key=text.rfind)
        begun = text[text.rfind(cue) + len(cue) :]
        encode = self.tokenizer.model.encode
        after = len(words) - len(
            encode(text[: len(text) - len(begun)], add_special_tokens=False).ids
        )
        answer = encode(self.world.answers[cue], add_special_tokens=False).ids
        return Script(answer, begins=len(prompt) - after)


def alike(left: list[int], right: list[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = zip(left, right, strict=False)
    return next(
        (at for at, (one, two) in enumerate(pairs) if one != two), min(len(left), len(right))
    )
