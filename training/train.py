"""Trains the bundled model: `python -m training.train --seed 0 --out bundled`.

Makes the tokenizer, the weights and both exports from nothing but a seed. The same seed, machine
and number of threads give the same files; it took about twenty minutes on two cores. Runs on the
CPU: the model is too small for a GPU to help.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from training import corpus, export
from training.tokenizer import CONTROL_TOKENS, END_OF_TEXT, SIZE, TURN_END, train_tokenizer

IGNORED = -100
# Tokens of one row, with the share of steps that use it: short rows teach fast, long rows teach
# that a conversation goes on. Every step holds about the same number of tokens.
ROW_LENGTHS = ((192, 0.35), (384, 0.45), (1024, 0.17), (2048, 0.03))
LONGEST_COUNTS = {192: 15, 384: 30, 1024: 100, 2048: 100}
REPORT_EVERY = 100
CHECKPOINT_EVERY = 500


class Plan(msgspec.Struct, frozen=True):
    """The length and speed of a training."""

    steps: int
    tokens_per_step: int = 3072
    peak_rate: float = 4e-3
    warm_up: float = 0.08
    weight_decay: float = 0.05
    seed: int = 0


class Batch(msgspec.Struct, frozen=True):
    """Token ids, and what each position is to predict (`IGNORED` where nothing is learnt)."""

    ids: torch.Tensor
    targets: torch.Tensor


def model_config() -> LlamaConfig:
    """About 0.85 million parameters, embeddings shared with the output."""
    return LlamaConfig(
        vocab_size=SIZE,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=CONTROL_TOKENS.index(TURN_END),
        pad_token_id=CONTROL_TOKENS.index(END_OF_TEXT),
    )


def corpus_texts(seed: int, count: int) -> Iterator[str]:
    """The beginnings of `count` conversations as plain text."""
    rng = Random(f"tokenizer {seed}")
    for turns in islice(corpus.conversations(rng), count):
        yield "".join(segment.text for turn in islice(turns, 3) for segment in turn)


def fill_row(tokenizer: Tokenizer, turns: Iterator[list[corpus.Segment]], length: int) -> tuple[list[int], list[int]]:
    """As many whole turns as fit in `length` tokens; ids, and targets one position ahead."""
    ids: list[int] = []
    learnt: list[int] = []
    for turn in turns:
        new_ids, new_learnt = encode_turn(tokenizer, turn)
        if len(ids) + len(new_ids) > length + 1:
            break
        ids += new_ids
        learnt += new_learnt
    return ids[:-1], learnt[1:]


def encode_turn(tokenizer: Tokenizer, turn: Sequence[corpus.Segment]) -> tuple[list[int], list[int]]:
    """The tokens of a turn, and the same with `IGNORED` where they are not to be learnt."""
    ids: list[int] = []
    learnt: list[int] = []
    for segment in turn:
        tokens = tokenizer.encode(segment.text).ids
        ids += tokens
        targets = list(tokens) if segment.learnt else [IGNORED] * len(tokens)
        if segment.given:
            targets[0] = IGNORED
        learnt += targets
    return ids, learnt


def batches(tokenizer: Tokenizer, plan: Plan) -> Iterator[Batch]:
    """Training batches without end."""
    rng = Random(f"corpus {plan.seed}")
    lengths, shares = zip(*ROW_LENGTHS, strict=True)
    while True:
        length = rng.choices(lengths, shares)[0]
        conversations = corpus.conversations(rng, LONGEST_COUNTS[length])
        rows: list[tuple[list[int], list[int]]] = []
        while len(rows) < max(1, plan.tokens_per_step // length):
            row = fill_row(tokenizer, next(conversations), length)
            if row[0]:
                rows.append(row)
        yield pad(rows)


def pad(rows: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """Rows of one length; padding stands at the end, where causal attention never looks back."""
    longest = max(len(ids) for ids, _ in rows)
    padding = CONTROL_TOKENS.index(END_OF_TEXT)
    return Batch(
        torch.tensor([ids + [padding] * (longest - len(ids)) for ids, _ in rows]),
        torch.tensor([targets + [IGNORED] * (longest - len(targets)) for _, targets in rows]),
    )


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross entropy in nats over the learnt tokens."""
    hidden = model.model(batch.ids, use_cache=False).last_hidden_state
    wanted = batch.targets != IGNORED
    return cross_entropy(model.lm_head(hidden[wanted]), batch.targets[wanted])


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, plan: Plan, checkpoint: Path | None) -> None:
    """AdamW with a one-cycle rate; changes `model` in place."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": gains, "weight_decay": 0.0}],
        lr=plan.peak_rate,
        betas=(0.9, 0.98),
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, plan.peak_rate, total_steps=plan.steps, pct_start=plan.warm_up, cycle_momentum=False
    )
    model.train()
    start, total = time.monotonic(), 0.0
    for step, batch in enumerate(islice(batches(tokenizer, plan), plan.steps), start=1):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % REPORT_EVERY == 0:
            print(f"step {step} loss {total / REPORT_EVERY:.4f} {time.monotonic() - start:.0f} s", flush=True)
            total = 0.0
        if checkpoint and step % CHECKPOINT_EVERY == 0:
            export.export(model, tokenizer, checkpoint)


def main() -> None:
    """Reads the command line, trains and exports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bundled"))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--checkpoint", type=Path, help="also export here while training")
    arguments = parser.parse_args()
    plan = Plan(steps=arguments.steps, seed=arguments.seed)
    torch.manual_seed(plan.seed)
    tokenizer = train_tokenizer(corpus_texts(plan.seed, 4000))
    model = LlamaForCausalLM(model_config())
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    train(model, tokenizer, plan, arguments.checkpoint)
    export.export(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
