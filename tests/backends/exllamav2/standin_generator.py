"""The stand-in's generator, jobs and sampler settings: see `standin`.

As in exllamav2, results give out what was taken back, and logits are changed in place before they
are sampled.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN001, ANN003, ANN201
# Their signatures are written down as they are: without types.

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from tests.backends.exllama.standin_generator import PAGE, Jotter, PagedGenerator, pick


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


class Sequence:
    """A SeqTensor over what a job has written."""

    def __init__(self, job: Jotter) -> None:
        self.job = job

    def torch(self) -> torch.Tensor:
        return torch.tensor([self.job.sequence])


class ExLlamaV2DynamicJob(Jotter):
    machine: Any  # standin.Machine

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
        super().__init__(identifier, input_ids[0].tolist(), seed)
        self.sequences = [SimpleNamespace(sequence_ids=Sequence(self))]
        self.max_new_tokens, self.min_new_tokens = max_new_tokens, min_new_tokens
        self.gen_settings = gen_settings
        self.stop_tokens = list(stop_conditions)
        self.banned_strings = [text.lower() for text in banned_strings or ()]
        self.embeddings = embeddings or []
        self.filters = filters or []
        assert not (self.filters and self.banned_strings)

    def receive_logits(self, logits):
        if self.new_tokens == 0:
            for one in self.filters:
                one.background_drop()
                one.begin("")
        if blocked := self.blocked():
            logits[:, :, blocked] = -1e30
        if self.gen_settings.token_bias is not None:
            logits += self.gen_settings.token_bias
        for one in self.filters:
            assert one.can_mask_logits()
            assert one.get_next(mask=True)
            logits = one.mask_logits(logits[0][0]).view(1, 1, -1)
        token = self._draw(logits[0, 0])
        return torch.tensor([[token]]), None, None, torch.tensor([[1.0]]), False

    def _draw(self, logits: torch.Tensor) -> int:
        if self.gen_settings.top_k == 1:
            return int(logits.argmax())
        return pick(logits, self.gen_settings.temperature, self.rng.random())

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
        for one in self.filters:
            one.feed(next_token)
            assert not one.use_background_worker()
        result = self.accept(int(next_token.item()))
        results.append(result)
        if self.sequence[-1] in self.stop_tokens:
            held = {"token_ids": torch.tensor([self.held])}
            result |= {"eos": True, "eos_reason": "stop_token", "held": held}
        elif self.new_tokens >= self.max_new_tokens - self.generator.num_draft_tokens:
            result |= {"eos": True, "eos_reason": "max_new_tokens", "token_ids": self._emit()}
        elif not self.mid_character():
            self._emit_unless_banned(result)
        return result["eos"], next_token

    def _emit_unless_banned(self, result: dict[str, Any]) -> None:
        """As in exllamav2, the tokens taken back are given out all the same."""
        if taken := self.banned():
            result |= {"suppressed_text": "…", "suppressed_tokens": torch.tensor([taken])}
            result["token_ids"] = torch.tensor([taken])
        elif not self.holding:
            result["token_ids"] = self._emit()

    def _emit(self) -> torch.Tensor:
        held, self.held = self.held, []
        return torch.tensor([held])


class ExLlamaV2DynamicGenerator(PagedGenerator):
    machine: Any  # standin.Machine

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
        assert not paged or self.machine.paged
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
        self.cache, self.draft_model = cache, draft_model
        together = max_batch_size if paged else 1
        self.begin(model, tokenizer, cache.max_seq_len, together, self.num_draft_tokens)
        if not paged:
            self.page_size, self.max_pages = cache.max_seq_len, 1
        self.sampling_pool = ThreadPoolExecutor(max_workers=1)

    def set_loras(self, loras) -> None:
        assert not self.num_remaining_jobs()
        self.machine.loras = loras

    def enqueue(self, job) -> int:
        return self.take_in(job, job.max_new_tokens)

    def cancel(self, job) -> None:
        self.leave(job)

    def iterate(self) -> list[dict[str, Any]]:
        return self.step()

    def write(self, job: Any, logits: torch.Tensor, results: list[dict[str, Any]]) -> bool:
        token, top, chances, chance, ended = job.receive_logits(logits)
        eos, _ = job.receive_sample(logits, token, top, chances, chance, ended, results)
        if eos:
            self.finish(job)
        return bool(eos)
