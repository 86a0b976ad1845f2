"""The stand-in's generator and jobs: see `standin`.

As in exllamav3, a job goes on by itself after `max_rq_tokens`, and probabilities are those before
sampling.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN001, ANN003, ANN201
# Their signatures are written down as they are: without types.

from typing import Any

import torch

from tests.backends.engines.exllama.standin_generator import PAGE, Jotter, PagedGenerator

NEVER = float("-inf")


class Job(Jotter):
    machine: Any  # standin.Machine

    def __init__(
        self,
        input_ids,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        max_skips: int | None = 4,
        sampler=None,
        seed=None,
        stop_conditions=None,
        decode_special_tokens: bool = False,
        return_top_tokens: int = 0,
        return_logits: bool = False,
        return_probs: bool = False,
        filters=None,
        token_healing: bool = False,
        identifier=None,
        banned_strings=None,
        embeddings=None,
        max_rq_tokens: int | None = None,
        stop_on_loop=None,
        rq_state=None,
        **kwargs,
    ) -> None:
        assert all(ids.device.type == "cpu" for ids in input_ids)
        assert input_ids.shape[0] == 1
        assert max_new_tokens is not None
        assert max_new_tokens >= 1
        assert max_rq_tokens is not None
        super().__init__(identifier, input_ids[0].tolist(), seed)
        self.max_new_tokens, self.min_new_tokens = max_new_tokens, min_new_tokens
        self.sampler = sampler
        self.stop_tokens = list(stop_conditions)
        self.banned_strings = [text.lower() for text in banned_strings or ()]
        self.embeddings = embeddings or []
        self.return_probs, self.return_top_tokens = return_probs, return_top_tokens
        self.max_rq_tokens = max_rq_tokens
        self.rq_cached: tuple[int, int] | None = None
        self.stretches = [0]  # how many tokens were written when each began
        self.held_chances: list[tuple[float, list[int], list[float]]] = []

    def receive_logits(self, logits):
        mask = None
        if blocked := self.blocked():
            mask = torch.zeros_like(logits)
            mask[:, :, blocked] = NEVER
        past = torch.tensor([self.sequence]) if self.sampler.reqs_past_ids else None
        rng = self.rng.randint(0, (1 << 32) - 1)
        token = self.sampler.forward(logits, past, rng, self.generator.tokenizer, logit_mask=mask)
        chances = torch.softmax(logits[0, 0].float(), dim=-1)
        best = chances.topk(self.return_top_tokens)
        return token, best.indices, best.values, chances[int(token)]

    def receive_sample(
        self,
        logits,
        next_token,
        next_k_tokens,
        next_k_probs,
        next_prob,
        results,
        first_sample_in_sd_batch: bool = True,
    ):
        result = self.accept(int(next_token.item()))
        self.held_chances.append((float(next_prob), next_k_tokens.tolist(), next_k_probs.tolist()))
        results.append(result)
        requeue = self.new_tokens - self.stretches[-1] > self.max_rq_tokens
        if self.sequence[-1] in self.stop_tokens:
            result |= {"eos": True, "eos_reason": "stop_token", "held": self._emit()}
        elif self.new_tokens >= self.max_new_tokens:
            result |= {"eos": True, "eos_reason": "max_new_tokens", **self._emit()}
        elif requeue:
            result |= {"requeue": True, **self._emit()}
        elif not self.mid_character():
            self._emit_unless_banned(result)
        return result["eos"], next_token, requeue and not result["eos"]

    def _emit_unless_banned(self, result: dict[str, Any]) -> None:
        if taken := self.banned():
            del self.held_chances[-len(taken) :]
            result |= {"suppressed_text": "…", "suppressed_tokens": torch.tensor([taken])}
        elif not self.holding:
            result |= self._emit()

    def _emit(self) -> dict[str, torch.Tensor]:
        held, chances_held = self.held, self.held_chances
        self.held, self.held_chances = [], []
        emitted = {"token_ids": torch.tensor([held])}
        if self.return_probs:
            emitted["token_probs"] = torch.tensor([[chance for chance, _, _ in chances_held]])
        if self.return_top_tokens:
            emitted["top_k_tokens"] = torch.tensor([[tokens for _, tokens, _ in chances_held]])
            emitted["top_k_probs"] = torch.tensor([[chances for _, _, chances in chances_held]])
        return emitted


class Generator(PagedGenerator):
    machine: Any  # standin.Machine

    def __init__(
        self,
        model,
        cache,
        tokenizer,
        max_batch_size: int = 256,
        max_chunk_size: int = 2048,
        shared_chunk_size: int | None = None,
        prefill_cooldown: int | None = 4,
        max_q_size: int = 8,
        draft_model=None,
        draft_cache=None,
        num_draft_tokens: int | None = None,
        show_visualizer: bool = False,
        enable_defrag: bool = True,
        cpu_cache_size: int = 0,
        disk_cache_dir: str | None = None,
        disk_cache_size: int = 50 * 1024**3,
        disk_cache_flush_on_idle: bool = True,
        disk_cache_checkpoint_interval: int = 4096,
        disk_cache_write_interval: float = 2.0,
        recurrent_cache_size: int = 4 * 1024**3,
        recurrent_checkpoint_interval=None,
        recurrent_checkpoint_interval_pp: int = 32768,
        ngram_match_min: int = 0,
        dynamic_draft_tokens: bool = False,
        draft_confidence: float = 0.4,
        record_draft_stats: bool = False,
        ngram_corpus: str | None = None,
        hybrid_draft_tokens: int = 0,
        draft_max_rows: int = 0,
        sparse_draft_head: int = 0,
        **kwargs,
    ) -> None:
        assert cache.initialized
        assert cache.max_num_tokens % PAGE == max_chunk_size % PAGE == 0
        assert not (draft_model and ngram_match_min)
        self.draft_model = draft_model
        if draft_model:
            assert draft_cache.initialized
            assert draft_cache.max_num_tokens == cache.max_num_tokens
        guesses = (num_draft_tokens or 4) if draft_model or ngram_match_min else 0
        assert guesses <= cache.max_history
        self.cache, self.ngram_match_min, self.max_chunk_size = (
            cache,
            ngram_match_min,
            max_chunk_size,
        )
        self.cpu_cache_size = cpu_cache_size
        self.closed = False
        self.begin(model, tokenizer, cache.max_num_tokens, max_batch_size, guesses)

    def enqueue(self, job) -> int:
        room = self.max_pages * PAGE - len(job.sequence) - 1 - self.guesses
        job.max_new_tokens = min(job.max_new_tokens, max(1, room))
        return self.take_in(job, self._reserved(job))

    def _reserved(self, job: Any) -> int:
        """Whole pages, and room for guesses behind them."""
        prompt = len(job.sequence)
        aligned = -(-(prompt - 1 + job.max_rq_tokens) // PAGE) * PAGE
        end = min(aligned, self.max_pages * PAGE - self.guesses)
        return int(max(1, end - prompt) + self.guesses)

    def cancel(self, job) -> None:
        self.leave(job)

    def iterate(self) -> list[dict[str, Any]]:
        assert not self.closed
        results = self.step()
        if self.machine.fail_job is not None and self.active_jobs:
            failed = self.active_jobs.pop()
            failure = {"stage": "error", "eos": True, "error": self.machine.fail_job}
            results.append({"job": failed, "serial": 0, **failure})
            self.machine.fail_job = None
        return results

    def close(self) -> None:
        self.closed = True

    def write(self, job: Any, logits: torch.Tensor, results: list[dict[str, Any]]) -> bool:
        token, top, chances, chance = job.receive_logits(logits)
        eos, _, requeue = job.receive_sample(logits, token, top, chances, chance, results)
        if eos or requeue:
            self.finish(job)
        if requeue:
            job.rq_cached = job.rq_cached or (
                job.cached_pages,
                job.cached_pages * PAGE + job.cached_tokens,
            )
            job.stretches.append(job.new_tokens)
            self.pending_jobs.insert(0, job)
        return bool(eos or requeue)
